"""Anchors: a snapshot every so many versions, written while the run goes on.

Whoever holds a version hands its state in. All that it waits for is a copy; a thread stores the copy and
then removes what is older than the retention. Whatever goes wrong there is reported and not raised: a run
without a snapshot is slower to join, a run that stopped for one is worse.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from hilosync.errors import ConfigurationError, HiLoError
from hilosync.log import Log
from hilosync.optim import PolicyState
from hilosync.protocol import Run
from hilosync.runtime.presence import Notice, Presence
from hilosync.runtime.retention import Retained, retain
from hilosync.runtime.snapshots import write_snapshot

__all__ = ["SnapshotReport", "SnapshotWriter"]

_logger = logging.getLogger(__name__)

_GRACE = 60.0
"""Seconds of silence after which a reader counts as dead; more than dispatching allows, for its chunks are removed."""


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """What became of one snapshot.

    Attributes:
        version: the policy version.
        published: whether this process made it visible; False if it was there already, or failed.
        stored_bytes: bytes of its chunks and manifest; 0 if it was there already.
        copy_seconds: how long the run was held up.
        seconds: how long storing it and removing older ones took beside the run.
        retained: what the retention left; None without one, or if it was not reached.
        error: what failed, for people; empty if nothing did.
    """

    version: int
    published: bool = False
    stored_bytes: int = 0
    copy_seconds: float = 0.0
    seconds: float = 0.0
    retained: Retained | None = None
    error: str = ""


class SnapshotWriter:
    """Writes the snapshots of a run at every multiple of `interval`, one at a time."""

    def __init__(self, log: Log, run: Run, interval: int, keep_recent: int | None = None):
        """Prepares to write.

        Args:
            log: the run's stores, which this writer uses from a thread of its own.
            run: the run.
            interval: versions between two snapshots, 1 or more.
            keep_recent: snapshots that stay; the records before the oldest of them are removed as well.
                None to remove nothing.

        Raises:
            ConfigurationError: `interval` or `keep_recent` is below 1.
        """
        for name, value in (("anchor_interval", interval), ("keep_recent", keep_recent)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} = {value}: expected 1 or more")
        self._log = log
        self._run = run
        self._interval = interval
        self._keep_recent = keep_recent
        self._presence = Presence(log.mailbox)
        self._lock = threading.Lock()
        self._reports: list[SnapshotReport] = []
        self._thread: threading.Thread | None = None
        self._newest = 0

    def offer(self, state: PolicyState, version: int) -> bool:
        """Takes a copy of the state and begins to store it, if a snapshot of this version is due.

        Args:
            state: parameters and slots of `version`; the caller may change them once this returns.
            version: the version.

        Returns:
            Whether it has begun. A version is taken once. A snapshot that is due while the one before is
            still being written is left out, and reported.
        """
        if version <= self._newest or version % self._interval:
            return False
        self._newest = version
        if self._thread is not None and self._thread.is_alive():
            self._report(SnapshotReport(version, error="left out: the snapshot before it is still being written"))
            return False
        start = time.perf_counter()
        try:
            copy = state.clone()
        except (MemoryError, RuntimeError) as error:  # torch raises the latter when memory is short
            self._report(SnapshotReport(version, error=f"no memory for a copy of the state: {error}"))
            return False
        copied = time.perf_counter() - start
        self._thread = threading.Thread(
            target=self._write, args=(copy, version, copied), name=f"hilo-snapshot-{version}", daemon=True
        )
        self._thread.start()
        return True

    def take_reports(self) -> list[SnapshotReport]:
        """What was finished, or left out, since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def close(self, wait: float = 60.0) -> bool:
        """Waits for the snapshot that is being written; False if that took longer than `wait` seconds.

        What is not finished when the process ends is never seen: its manifest comes last.
        """
        if self._thread is not None:
            self._thread.join(timeout=wait)
        return self._thread is None or not self._thread.is_alive()

    def _write(self, state: PolicyState, version: int, copied: float) -> None:
        start = time.perf_counter()
        published, stored, retained, failure = False, 0, None, ""
        try:
            written = write_snapshot(self._log, self._run, state, version)
            published, stored = written.published, written.stored_bytes
            if self._keep_recent is not None:
                retained = retain(self._log, self._run, self._keep_recent, self._readers)
        except HiLoError as error:
            failure = f"{type(error).__name__}: {error}"
        except Exception as error:
            # Nothing that befalls a snapshot may end the run, not even a fault of this program.
            _logger.exception("snapshot %d", version)
            failure = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - start
        self._report(SnapshotReport(version, published, stored, copied, seconds, retained, failure))

    def _readers(self) -> list[Notice]:
        return self._presence.look().living(_GRACE)

    def _report(self, report: SnapshotReport) -> None:
        if report.error:
            _logger.warning(
                "snapshot %d of %s: %s; the next one is due at version %d",
                report.version,
                self._log.url,
                report.error,
                report.version + self._interval,
            )
        else:
            _logger.info("snapshot %d of %s: %d bytes", report.version, self._log.url, report.stored_bytes)
        with self._lock:
            self._reports.append(report)
