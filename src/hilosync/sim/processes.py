"""Learner and replicas as processes of the simulation: the real `Learner` and `Replica`, one event at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from hilosync.compress import Compressor
from hilosync.errors import (
    DiskUnavailable,
    Diverged,
    Fenced,
    LogNotFound,
    LogUnavailable,
    PeerSilent,
    Truncated,
    WireError,
)
from hilosync.log import Log
from hilosync.optim import Optimizer, PolicyState
from hilosync.runtime import Learner, Notice, Replica
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.retention import retain
from hilosync.runtime.snapshots import write_snapshot
from hilosync.sim.checker import Checker, Member
from hilosync.sim.model import fresh_model, gradient
from hilosync.sim.store import SimulatedStorage, open_simulated_log
from hilosync.sim.volume import SimulatedDisk, Volume
from hilosync.sim.world import Process, World

__all__ = ["LearnerProcess", "Node", "ReplicaProcess", "Setting"]

_PASSING = (LogUnavailable, LogNotFound, Truncated, WireError, PeerSilent, DiskUnavailable)
"""Errors after which a process tries again; any other one is a finding."""


@dataclass(frozen=True)
class Setting:
    """What the processes of one simulation share.

    Attributes:
        seed: of the run.
        storage: the machine with the log.
        optimizer: of the run.
        compressor: of the run.
        anchor_interval: versions between two snapshots.
        keep_recent: snapshots that retention keeps.
        checkpoint_interval: versions between two checkpoints of a process.
    """

    seed: int
    storage: SimulatedStorage
    optimizer: Optimizer
    compressor: Compressor
    anchor_interval: int
    keep_recent: int
    checkpoint_interval: int
    new_volume: Callable[[], Volume] = Volume


class Node(Process):
    """A process on a machine of its own, with a disk, which a supervisor starts again when it has died.

    Attributes:
        volume: its disk.
        wanted: whether it is started again when it has died.
        damaged: whether its disk has ever been damaged, or full.
        last_error: what it met last, for the report.
        member: what the checker remembers of it.
    """

    period = 5.0

    def __init__(self, world: World, name: str, setting: Setting):
        super().__init__(world, name)
        self.setting = setting
        self.volume = setting.new_volume()
        self.wanted = False
        self.damaged = False
        self.last_error = ""
        self.member = Member(name, {})

    def start(self) -> None:
        """Starts the process, unless it runs or nobody wants it any more."""
        if not self.alive and self.wanted:
            self.begin()
            self.world.count("start")
            self.world.note(self.name, f"starts life {self.life}")
            self._schedule(self.life)

    def ended(self) -> None:
        """Forgets everything but the disk."""
        self.world.at(self.world.random.uniform(2.0, 20.0), None, self.start)

    def lose_power(self) -> None:
        """Its machine stops: the process dies, and the disk keeps what was synced."""
        self.kill()
        lost = self.volume.crash(self.world.random)
        self.world.note(self.name, f"loses power; {lost} files were lost, torn or came back")

    def _schedule(self, life: int) -> None:
        def tick() -> None:
            if self.alive and self.life == life:
                self._schedule(life)
                self.guarded(self.tick)

        self.world.at(self.period * self.world.random.uniform(0.7, 1.3), self, tick)

    def guarded(self, action: Callable[[], None]) -> None:
        """Does something that may fail for now."""
        try:
            action()
        except _PASSING as error:
            self.last_error = f"{type(error).__name__}: {error}"
            self.world.count(f"error: {type(error).__name__}")
            self.world.note(self.name, self.last_error)

    def tick(self) -> None:
        """What the process does now and then."""
        raise NotImplementedError

    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """Version, digest and tensors of what would be served now; None for one that serves nothing."""
        raise NotImplementedError

    def open(self) -> tuple[Log, SimulatedDisk]:
        """The log and the disk as this life sees them."""
        life = self.life

        def operation(what: str) -> None:
            self.operation(what, life)
            if what.startswith("write") and self.world.strikes("disk_full"):
                self.world.count("disk full")
                self.damaged = True
                raise DiskUnavailable(f"simulated: no space left on the disk of {self.name}: {what}")

        disk = SimulatedDisk(self.volume, operation)
        return open_simulated_log(self.setting.storage, self), disk


class LearnerProcess(Node):
    """Begins or resumes the run, then publishes a step now and then until it is told to rest.

    Attributes:
        learner: the real one, while the process lives.
        resting: whether it publishes no more.
    """

    def __init__(self, world: World, name: str, setting: Setting, checker: Checker):
        super().__init__(world, name, setting)
        self.learner: Learner | None = None
        self.resting = False
        self._checker = checker

    def ended(self) -> None:
        """See `Node.ended`."""
        self.learner = None
        super().ended()

    def tick(self) -> None:
        """One step; the first tick begins or resumes the run."""
        try:
            if self.learner is None:
                self.learner = self._begin_or_resume()
            elif not self.resting:
                self._step(self.learner)
        except Fenced as error:
            self.world.count("fenced")
            self.world.note(self.name, f"is fenced and stops: {error}")
            self.wanted = False
            self.kill()

    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """See `Node.held`; nothing while a proposal waits for the log."""
        machine = None if self.learner is None else self.learner._machine
        if machine is None or machine.pending is not None:
            return None
        return machine.version, machine.digest, machine.state

    def _step(self, learner: Learner) -> None:
        if learner.flush() is None:
            learner.publish(gradient(self.setting.seed, learner.version + 1, self.life))
        self._checker.remember_residual(self.name, learner)

    def _begin_or_resume(self) -> Learner:
        log, disk = self.open()
        setting = self.setting
        shared: dict[str, Any] = {
            "optimizer": setting.optimizer,
            "compressor": setting.compressor,
            "log": log,
            "anchor_interval": setting.anchor_interval,
            "keep_recent": setting.keep_recent,
            "checkpoint": disk,
            "checkpoint_interval": setting.checkpoint_interval,
        }
        if log.steps.read(0) is None:
            learner = Learner(fresh_model(), seed=setting.seed, **shared)
        else:
            learner = Learner.resume(fresh_model(), **shared)
            assert learner.resumed is not None
            self.world.count(f"resumed, residual {learner.resumed.residual}")
            self._checker.check_resumption(self.name, learner, lossless=self.lossless())
        self._checker.claim_epoch(learner._machine.epoch, f"{self.name} life {self.life}", self.name)
        return learner

    def lossless(self) -> bool:
        """Whether its disk holds all that it ever made: a checkpoint at every version, none of them damaged."""
        return self.setting.checkpoint_interval == 1 and not self.damaged


class ReplicaProcess(Node):
    """Joins the run, then follows it, heals when it has diverged, and may write snapshots."""

    def __init__(self, world: World, name: str, setting: Setting, writes_snapshots: bool):
        super().__init__(world, name, setting)
        self.replica: Replica | None = None
        self._writes_snapshots = writes_snapshots
        self._writer: SnapshotWriter | None = None
        self._beat = 0
        self._reading = 0

    def ended(self) -> None:
        """See `Node.ended`."""
        self.replica = self._writer = None
        self._reading = 0
        super().ended()

    def tick(self) -> None:
        """Joins, or applies what there is, and says what it holds."""
        if self.replica is None:
            self.replica = self._join()
        known = len(self.replica.recoveries)
        try:
            self.replica.advance()
        except Diverged as error:
            self.world.note(self.name, f"stops serving: {error}")
            self._heal(self.replica)
        finally:
            for recovery in self.replica.recoveries[known:]:
                self.world.count(f"recovery: {recovery.cause}, {recovery.choice.kind}")
        self._say(self.replica)
        if self._writer is not None:
            self._writer.offer(self.replica._machine.state, self.replica.version)

    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """See `Node.held`."""
        machine = None if self.replica is None else self.replica._machine
        if machine is None or machine.failure is not None:
            return None
        return machine.version, machine.digest, machine.state

    def truncate(self) -> None:
        """Keeps the newest snapshot and what follows it, whoever may be reading older ones."""

        def action() -> None:
            if self.replica is not None:
                self.world.count("truncation")
                left = retain(self.replica.log, self.replica.run, 1, lambda: ())
                self.world.note(self.name, f"truncates: {left}")

        self.world.at(0.0, self, lambda: self.guarded(action))

    def flip(self) -> None:
        """A bit of the replica's memory flips."""
        held, random = self.held(), self.world.random
        if self.replica is None or held is None or self.inside:
            return
        state = held[2]
        buffer = random.choice(state.buffers())
        element = random.randrange(buffer.numel())
        buffer.view(torch.int32)[element] ^= 1 << random.randrange(31)
        plan = self.replica.plan
        block = next(index for index, end in enumerate(plan.offsets[1:]) if element < end)
        self.member.flipped.setdefault(self.replica.version, set()).add(plan.blocks[block].name)
        self.world.count("bit flip")
        self.world.note(self.name, f"a bit of {plan.blocks[block].name} flips at version {self.replica.version}")
        if random.random() < 0.4:
            self.world.at(0.0, self, lambda: self.guarded(self._store))

    def _store(self) -> None:
        """Writes a snapshot just now, perhaps of a state with a flipped bit, which must be refused."""
        held = self.held()
        if self.replica is None or held is None or held[0] == 0:
            return
        try:
            write_snapshot(self.replica.log, self.replica.run, held[2].clone(), held[0])
        except Diverged:
            if held[0] not in self.member.flipped:
                raise
            self.world.count("snapshot of a flipped bit refused")

    def _heal(self, replica: Replica) -> None:
        try:
            replica.heal()
            self.world.count("healed")
        except Diverged as error:
            # A second accident at the same version: it gives up, and its operator starts it again.
            self.world.note(self.name, f"gives up: {error}")
            self.kill()

    def _join(self) -> Replica:
        log, disk = self.open()
        replica = Replica.join(
            log,
            checkpoint=disk,
            checkpoint_interval=self.setting.checkpoint_interval,
            clock=lambda: self.world.now,
        )

        def on_reading(version: int) -> None:
            self._reading = version
            self._say(replica)

        replica.recoverer.on_reading = on_reading
        if self._writes_snapshots:
            self._writer = SnapshotWriter(log, replica.run, self.setting.anchor_interval, self.setting.keep_recent)
        return replica

    def _say(self, replica: Replica) -> None:
        self._beat += 1
        notice = Notice(
            sender=self.name,
            incarnation=f"{self.name}-{self.life}",
            beat=self._beat,
            state="serving",
            version=replica.version,
            digest=replica.digest.hex(),
            reading=self._reading,
        )
        replica.log.mailbox.post(self.name, msgspec.json.encode(notice))
