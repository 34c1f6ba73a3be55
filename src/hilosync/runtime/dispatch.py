"""The learner's side of the rollouts: offer a run's batches, collect each exactly once.

Which batches a step needs is up to the pace (`OrderBook`). A batch whose worker died is offered again,
as soon as the worker's heartbeat has been silent for `silence` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hilosync.errors import ConfigurationError, PeerSilent, WireError
from hilosync.log import Delivery, Mailbox
from hilosync.runtime.orders import Key, OrderBook, Pace
from hilosync.runtime.presence import Presence, Roll

__all__ = ["Dispatcher", "Limits"]

Admitted = TypeVar("Admitted")

_ATTEMPTS = 3
"""Wrong answers to one batch after which something other than one worker is at fault."""


@dataclass(frozen=True)
class Limits:
    """How long the two sides wait for each other, in seconds.

    Attributes:
        silence: a process whose heartbeat has not moved for so long counts as dead.
        lease: a living worker may hold an order for so long before it is offered again.
        patience: with no living worker (or learner) for so long, give up with `PeerSilent`.
    """

    silence: float = 5.0
    lease: float = 600.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        for name, seconds in (("silence", self.silence), ("lease", self.lease), ("patience", self.patience)):
            # A NaN is never exceeded, and a wait without a limit is none of these.
            if not 0 < seconds < float("inf"):
                raise ConfigurationError(f"{name}: expected a finite number of seconds above 0, got {seconds}")


class Dispatcher:
    """Offers a run's orders and collects what each step of the learner uses.

    Attributes:
        presence: who is there.
        reissued: orders offered again because a worker was lost, slow, or answered wrongly.
        duplicates: answers that nobody waited for.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        pace: Pace | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.presence = Presence(mailbox, clock)
        self.limits = limits or Limits()
        self.reissued = 0
        self.duplicates = 0
        self._mailbox = mailbox
        self._clock = clock
        self._book: OrderBook[Any] = OrderBook(pace or Pace())
        self._issued_at: dict[Key, float] = {}
        self._refused: dict[Key, int] = {}

    @property
    def withdrawn(self) -> int:
        """Batches that became too old before a step could use them."""
        return self._book.withdrawn

    @property
    def oldest(self) -> int:
        """The oldest version of an order that may still be answered; workers without one go no further."""
        return self._book.oldest

    def offer(self, version: int) -> None:
        """Asks for what the step from `version` and the pace need; `collect` does it too, if nobody has before.

        After a restart of the learner the first version is the head of its log. What was delivered for
        an earlier life is used where it is sure that no step has used it.
        """
        orders = self._book.turn(version)
        if not orders:
            return
        oldest, now = self._book.oldest, self._clock()
        self._issued_at |= {(order.version, order.batch): now for order in orders}
        self._issued_at = {key: at for key, at in self._issued_at.items() if key[0] >= oldest}
        self._refused = {key: count for key, count in self._refused.items() if key[0] >= oldest}
        self._mailbox.forget(before=oldest)
        self._mailbox.offer(orders)

    def collect(
        self,
        version: int,
        admit: Callable[[Delivery], Admitted],
        watch: Callable[[Roll], None] | None = None,
    ) -> list[Admitted]:
        """The admitted deliveries that the step from `version` uses, each once, however many workers live.

        Args:
            version: the learner's policy version.
            admit: reads a delivery, or raises `WireError` if it is no answer to its order; the batch is then
                offered again.
            watch: called with the workers' notices while waiting, for a display.

        Returns:
            One per batch; in lockstep and pipelined pace in the order in which they were asked for, in
            asynchronous pace as they arrived.

        Raises:
            PeerSilent: no worker has been alive for `limits.patience` seconds.
            WireError: a batch was answered wrongly three times.
        """
        self.offer(version)
        alive_at = self._clock()
        while True:
            self._receive(admit)
            taken = self._book.take()
            if taken is not None:
                return taken
            roll = self.presence.look()
            if watch is not None:
                watch(roll)
            now = self._clock()
            if any(roll.alive(worker.incarnation, self.limits.silence) for worker in roll.workers()):
                alive_at = now
            elif now - alive_at > self.limits.patience:
                last_words = "".join(f"; {w.sender} failed: {w.detail}" for w in roll.workers() if w.state == "failed")
                raise PeerSilent(
                    f"no worker has been heard for {self.limits.patience:.0f} s and rollouts for the step from version "
                    f"{version} are missing: start one with `hilo work LOG`{last_words}"
                )
            self._offer_again(roll, now)

    def _receive(self, admit: Callable[[Delivery], Any]) -> None:
        versions = sorted({version for version, _ in self._book.open})
        found = [delivery for version in versions for delivery in self._mailbox.collect(version)]
        if not found and versions:
            found = self._mailbox.collect(versions[0], wait=0.25 if len(versions) == 1 else 0.05)
        for delivery in found:
            key = (delivery.order.version, delivery.order.batch)
            if key not in self._book.open:
                self.duplicates += 1
                continue
            try:
                answer = admit(delivery)
            except WireError:
                self._refused[key] = self._refused.get(key, 0) + 1
                if self._refused[key] == _ATTEMPTS:
                    raise
                self._reissue(key)
            else:
                self._book.answer(key, answer)

    def _offer_again(self, roll: Roll, now: float) -> None:
        orders = self._book.open
        claims = {}
        for version in {version for version, _ in orders}:
            claims |= self._mailbox.claims(version)
        for key, order in orders.items():
            holder = claims.get(order)
            if holder is None:
                # Nobody has it. Perhaps nobody can: the log may have refused it, or lost it with its power.
                if now - self._issued_at[key] > self.limits.silence:
                    self._mailbox.offer([order])
                    self._issued_at[key] = self._clock()
                continue
            # A claim names the incarnation, so a worker that was killed and started again under the
            # same name does not count as still working on it.
            lost = not roll.alive(holder, self.limits.silence)
            if lost or now - self._issued_at[key] > self.limits.lease:
                self._reissue(key)

    def _reissue(self, key: Key) -> None:
        order = self._book.reissue(key)
        self._issued_at[key] = self._clock()
        self.reissued += 1
        self._mailbox.offer([order])
