"""Processes of the simulation: machines with a disk, on which the real code runs one event at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from hilosync.compress import Compressor
from hilosync.errors import DiskUnavailable, LogNotFound, LogUnavailable, PeerSilent, Truncated, WireError
from hilosync.log import Log
from hilosync.optim import Optimizer, PolicyState
from hilosync.runtime import Pace
from hilosync.sim.checker import Member
from hilosync.sim.store import SimulatedStorage, open_simulated_log
from hilosync.sim.volume import SimulatedDisk, Volume
from hilosync.sim.world import Process, World

__all__ = ["Node", "Setting"]

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
        pace: of the rollouts that each step uses; None for a run whose gradients come from nowhere.
        new_volume: makes the disk of a machine.
    """

    seed: int
    storage: SimulatedStorage
    optimizer: Optimizer
    compressor: Compressor
    anchor_interval: int
    keep_recent: int
    checkpoint_interval: int
    pace: Pace | None
    new_volume: Callable[[], Volume] = Volume


class Node(Process, ABC):
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

    @abstractmethod
    def tick(self) -> None:
        """What the process does now and then."""

    @abstractmethod
    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """Version, digest and tensors of what would be served now; None for one that serves nothing."""

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
