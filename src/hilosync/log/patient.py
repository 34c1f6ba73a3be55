"""Outliving a log that is out of reach: the same call again, until it answers or a limit is over.

Every call of a log may be repeated, so an outage of the network or of the service need not end a run. What the
log refuses (a full disk, a forbidden write) is an error at once: only `LogUnreachable` is waited for.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hilosync.errors import ConfigurationError, LogUnreachable
from hilosync.log.base import BlobStore, Log, Mailbox, SnapshotIndex, StepLog

__all__ = ["Patience"]

Answer = TypeVar("Answer")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0

_PROMPT = 5.0
"""Seconds beyond what a call was told to wait within which it still counts as prompt."""

_WAITING = {"collect", "read", "take"}
"""Calls whose second argument, if any, is the seconds that they may wait."""

_logger = logging.getLogger("hilosync")


class Patience:
    """How long a process puts up with a log that does not answer, and a clock that leaves that time out.

    Whoever measures the silence of others by `clock` does not take an outage of the log for the death of all
    others: it stands still while a call takes longer than it was told to wait and five seconds more.
    """

    def __init__(
        self,
        limit: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Prepares.

        Args:
            limit: seconds after which a call that meets no answer gives up; 0 to give up at once.
            clock: monotonic, in seconds.
            sleep: waits for some seconds.

        Raises:
            ConfigurationError: the limit is no finite number of seconds.
        """
        if not 0 <= limit < float("inf"):
            raise ConfigurationError(f"outage: expected a finite number of seconds, 0 or more, got {limit}")
        self._limit = limit
        self._now = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._overdue: dict[object, float] = {}
        self._stood = 0.0
        self._looked = clock()
        self._given_up = False

    def wrap(self, log: Log) -> Log:
        """The same log, whose calls wait until it is within reach again."""
        return Log(
            url=log.url,
            steps=cast(StepLog, _Patient(log.steps, self)),
            blobs=cast(BlobStore, _Patient(log.blobs, self)),
            snapshots=cast(SnapshotIndex, _Patient(log.snapshots, self)),
            mailbox=cast(Mailbox, _Patient(log.mailbox, self)),
            polling=log.polling,
        )

    def clock(self) -> float:
        """Seconds by the clock, without those that the log has cost."""
        with self._lock:
            now = self._look()
            return now - self._stood

    def call(self, work: Callable[[], Answer], wait: float = 0.0) -> Answer:
        """Does `work`, which may wait for `wait` seconds, and again for as long as the log is out of reach.

        Raises:
            LogUnreachable: it still is when the limit is over. From then until something succeeds, calls
                give up at once: the process is about to end.
        """
        begun, pause = self._now(), _SHORTEST_PAUSE
        token = object()
        with self._lock:
            self._look()
            self._overdue[token] = begun + wait + _PROMPT
        try:
            while True:
                try:
                    answer = work()
                except LogUnreachable as error:
                    waited = self._now() - begun
                    if self._given_up or waited >= self._limit:
                        self._given_up = True
                        raise LogUnreachable(f"{error}; given up after {waited:.0f} s") from error
                    if pause == _SHORTEST_PAUSE:
                        _logger.warning("%s; waiting for the log, at most %.0f s", error, self._limit)
                    # Many processes lose a log at the same moment, and should not all come back in one.
                    self._sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._given_up = False
                    if pause > _SHORTEST_PAUSE:
                        _logger.warning("the log answers again after %.0f s", self._now() - begun)
                    return answer
        finally:
            with self._lock:
                self._look()
                del self._overdue[token]

    def _look(self) -> float:
        """Adds the time since the last look in which some call was overdue. The lock must be held."""
        now = self._now()
        if self._overdue:
            self._stood += max(0.0, now - max(min(self._overdue.values()), self._looked))
        self._looked = now
        return now


class _Patient:
    """A store of a log, every call of which is made with patience."""

    def __init__(self, inner: object, patience: Patience):
        self._inner = inner
        self._patience = patience

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*given: Any, **named: Any) -> Any:
            wait = named.get("wait", given[1] if name in _WAITING and len(given) > 1 else 0.0)
            return self._patience.call(lambda: method(*given, **named), wait)

        return call
