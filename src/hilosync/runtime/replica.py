"""`Replica`: a process's copy of the policy, kept current from the log, and healed when it breaks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.errors import ChainBroken, Diverged, MalformedRecord, PeerSilent, Truncated, WireError
from hilosync.log import Log
from hilosync.plan import AdapterBinding, bind, write_adapter_directory
from hilosync.protocol import Applied, ReplicaMachine, Run
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.checkpoint import Checkpoint, Checkpoints
from hilosync.runtime.disk import Disk, FileDisk
from hilosync.runtime.held import HeldPolicy
from hilosync.runtime.initial import stored_parameters
from hilosync.runtime.joining import open_run
from hilosync.runtime.points import reach
from hilosync.runtime.recovery import Recoverer, Recovery, contradiction, restart
from hilosync.wire import Ticket

__all__ = ["Replica"]

_AT_SIGHT = 8
"""Records that are applied without asking how many follow; they measure the rates to choose by."""

_WORTH_A_CHOICE = 1.0
"""Seconds of replaying that are simply spent; more are compared with what a snapshot would cost."""

_READS = 3
"""Times that a damaged record is read before the damage counts as the log's."""

_REPEATS = 20
"""Times in a row that an earlier record may be the answer before it counts as the log's."""

_CHECKPOINT_STRIDE = 256
"""Records of a long replay after which it has become worth a checkpoint."""

_logger = logging.getLogger("hilosync")


