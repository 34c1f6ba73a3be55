"""Brings a replica's machine to a version by the cheaper way, and reports what was chosen and why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hilosync.errors import HiLoError, LogUnavailable, MalformedRecord, Truncated
from hilosync.log import Log
from hilosync.protocol import Choice, Measurements, Position, ReplicaMachine, Run, choose
from hilosync.runtime.disk import Disk
from hilosync.runtime.initial import stored_parameters
from hilosync.runtime.snapshots import SnapshotLoader
from hilosync.wire import decode_record, record_hash

__all__ = ["Recoverer", "Recovery", "contradiction", "refuse_hole", "restart"]

Answer = TypeVar("Answer")

_LOOKS = 5
"""Times that a way is looked for while snapshots come and go."""

_logger = logging.getLogger("hilosync")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was chosen when a replica was behind, new or broken.

    Attributes:
        cause: ``start``, ``gap``, ``truncated``, ``diverged`` or ``torn``.
        held: the version held before.
        choice: the way taken, with the estimates of both.
        seconds: time until `choice.base` was held; replaying what follows comes on top.
        fetched_bytes: of the snapshots that were read.
        refused: snapshots that could not be used, with the reasons.
    """

    cause: str
    held: int
    choice: Choice
    seconds: float
    fetched_bytes: int
    refused: tuple[str, ...]


class Recoverer:
    """Chooses and fetches; keeps the measurements that it chooses by.

    Attributes:
        measurements: of reading and applying records, and of reading chunks.
        on_reading: called with the version of a snapshot that is about to be read, and with 0 when that is
            over, so that others keep it and the records that it needs.
    """

    def __init__(self, log: Log, run: Run, clock: Callable[[], float], cache: Disk | None = None):
        """Prepares; `clock` is monotonic, in seconds, and `cache` keeps the chunks of an unfinished load."""
        self.measurements = Measurements()
        self.on_reading: Callable[[int], None] | None = None
        self._log = log
        self._run = run
        self._clock = clock
        self._cache = cache

    def follow(self, machine: ReplicaMachine, cause: str, to: int | None, *, replayable: bool) -> Recovery:
        """`recover` on the way to version `to`, or to the newest; looks again where retention was quicker.

        Raises:
            Truncated, LogUnavailable: as `recover`.
        """
        for _ in range(1, _LOOKS):
            snapshots = self._log.snapshots.versions()
            try:
                return self.recover(machine, cause, self._target(machine, to), replayable=replayable)
            except Truncated:
                if self._log.snapshots.versions() == snapshots:
                    raise
        return self.recover(machine, cause, self._target(machine, to), replayable=replayable)

    def recover(
        self, machine: ReplicaMachine, cause: str, target: int, *, replayable: bool, newest_base: int | None = None
    ) -> Recovery:
        """Chooses how `machine` comes to `target`, and takes it to the version that replaying starts from.

        A snapshot that is damaged, incomplete or contradicts the log is passed over for the next older one.

        Args:
            machine: stands at the version that a replay would start from.
            cause: for the report.
            target: the version to reach.
            replayable: whether the record after the machine's version is still there.
            newest_base: newest version of a snapshot that may be used; None for `target`.

        Raises:
            Truncated: there is no way; says why each snapshot was refused.
            LogUnavailable: the storage did not answer.
        """
        started, held = self._clock(), machine.version
        newest_base = target if newest_base is None else newest_base
        usable = [v for v in self._log.snapshots.versions() if held < v <= newest_base]
        refused: list[str] = []
        fetched_bytes = 0
        while True:
            if not usable:
                choice = self._choose(held, target, replayable, usable, 0, refused)
                break
            self._announce(usable[-1])
            loader = SnapshotLoader(self._log, self._run, usable[-1], self._cache)
            try:
                if replayable and not self.measurements.knows_bandwidth:
                    self._measured(loader, loader.load_first)
                choice = self._choose(held, target, replayable, usable, loader.fetched_bytes, refused)
                if choice.kind == "snapshot":
                    machine.rebase(*self._measured(loader, loader.load))
                fetched_bytes += loader.fetched_bytes
                break
            except LogUnavailable:
                raise
            except HiLoError as error:
                _logger.warning("snapshot %d cannot be used: %s", usable[-1], error)
                refused.append(f"snapshot {usable.pop()} cannot be used: {error}")
                fetched_bytes += loader.fetched_bytes
        self._announce(0)
        recovery = Recovery(cause, held, choice, self._clock() - started, fetched_bytes, tuple(refused))
        _logger.info("%s at version %d: %s", cause, held, choice.why)
        return recovery

    def _target(self, machine: ReplicaMachine, to: int | None) -> int:
        head = self._log.steps.head(at_least=machine.version)
        return head if to is None else min(to, head)

    def _choose(
        self, held: int, target: int, replayable: bool, usable: list[int], fetched_bytes: int, refused: list[str]
    ) -> Choice:
        state_bytes = 4 * self._run.plan.size * (1 + len(self._run.optimizer.slots))
        try:
            return choose(
                held,
                target,
                replayable=replayable,
                snapshots=usable,
                state_bytes=max(0, state_bytes - fetched_bytes),
                rates=self.measurements.rates,
            )
        except Truncated as error:
            raise Truncated(f"{self._log.url}: {error}{''.join(f'; {why}' for why in refused)}") from None

    def _measured(self, loader: SnapshotLoader, fetch: Callable[[], Answer]) -> Answer:
        started, before = self._clock(), loader.fetched_bytes
        answer = fetch()
        if loader.fetched_bytes > before:
            self.measurements.chunk_read(loader.fetched_bytes - before, self._clock() - started)
        return answer

    def _announce(self, version: int) -> None:
        if self.on_reading is not None:
            self.on_reading(version)


def restart(log: Log, run: Run, machine: ReplicaMachine) -> None:
    """Puts a machine back to version 0, whatever it held.

    Raises:
        LogNotFound, MalformedRecord: the stored adapter that the run starts from is gone or damaged.
    """
    state, digest = run.initial_state(stored_parameters(log, run))
    machine.rebase(state, Position(0, digest, run.origin, 0))


def contradiction(log: Log, run: Run, position: Position) -> str | None:
    """Why the log says that there is no such position, or None if it does not say so.

    A record that has been removed, damaged or mistaken for another says nothing; the one after it will, by
    naming its predecessor.
    """
    version = position.version
    try:
        record = log.steps.read(version)
        if version > 0 and record is not None and decode_record(record, run.limits).version != version:
            return None  # the answer to another question
    except (Truncated, MalformedRecord):
        return None
    if record is None:
        return f"it holds version {version}, and {log.url} ends at version {log.steps.head()}"
    found = record_hash(record)
    if found != position.previous:
        return (
            f"it follows a record {version} with hash {position.previous.hex()[:16]}…, and {log.url} holds one with "
            f"{found.hex()[:16]}…"
        )
    return None


def refuse_hole(log: Log, missing: int, later: int) -> None:
    """Refuses to go on where a record was lost: records are appended in order, so a later one shows it.

    Args:
        log: the run's stores.
        missing: the version that is needed next.
        later: a version whose record is there; one below `missing` shows nothing.

    Raises:
        LogUnavailable: record `missing` is not there.
    """
    if later >= missing and log.steps.read(missing) is None:
        raise LogUnavailable(
            f"{log.url}: record {missing} is missing, and record {later} is there, so it has been lost: restore it "
            "from another copy of the log"
        )
