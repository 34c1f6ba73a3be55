"""What must hold after every event, whatever has failed: the promises of the log, checked against a fold of its own.

The checker sees the storage from outside, without faults, and keeps the state of every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hilosync.errors import Diverged
from hilosync.optim import PolicyState
from hilosync.protocol import ReplicaMachine, Run
from hilosync.runtime import Learner, Pace
from hilosync.sim.rollouts import Rollouts
from hilosync.sim.store import SimulatedStorage
from hilosync.sim.world import World
from hilosync.wire import decode_record

__all__ = ["Checker", "Member", "Violation"]


class Violation(SystemExit):
    """A promise was broken: the simulation ends with a finding, which no handler of the code under test may hide."""


@dataclass
class Member:
    """What the checker remembers of one replica, over all its lives.

    Attributes:
        name: the process.
        flipped: versions at which a bit of its state was flipped, and the tensors it was in.
    """

    name: str
    flipped: dict[int, set[str]]


class Checker:
    """The reference: all records that ever existed, and the state after each.

    Attributes:
        history: the records by version, the genesis first.
        divergences: replicas that noticed a flipped bit.
    """

    def __init__(self, world: World, storage: SimulatedStorage, pace: Pace | None):
        self.history: list[bytes] = []
        self.divergences = 0
        self._world = world
        self._storage = storage
        self._pace = pace
        self._fold: ReplicaMachine | None = None
        self._bits: list[tuple[bytes, list[bytes]]] = []
        self._seen = -1
        self._epochs: dict[int, tuple[str, str]] = {}
        self._authors: list[str] = []
        self._planned: dict[tuple[int, int], Sequence[Rollouts]] = {}
        self._used: dict[tuple[int, int], int] = {}
        self._residuals: dict[tuple[str, int], bytes] = {}

    @property
    def head(self) -> int:
        """The newest version that the storage has."""
        return len(self.history) - 1

    def owns(self, machine: ReplicaMachine) -> bool:
        """Whether it is the checker's own fold."""
        return machine is self._fold

    def claim_epoch(self, epoch: int, life: str, learner: str) -> None:
        """A life of a learner has taken an epoch, which must be its alone."""
        owner = self._epochs.setdefault(epoch, (life, learner))
        if owner != (life, learner):
            raise Violation(f"epoch {epoch:#x} was taken twice: by {owner[0]} and by {life}")

    def remember_residual(self, learner: str, made: Learner) -> None:
        """What E is after a version that a learner has made."""
        self._residuals[learner, made.version] = _residual(made)

    def plan_rollouts(self, epoch: int, version: int, used: Sequence[Rollouts]) -> None:
        """A learner is about to make a step from a version with these; they count once the log has its record."""
        self._planned[epoch, version + 1] = used

    def check_resumption(self, name: str, learner: Learner, lossless: bool) -> None:
        """A learner says truly what became of E, and loses nothing of it if its disk holds everything.

        Args:
            name: of its process.
            learner: it has just resumed.
            lossless: whether its disk has kept a checkpoint at every version.
        """
        self.look_at_the_log()
        assert learner.resumed is not None
        author = self._authors[learner.version]
        exact = learner.resumed.residual == "exact"
        known = self._residuals.get((name, learner.version))
        if exact and author == name and known is not None and known != _residual(learner):
            raise Violation(f"{name} says that E of version {learner.version} is exact, but it is another one")
        if lossless and author == name and not exact:
            raise Violation(
                f"{name} wrote version {learner.version} and all checkpoints, yet: {learner.resumed.summary}"
            )

    def look_at_the_log(self) -> None:
        """The history only grows at its end; what was removed lies below the mark; each record has one author."""
        read = self._storage.volume.read
        if self._storage.volume.changes == self._seen:
            return
        self._seen = self._storage.volume.changes
        mark = int(read("steps/oldest") or 0)
        # Of two who forget at the same time the slower may move the mark back; then the records tell.
        present = [version for version in range(mark, len(self.history)) if read(_path(version)) is not None]
        mark = min(present, default=mark)
        for version, record in enumerate(self.history):
            found = read(_path(version))
            if found is not record and found != record and (found is not None or not 0 < version < mark):
                what = "has vanished" if found is None else "has other bytes than before"
                raise Violation(f"record {version} {what}; the oldest version kept is {mark}")
        while (record := read(_path(len(self.history)))) is not None:
            self._extend(record)

    def check_state(self, member: Member, version: int, digest: bytes, state: PolicyState) -> None:
        """A replica that would serve holds the learner's digest, and the very bits of the reference."""
        if version > self.head:
            raise Violation(f"{member.name} holds version {version}, the log ends at {self.head}")
        expected, bits = self._bits[version]
        if digest != expected:
            raise Violation(
                f"{member.name} has digest {digest.hex()[:16]}… at version {version}, not {expected.hex()[:16]}…"
            )
        if _bits(state) != bits and version not in member.flipped:
            raise Violation(f"{member.name} serves version {version} with other bits than the log's")

    def check_divergence(self, member: Member, before: int, error: Diverged) -> None:
        """Only a replica with a flipped bit may diverge, and it names the tensor."""
        tensors = member.flipped.get(before, set()) | member.flipped.get(error.version, set())
        if not tensors:
            raise Violation(f"{member.name} diverged although none of its bits was flipped: {error}")
        if not tensors & set(error.tensors):
            raise Violation(f"{member.name} blames {error.tensors}; the flipped bit is in {sorted(tensors)}")
        self.divergences += 1

    def _extend(self, record: bytes) -> None:
        version, author = len(self.history), ""
        if self._fold is None:
            self._fold = ReplicaMachine(Run.of(record))
        else:
            epoch = decode_record(record).epoch
            if epoch not in self._epochs:
                raise Violation(f"record {version} has epoch {epoch:#x}, which no learner has taken")
            self._fold.receive(record)  # checks that epochs never decrease
            life, author = self._epochs[epoch]
            self._check_rollouts(epoch, version)
            self._world.note("log", f"version {version} by {life}, epoch {epoch >> 32}")
        self._authors.append(author)
        self.history.append(record)
        self._bits.append((self._fold.digest, _bits(self._fold.state)))

    def _check_rollouts(self, epoch: int, version: int) -> None:
        """What a step used is as many batches as it should, none twice, none too old, all of policies in the log."""
        if self._pace is None:
            return
        used = self._planned.get((epoch, version), ())
        if len(used) != self._pace.batches:
            raise Violation(f"version {version} was made with {len(used)} batches, expected {self._pace.batches}")
        for rollouts in used:
            key = (rollouts.version, rollouts.batch)
            if self._used.setdefault(key, version) != version:
                raise Violation(f"batch {key} is used twice: for version {self._used[key]} and for {version}")
            if not version - 1 - self._pace.max_staleness <= rollouts.version <= rollouts.held <= version - 1:
                raise Violation(f"version {version} was made with rollouts of another one: {rollouts}")
            if rollouts.digest != self._bits[rollouts.held][0].hex():
                raise Violation(f"version {version} was made with rollouts of an unknown policy: {rollouts}")


def _bits(state: PolicyState) -> list[bytes]:
    return [buffer.numpy().tobytes() for buffer in state.buffers()]


def _residual(learner: Learner) -> bytes:
    return learner._machine.residual.numpy().tobytes()


def _path(version: int) -> str:
    return f"steps/{version:020d}"