class Replica(HeldPolicy[ReplicaMachine]):
    """Follows a run: reads records by number, verifies and replays them.

    >>> replica = Replica.join("file:runs/demo")
    >>> replica.advance()
    >>> replica.load_into(peft_model)

    Attributes:
        log: the run's stores.
        checks: digests compared so far, one per record applied.
        mismatches: digests that differed.
        recoveries: what was chosen each time that this replica was new, behind or broken.
        snapshots: writes the snapshots that are due at a version that `advance` ends with, beside whatever
            follows; None, as at first, to write none.
        recoverer: chooses; its `on_reading` tells others which snapshot is being read.
    """

    def __init__(
        self,
        log: Log,
        run: Run,
        machine: ReplicaMachine,
        disk: Disk | None = None,
        checkpoint_interval: int | None = None,
        clock: Callable[[], float] | None = None,
    ):
        self.log = log
        self.run = run
        self.checks = 0
        self.mismatches = 0
        self.recoveries: list[Recovery] = []
        self.snapshots: SnapshotWriter | None = None
        self._clock = clock or time.perf_counter
        self.recoverer = Recoverer(log, run, self._clock, disk)
        self._machine = machine
        self._checkpoints = None if disk is None else Checkpoints(disk, "replica", run, checkpoint_interval)
        self._began = False
        self._repeats = 0
        self._healed: set[int] = set()
        self._binding: tuple[Any, AdapterBinding] | None = None

    @classmethod
    def join(
        cls,
        log: str | Ticket | Log,
        wait: float = 0.0,
        *,
        checkpoint: str | Path | Disk | None = None,
        checkpoint_interval: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Replica:
        """Joins a run at its own checkpoint, or at version 0; `advance` does the rest.

        Args:
            log: where the run is: an address such as ``file:runs/demo``, a join ticket, or the path of its file.
            wait: seconds to wait for the run to begin.
            checkpoint: folder that belongs to this replica alone, in which it keeps its state; None for none.
            checkpoint_interval: versions between checkpoints; None for every one of a small adapter.
            clock: monotonic, in seconds; measures the rates by which recovery is chosen; None for
                `time.perf_counter`.

        Raises:
            LogNotFound: there is no run at this address within `wait` seconds.
            BadTicket: the ticket is mistyped, or of a format that this program does not read.
            RunMismatch: the run replays on machines like its learner's only, and this is not one; or the
                checkpoint is another run's; or the run is not the ticket's, as `PlanMismatch` says of the plan.
            DiskUnavailable: the checkpoint cannot be read.
            UnsafeArithmetic: this process does not round as IEEE 754 asks.
        """
        check_arithmetic()
        opened, run = open_run(log, wait)
        disk = FileDisk(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
        machine = ReplicaMachine(run, stored_parameters(opened, run))
        replica = cls(opened, run, machine, disk, checkpoint_interval, clock)
        replica._restore()
        return replica

    @property
    def apply_seconds(self) -> float:
        """Median seconds to verify, decode and replay a record; 0 before the first."""
        return self.recoverer.measurements.apply_seconds

    def advance(self, to: int | None = None, wait: float = 0.0) -> int:
        """Applies records up to version `to`, or to the newest there is, and returns the version held.

        A replica that is far behind, or whose next record has been removed, goes on from a snapshot where
        that is the cheaper way, or the only one.

        Args:
            to: the version to reach; None for whatever is there now.
            wait: seconds to wait for the next record when it is not there yet.

        Raises:
            PeerSilent: version `to` did not appear in time; what was there has been applied.
            Diverged: a record gave other bits than the learner's; this replica must not serve until `heal`.
            TornState: an earlier call was interrupted in the middle of a step; `heal` helps.
            Truncated: the next record has been removed, and no snapshot can be used.
            WireError: a record is damaged or does not follow; the version before it still holds.
        """
        applied = 0
        while to is None or self.version < to:
            data = self._read_next(to, wait)
            if data is None:
                break
            self._apply(data)
            applied += 1
            if applied == _AT_SIGHT:
                self._consider(to)
            elif applied % _CHECKPOINT_STRIDE == 0:
                self._save()
            if to is None:
                wait = 0.0
        self._began = True
        self._save()
        if self.snapshots is not None:
            self.snapshots.offer(self._machine.state, self.version)
        if to is not None and self.version < to:
            raise PeerSilent(f"version {to} did not appear within {wait:.0f} s; the newest is {self.version}")
        return self.version

    def heal(self) -> Recovery | None:
        """After `Diverged` or `TornState`: re-bases, replays the version that failed, and may then serve again.

        Returns:
            What was chosen, or None if nothing was wrong.

        Raises:
            Diverged: the version gave other bits once more, so the fault is not an accident: this machine or
                the log is broken, and the replica must not serve.
            Truncated: there is neither a snapshot nor the records to start from.
        """
        failure = self._machine.failure
        if failure is None:
            return None
        held, failed = self.version, self.version + 1
        if isinstance(failure, Diverged):
            if failed in self._healed:
                raise failure
            self._healed.add(failed)
            if self._checkpoints is not None:
                self._checkpoints.discard("it may hold the bits that diverged")
        _logger.warning("this replica serves nothing until it has started again below version %d: %s", failed, failure)
        restart(self.log, self.run, self._machine)
        self._on_leap()
        self._restore()
        cause = "diverged" if isinstance(failure, Diverged) else "torn"
        recovery = self.recoverer.recover(self._machine, cause, failed, replayable=self._may_replay(), newest_base=held)
        self.recoveries.append(recovery)
        self.advance(to=failed)
        _logger.warning("version %d has been verified again: this replica may serve", failed)
        return recovery

    def load_into(self, model: Any) -> None:
        """Gives a PEFT model the version held, as bf16 copies; the replica's own tensors stay apart.

        Raises:
            PlanError, PlanMismatch: the model's adapter is not the run's.
            Diverged: this replica has diverged and must not serve.
        """
        state = self._sound_state()
        if self._binding is None or self._binding[0] is not model:
            self._binding = (model, bind(model, expected=self.plan, served_as=self.run.genesis.peft))
        self._binding[1].serve(state.params)

    def export(self, directory: str | Path) -> Path:
        """Writes the version held as an adapter directory for PEFT or vLLM, whole or not at all.

        Raises:
            ConfigurationError: the directory exists already.
            Diverged: this replica has diverged and must not serve.
        """
        state = self._sound_state()
        return write_adapter_directory(
            directory,
            self.plan,
            state.params,
            self.run.genesis.peft or {},
            metadata={
                "hilo_run": self.run.genesis.run,
                "hilo_version": str(self.version),
                "hilo_digest": self.digest.hex(),
            },
        )

    def _read_next(self, to: int | None, wait: float) -> bytes | None:
        """The next record, or None if it does not appear in time; from a snapshot on, where it was removed."""
        while True:
            version, started = self.version + 1, self._clock()
            try:
                data = self.log.steps.read(version)
            except Truncated:
                self._recover("truncated", to, replayable=False)
                if to is not None and self.version >= to:
                    return None
                continue
            if data is not None:
                self.recoverer.measurements.record_read(self._clock() - started)
                return data
            return self.log.steps.read(version, wait=wait) if wait > 0 else None

    def _apply(self, data: bytes) -> None:
        reach("before apply")
        started = self._clock()
        try:
            applied = self._receive(data)
        except Diverged:
            self.checks += 1
            self.mismatches += 1
            raise
        except WireError as error:
            raise type(error)(f"record {self.version + 1} of {self.log.url}: {error}") from error
        if not applied.new:
            self._repeats += 1
            if self._repeats < _REPEATS:
                return  # an earlier answer once more
            got = applied.record.version
            raise ChainBroken(f"record {self.version + 1} of {self.log.url}: got record {got} in its place; restore it")
        self._repeats = 0
        self.checks += 1
        self.recoverer.measurements.record_applied(self._clock() - started)
        self._on_applied(applied)
        reach("after apply")

    def _receive(self, data: bytes) -> Applied:
        for _ in range(1, _READS):
            try:
                return self._machine.receive(data)
            except MalformedRecord as error:
                # It may have been damaged on its way, so it is asked for again.
                _logger.warning("record %d of %s is read again: %s", self.version + 1, self.log.url, error)
                data = self.log.steps.read(self.version + 1) or data
        return self._machine.receive(data)

    def _consider(self, to: int | None) -> None:
        """Some records have been applied: is it worth to leap over those that follow?"""
        head = self.log.steps.head(at_least=self.version)
        missing = (head if to is None else min(to, head)) - self.version
        if missing * self.recoverer.measurements.rates.record_seconds >= _WORTH_A_CHOICE:
            self._recover("gap" if self._began else "start", to, replayable=True)

    def _recover(self, cause: str, to: int | None, replayable: bool) -> None:
        recovery = self.recoverer.follow(self._machine, cause, to, replayable=replayable)
        self.recoveries.append(recovery)
        if recovery.choice.kind == "snapshot":
            self._on_leap()

    def _on_applied(self, applied: Applied) -> None:
        """A record has been applied."""

    def _on_leap(self) -> None:
        """The state held no longer follows, record by record, from the one before."""

    def _may_replay(self) -> bool:
        try:
            self.log.steps.read(self.version + 1)
        except Truncated:
            return False
        return True

    def _restore(self) -> None:
        """Goes on from the checkpoint, if there is one that the log does not contradict."""
        checkpoint = None if self._checkpoints is None else self._checkpoints.load()
        if checkpoint is None or self._checkpoints is None:
            return
        why = contradiction(self.log, self.run, checkpoint.position)
        if why is not None:
            self._checkpoints.discard(why)
            return
        self._machine.rebase(checkpoint.state, checkpoint.position)
        _logger.info("went on from the checkpoint of version %d", self.version)

    def _save(self) -> None:
        if self._checkpoints is not None and self._checkpoints.due(self.version):
            self._checkpoints.save(Checkpoint(self._machine.state, self._machine.position))
