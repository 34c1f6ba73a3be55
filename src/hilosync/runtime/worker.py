"""The worker's side of the rollouts: keep current, take an order, answer it, and never hang.

It knows nothing of tasks or models: `answer` is handed a replica at the order's version, or at a later
one if it holds that already, and returns bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hilosync.errors import ConfigurationError, Diverged, PeerSilent, TornState, Truncated
from hilosync.log import Delivery, Order
from hilosync.runtime.dispatch import Limits
from hilosync.runtime.points import reach
from hilosync.runtime.presence import LEARNER, Heartbeat, Notice, Presence, Roll
from hilosync.runtime.recovery import refuse_hole
from hilosync.runtime.replica import Replica

__all__ = ["Worker"]


class Worker:
    """Serves one run until its learner says that it is finished.

    Attributes:
        answered: number of orders answered.
    """

    def __init__(
        self,
        replica: Replica,
        name: str,
        answer: Callable[[Replica, Order], bytes],
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if name == LEARNER or not 1 <= len(name) <= 48:
            raise ConfigurationError(
                f"a worker cannot be named {name[:60]!r}: expected 1 to 48 characters, and not {LEARNER!r}, "
                "which is the learner's own name in the mailbox"
            )
        self.answered = 0
        self._replica = replica
        self._name = name
        self._incarnation = f"{name}-{os.urandom(4).hex()}"
        self._answer = answer
        self._limits = limits or Limits()
        self._clock = clock

    def run(self, watch: Callable[[Notice], None] | None = None) -> int:
        """Serves until the learner has finished, and returns the final version.

        Args:
            watch: called with this worker's notice after every version, for a display.

        Raises:
            PeerSilent: the learner's heartbeat stopped, or the learner failed; says what it last said.
            Diverged: this replica's bits differ again after it has been healed; its notice says so before.
        """
        mailbox = self._replica.log.mailbox
        notice = Notice(sender=self._name, incarnation=self._incarnation, beat=0, state="serving")
        presence = Presence(mailbox, self._clock)
        begun = self._clock()
        # Last words that are there already may be those of a learner in whose place another is about to start.
        found = presence.look().notice(LEARNER)
        earlier = found.incarnation if found is not None and found.state == "failed" else None
        with Heartbeat(mailbox, notice) as heartbeat:
            self._replica.recoverer.on_reading = lambda snapshot: heartbeat.update(reading=snapshot)
            while True:
                order = mailbox.take(self._incarnation, wait=0.1)
                roll = presence.look()
                learner = roll.notice(LEARNER)
                self._advance(heartbeat, watch, order, self._idle_goal(roll))
                # One that is already past the version answers with what it holds, and says so.
                if order is not None and order.version <= self._replica.version:
                    content = self._answer(self._replica, order)
                    reach("before deliver")
                    mailbox.deliver(Delivery(self._incarnation, order, content))
                    reach("after deliver")
                    self.answered += 1
                if learner is not None and learner.state == "finished" and self._replica.version >= learner.version:
                    heartbeat.update(state="finished")
                    return self._replica.version
                failed = learner if learner is not None and learner.state == "failed" else None
                # Neither may a learner that was replaced while it hung end the run with its last words: they
                # count once nobody else has spoken in that name for a while.
                fresh = failed is not None and failed.incarnation != earlier
                silence = min(roll.silence(LEARNER), self._clock() - begun)
                if silence > (min(self._limits.silence, self._limits.patience) if fresh else self._limits.patience):
                    raise PeerSilent(self._why(failed, silence))

    def _why(self, failed: Notice | None, silence: float) -> str:
        version = self._replica.version
        if failed is not None:
            return (
                f"the learner failed at version {failed.version}: {failed.detail}; version {version} is the newest "
                "published, and its record is safe in the log: start the learner again (--resume), then this worker"
            )
        return (
            f"nothing heard from the learner for {silence:.0f} s; version {version} is the newest published, and its "
            "record is safe in the log: start the learner again, then this worker"
        )

    def _idle_goal(self, roll: Roll) -> int | None:
        """The version that a worker without an order goes to; None for the newest.

        While the learner lives, not beyond the oldest order that may still come: an order answered
        with a later version than its own makes a run that does not repeat itself.
        """
        learner = roll.notice(LEARNER)
        lives = learner is not None and roll.alive(learner.incarnation, self._limits.silence)
        return learner.oldest if learner is not None and lives and learner.oldest >= 0 else None

    def _advance(
        self,
        heartbeat: Heartbeat,
        watch: Callable[[Notice], None] | None,
        order: Order | None,
        idle_goal: int | None,
    ) -> None:
        before = self._replica.version
        try:
            if order is not None:
                self._replica.advance(to=order.version, wait=self._limits.silence)
            else:
                self._replica.advance(to=idle_goal)
        except PeerSilent:
            # The order may overtake the record where the two are stored apart. One whose
            # record does not come is dropped: the learner offers a batch that it misses again.
            log = self._replica.log
            if order is not None and log.steps.read(order.version) is not None:
                refuse_hole(log, self._replica.version + 1, order.version)
        except (Diverged, TornState) as error:
            self._heal(heartbeat, error)
        except Truncated:
            # That version can be had no more; a later one can, and is what an order is then answered with.
            self._replica.advance()
        version = self._replica.version
        if version == before and heartbeat.notice.digest:
            return
        heartbeat.update(
            version=version,
            digest=self._replica.digest.hex(),
            checks=self._replica.checks,
            apply_seconds=self._replica.apply_seconds,
        )
        if watch is not None:
            watch(heartbeat.notice)

    def _heal(self, heartbeat: Heartbeat, error: Diverged | TornState) -> None:
        """Says what differs, and serves nothing until the version that failed has been verified again."""
        replica = self._replica
        heartbeat.update(state="diverged", mismatches=replica.mismatches, checks=replica.checks, detail=str(error))
        try:
            replica.heal()
        except Diverged as again:
            heartbeat.update(state="failed", mismatches=replica.mismatches, checks=replica.checks, detail=str(again))
            raise
        heartbeat.update(state="serving", detail="")
