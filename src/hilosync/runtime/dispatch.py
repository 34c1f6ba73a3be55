"""The learner's side of the rollouts: offer a version's batches, collect each exactly once.

Lockstep: all batches of version v are collected before the learner makes v + 1. A batch whose worker
died is offered again, as soon as the worker's heartbeat has been silent for `silence` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hilosync.errors import PeerSilent, WireError
from hilosync.log import Delivery, Mailbox, Order
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


class Dispatcher:
    """Offers orders and collects deliveries of one policy version at a time."""

    def __init__(self, mailbox: Mailbox, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic):
        self.presence = Presence(mailbox, clock)
        self.limits = limits or Limits()
        self.reissued = 0
        self.duplicates = 0
        self._mailbox = mailbox
        self._clock = clock

    def collect(
        self,
        version: int,
        batches: int,
        admit: Callable[[Delivery], Admitted],
        watch: Callable[[Roll], None] | None = None,
    ) -> list[Admitted]:
        """One admitted delivery per batch 0 … batches − 1, in batch order, however many workers live.

        Args:
            version: the policy version that the rollouts are to be made with.
            batches: number of batches.
            admit: reads a delivery, or raises `WireError` if it is no answer to its order; the batch is then
                offered again.
            watch: called with the workers' notices while waiting, for a display.

        Raises:
            PeerSilent: no worker has been alive for `limits.patience` seconds.
            WireError: a batch was answered wrongly three times.
        """
        newest = {batch: Order(version, batch) for batch in range(batches)}
        issued_at = dict.fromkeys(newest, self._clock())
        self._mailbox.offer(list(newest.values()))
        collected: dict[int, Admitted] = {}
        refused = dict.fromkeys(newest, 0)
        alive_at = self._clock()
        while len(collected) < batches:
            for delivery in self._mailbox.collect(version, wait=0.25):
                batch = delivery.order.batch
                if batch in collected or batch not in newest:
                    self.duplicates += 1
                    continue
                try:
                    collected[batch] = admit(delivery)
                except WireError:
                    refused[batch] += 1
                    if refused[batch] == _ATTEMPTS:
                        raise
                    self._reissue(newest, issued_at, batch)
            roll = self.presence.look()
            if watch is not None:
                watch(roll)
            now = self._clock()
            if any(roll.alive(worker.incarnation, self.limits.silence) for worker in roll.workers()):
                alive_at = now
            elif now - alive_at > self.limits.patience:
                last_words = "".join(f"; {w.sender} failed: {w.detail}" for w in roll.workers() if w.state == "failed")
                raise PeerSilent(
                    f"no worker has been heard for {self.limits.patience:.0f} s and {batches - len(collected)} of "
                    f"{batches} batches of version {version} are missing: start one with `hilo work LOG`{last_words}"
                )
            if len(collected) < batches:
                self._offer_again(version, newest, issued_at, set(collected), roll, now)
        self._mailbox.forget(before=version)
        return [collected[batch] for batch in range(batches)]

    def _offer_again(
        self,
        version: int,
        newest: dict[int, Order],
        issued_at: dict[int, float],
        done: set[int],
        roll: Roll,
        now: float,
    ) -> None:
        claims = self._mailbox.claims(version)
        for batch, order in newest.items():
            holder = claims.get(order)
            if batch in done or holder is None:
                continue
            # A claim names the incarnation, so a worker that was killed and started again under the
            # same name does not count as still working on it.
            lost = not roll.alive(holder, self.limits.silence)
            if lost or now - issued_at[batch] > self.limits.lease:
                self._reissue(newest, issued_at, batch)

    def _reissue(self, newest: dict[int, Order], issued_at: dict[int, float], batch: int) -> None:
        order = newest[batch]
        newest[batch] = Order(order.version, batch, order.attempt + 1)
        issued_at[batch] = self._clock()
        self._mailbox.offer([newest[batch]])
        self.reissued += 1
