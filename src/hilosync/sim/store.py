"""The storage behind a simulated log, and each process's unreliable way to it.

The log's own code (`ObjectStepLog`, `ObjectBlobStore`, `ObjectSnapshotIndex`, `ObjectMailbox`) runs for real on these
objects; each of its requests can fail, be repeated, be answered without an acknowledgement, or arrive late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hilosync.errors import LogUnavailable
from hilosync.log import Log, Polling, StepLog
from hilosync.log.blobs import ObjectBlobStore
from hilosync.log.mailbox import ObjectMailbox
from hilosync.log.snapshots import ObjectSnapshotIndex
from hilosync.log.steps import ObjectStepLog
from hilosync.sim.volume import Volume, flipped
from hilosync.sim.world import Process

__all__ = ["ADDRESS", "SimulatedObjects", "SimulatedStorage", "open_simulated_log"]

ADDRESS = "simulated:run"

_TIMEOUT = 2.0
"""Seconds after which a request that is not answered is given up."""

_LATEST = 40.0
"""Seconds within which a delayed request arrives."""


class SimulatedStorage:
    """The machine that stores the objects of a log: it serves one request after the other."""

    def __init__(self, volume: Volume | None = None):
        self.volume = volume or Volume()
        self._removed: set[str] = set()

    def create(self, path: str, content: bytes, durable: bool, late: bool = False) -> bool:
        """See `NamedObjects.create`.

        A request that arrives late does not create again what was removed meanwhile: retention spans far more than
        the seconds that a request can be under way.
        """
        if self.volume.read(path) is not None or (late and path in self._removed):
            return False
        self._write(path, content, durable)
        return True

    def replace(self, path: str, content: bytes, durable: bool) -> None:
        """See `NamedObjects.replace`."""
        self._write(path, content, durable)

    def names(self, folder: str) -> list[str]:
        """See `NamedObjects.names`."""
        prefix = f"{folder}/"
        return [name.removeprefix(prefix) for name in self.volume.names() if name.startswith(prefix)]

    def remove(self, path: str) -> None:
        """See `NamedObjects.remove`."""
        self._removed.add(path)
        self.volume.remove(path)

    def _write(self, path: str, content: bytes, durable: bool) -> None:
        self.volume.write(path, content)
        if durable:
            self.volume.sync(path)
            self.volume.sync_names()


class SimulatedObjects:
    """`NamedObjects` as one process reaches them."""

    def __init__(self, storage: SimulatedStorage, process: Process):
        self.url = ADDRESS
        self._storage = storage
        self._process = process
        self._life = process.life
        self._world = process.world

    def get(self, path: str) -> bytes | None:
        """See `NamedObjects.get`."""
        self._request(f"get {path}")
        content = self._storage.volume.read(path)
        folder, _, name = path.partition("/")
        checked = folder == "blobs" or (folder == "snapshots" and name.isdigit())
        if content and checked and self._world.strikes("corrupted_copy"):
            self._world.count("corrupted copy")
            self._world.note(self._process.name, f"gets a damaged copy of {path}")
            return flipped(content, self._world.random)
        return content

    def exists(self, path: str) -> bool:
        """See `NamedObjects.exists`."""
        self._request(f"head {path}")
        return self._storage.volume.read(path) is not None

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """See `NamedObjects.create`."""
        return self._write(
            f"create {path}", lambda late: self._storage.create(path, content, durable, late), repeatable=True
        )

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """See `NamedObjects.replace`."""
        self._write(f"replace {path}", lambda late: self._storage.replace(path, content, durable))

    def names(self, folder: str) -> list[str]:
        """See `NamedObjects.names`."""
        self._request(f"list {folder}")
        names = self._storage.names(folder)
        self._world.random.shuffle(names)
        return names

    def remove(self, path: str) -> None:
        """See `NamedObjects.remove`."""
        self._write(f"remove {path}", lambda late: self._storage.remove(path))

    def wait_for(self, path: str, polling: Polling, wait: float) -> bytes | None:
        """The object's bytes as soon as it exists, or None after `wait` virtual seconds."""
        return polling.until(lambda: self.get(path), wait)

    def _request(self, what: str) -> None:
        self._process.operation(what, self._life)
        if self._world.now < self._process.cut_off_until:
            self._fail("partitioned request", f"no way to the log: {what}")
        if self._world.strikes("unavailable"):
            self._fail("unavailable", f"no answer to: {what}")

    def _write(self, what: str, effect: Callable[[bool], Any], repeatable: bool = False) -> Any:
        world = self._world
        self._request(what)
        if repeatable and world.strikes("delayed"):
            world.at(world.random.uniform(0, _LATEST), None, lambda: effect(True))
            self._fail("delayed request", f"under way, no answer yet: {what}")
        answer = effect(False)
        if repeatable and world.strikes("duplicated"):
            # As a library below does that retries: the answer is the second one's.
            world.count("duplicated request")
            answer = effect(False)
        if world.strikes("lost_acknowledgement"):
            self._fail("lost acknowledgement", f"done, but its acknowledgement is lost: {what}")
        self._process.operation(f"done: {what}", self._life)
        return answer

    def _fail(self, kind: str, message: str) -> None:
        self._world.count(kind)
        self._world.now += _TIMEOUT
        raise LogUnavailable(f"simulated: {message}")


class _Answers:
    """A step log whose answers to one process come in another order, twice, or with a bit flipped."""

    def __init__(self, steps: StepLog, process: Process):
        self._steps = steps
        self._process = process
        self._world = process.world

    def append(self, version: int, record: bytes) -> None:
        self._steps.append(version, record)

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        world = self._world
        if version > 1 and world.strikes("reordered"):
            other = version + world.random.choice((-1, 1))
            answer = self._steps.read(other)
            if answer is not None:
                world.count("reordered answer")
                world.note(self._process.name, f"asked for record {version}, gets {other}")
                return answer
        answer = self._steps.read(version, wait)
        if answer is not None and world.strikes("corrupted_copy"):
            world.count("corrupted copy")
            world.note(self._process.name, f"gets a damaged copy of record {version}")
            return flipped(answer, world.random)
        return answer

    def head(self, at_least: int = 0) -> int:
        return self._steps.head(at_least)

    def highest(self) -> int:
        return self._steps.highest()

    def forget(self, before: int) -> None:
        self._steps.forget(before)


def open_simulated_log(storage: SimulatedStorage, process: Process) -> Log:
    """The run's log as one process sees it; a new one for every life of the process."""
    objects: Any = SimulatedObjects(storage, process)
    polling = Polling(shortest=0.05, longest=0.4)
    return Log(
        url=ADDRESS,
        steps=_Answers(ObjectStepLog(objects, polling), process),
        blobs=ObjectBlobStore(objects),
        snapshots=ObjectSnapshotIndex(objects),
        mailbox=ObjectMailbox(objects, polling),
        polling=polling,
    )
