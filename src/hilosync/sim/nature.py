"""What befalls the processes and the storage from outside, drawn from the seed."""

from __future__ import annotations

from collections.abc import Sequence

from hilosync.sim.following import ReplicaProcess
from hilosync.sim.learning import LearnerProcess
from hilosync.sim.store import SimulatedStorage
from hilosync.sim.world import World

__all__ = ["Nature"]


class Nature:
    """Kills, cuts off, corrupts, and brings replicas and learners in and out."""

    def __init__(
        self,
        world: World,
        storage: SimulatedStorage,
        learners: Sequence[LearnerProcess],
        replicas: Sequence[ReplicaProcess],
    ):
        self._world = world
        self._random = world.random
        self._storage = storage
        self._learners = learners
        self._replicas = replicas
        # One kind of permanent damage at a time: where the log is truncated, a state whose every copy is
        # damaged is lost, and no program can bring it back.
        self._damage = self._random.choice((self._damage_checkpoint, self._damage_chunk))

    def begin(self, until: float) -> None:
        """Starts the first processes and schedules what will befall them before the moment `until`."""
        for process in (self._learners[0], *self._replicas[: self._random.randint(1, 3)]):
            self._want(process)
        events = (
            self._kill, self._kill, self._power, self._storage_power, self._partition, self._join, self._leave,
            self._truncate, self._second_learner, self._flip, self._flip, self._damage,
        )  # fmt: skip
        for _ in range(self._random.randint(1, 10)):
            self._world.at(self._random.uniform(5.0, until), None, self._random.choice(events))
        self._supervise()

    def calm(self) -> None:
        """Ends all partitions."""
        for process in (*self._learners, *self._replicas):
            process.cut_off_until = 0.0

    def _supervise(self) -> None:
        """An operator starts a learner again when none is left."""
        if not any(learner.wanted for learner in self._learners):
            self._want(self._random.choice(self._learners))
        self._world.at(15.0, None, self._supervise)

    def _want(self, process: LearnerProcess | ReplicaProcess) -> None:
        process.wanted = True
        process.start()

    def _process(self) -> LearnerProcess | ReplicaProcess | None:
        running = [process for process in (*self._learners, *self._replicas) if process.alive]
        return self._random.choice(running) if running else None

    def _kill(self) -> None:
        if (process := self._process()) is not None:
            self._world.count("kill")
            self._world.note("nature", f"kills {process.name}")
            process.kill()

    def _power(self) -> None:
        if (process := self._process()) is not None:
            self._world.count("power failure")
            process.lose_power()

    def _storage_power(self) -> None:
        lost = self._storage.volume.crash(self._random)
        self._world.count("power failure of the storage")
        self._world.note("nature", f"the storage loses power; {lost} files were lost, torn or came back")

    def _partition(self) -> None:
        if (process := self._process()) is not None:
            seconds = self._random.uniform(5.0, 40.0)
            process.cut_off_until = self._world.now + seconds
            self._world.count("partition")
            self._world.note("nature", f"cuts {process.name} off for {seconds:.0f} s")

    def _join(self) -> None:
        absent = [replica for replica in self._replicas if not replica.wanted]
        if absent:
            self._world.count("join")
            self._want(absent[0])

    def _leave(self) -> None:
        present = [replica for replica in self._replicas if replica.wanted]
        if len(present) > 1:
            replica = self._random.choice(present)
            self._world.count("leave")
            self._world.note("nature", f"{replica.name} leaves")
            replica.wanted = False
            replica.kill()

    def _second_learner(self) -> None:
        self._world.count("second learner")
        self._want(self._random.choice(self._learners))

    def _flip(self) -> None:
        following = [replica for replica in self._replicas if replica.held() is not None]
        if following:
            self._random.choice(following).flip()

    def _truncate(self) -> None:
        """Someone keeps the newest snapshot only, and asks no reader."""
        running = [replica for replica in self._replicas if replica.held() is not None]
        if running:
            self._random.choice(running).truncate()

    def _damage_checkpoint(self) -> None:
        if (process := self._process()) is not None and (names := process.volume.names()):
            name = self._random.choice(sorted(names))
            process.volume.corrupt(name, self._random)
            process.damaged = True
            self._world.count("damaged checkpoint")
            self._world.note("nature", f"flips a bit of {name} of {process.name}")

    def _damage_chunk(self) -> None:
        names = sorted(name for name in self._storage.volume.names() if name.startswith("blobs/"))
        if names:
            name = self._random.choice(names)
            self._storage.volume.corrupt(name, self._random)
            self._world.count("damaged chunk")
            self._world.note("nature", f"flips a bit of {name[:22]}…")
