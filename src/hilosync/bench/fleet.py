"""One learner and its workers as processes at places of a network, and what they tell while records are sent."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from hilosync.bench.arrivals import Arrivals, Sent
from hilosync.bench.peers import SCALARS
from hilosync.bench.processes import end_processes
from hilosync.errors import MalformedRecord, PeerSilent
from hilosync.wire import record_overhead

__all__ = ["Fleet", "Loopback", "Place"]

_LEARNER = "learner"
_TO_START = 120.0


class Place(Protocol):
    """Where processes run and are reached: this machine, or a site behind a link."""

    @property
    def address(self) -> str:
        """The address at which a server here is reached from everywhere."""
        ...

    def popen(self, arguments: Sequence[str], /, **options: Any) -> subprocess.Popen[Any]:
        """Starts a process here; options as for `subprocess.Popen`."""
        ...


class Loopback:
    """This machine, without a link to anywhere."""

    address = "127.0.0.1"

    def popen(self, arguments: Sequence[str], /, **options: Any) -> subprocess.Popen[Any]:
        """See `Place.popen`."""
        return subprocess.Popen(arguments, **options)


class Fleet:
    """Processes that have found each other: every worker has read the genesis.

    Attributes:
        arrivals: of all records so far.
        workers: names of the workers.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        learner: tuple[Place, str],
        workers: Sequence[tuple[Place, str]],
        environment: Mapping[str, str],
        blocks: int,
        seed: int,
    ):
        """Starts the processes, which end with the stack.

        Args:
            stack: ends them.
            folder: where what they say on standard error goes.
            learner: where it runs, and the address of its log.
            workers: where each runs, and the address at which it reads.
            environment: variables that the logs need.
            blocks: tensors of the adapter.
            seed: of the records' bytes.

        Raises:
            PeerSilent: one of them ended, or they have not begun within two minutes.
        """
        self.workers = tuple(f"worker-{number}" for number in range(1, len(workers) + 1))
        self.arrivals = Arrivals(self.workers)
        self._folder = folder
        self._blocks = blocks
        self._environment = os.environ | {"OMP_NUM_THREADS": "1", **environment}
        self._heard: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hearers: list[threading.Thread] = []
        self._snapshots: dict[str, dict[str, Any]] = {}
        stack.callback(self._end)
        self._start(_LEARNER, learner[0], [learner[1], str(blocks), str(seed)])
        self._until(lambda: 0 in self.arrivals.sent, _TO_START, "the learner to begin")
        for name, (place, address) in zip(self.workers, workers, strict=True):
            self._start(name, place, [address])
        self.wait_for(0, _TO_START)

    @property
    def version(self) -> int:
        """The newest record that the learner has appended."""
        return max(self.arrivals.sent)

    def append(self, size: int, limit: float) -> int:
        """Has the learner append a record of `size` bytes; returns its version, once the append has returned.

        Raises:
            PeerSilent: it has not within `limit` seconds.
        """
        version = self.version + 1
        self._say(_LEARNER, payload=size - record_overhead(self._blocks, 1, SCALARS))
        self._until(lambda: version in self.arrivals.sent, limit, f"the learner to append version {version}")
        return version

    def wait_for(self, version: int, limit: float) -> None:
        """Waits until every worker has a record, and all before it.

        Raises:
            PeerSilent: they have not within `limit` seconds.
        """
        self._until(lambda: self.arrivals.newest() >= version, limit, f"all workers to read version {version}")

    def listen(self, seconds: float) -> None:
        """Takes in what is said for a while."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._take(remaining)

    def share_snapshot(self, size: int, limit: float) -> tuple[int, list[float]]:
        """Has the learner store a snapshot, and then all workers fetch it at once.

        Args:
            size: bytes of it, roughly.
            limit: seconds for either.

        Returns:
            Its bytes, and seconds from the call to fetch it until each worker had it, ascending.

        Raises:
            PeerSilent: it took longer.
            MalformedRecord: a worker got other bytes than were stored.
        """
        self._snapshots.clear()
        self._say(_LEARNER, snapshot=size)
        self._until(lambda: _LEARNER in self._snapshots, limit, "the learner to store a snapshot")
        begun = time.monotonic()
        for worker in self.workers:
            self._say(worker, snapshot=self.version)
        self._until(lambda: len(self._snapshots) == 1 + len(self.workers), limit, "all workers to fetch a snapshot")
        stored = self._snapshots.pop(_LEARNER)["bytes"]
        if any(told["bytes"] != stored for told in self._snapshots.values()):
            raise MalformedRecord(f"a worker's snapshot has other than the {stored} bytes that were stored")
        return stored, sorted(told["at"] - begun for told in self._snapshots.values())

    def _start(self, name: str, place: Place, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "hilosync.bench.peers", name.partition("-")[0], *arguments]
        with self._said_by(name).open("wb") as errors:
            process = place.popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=self._environment
            )
        self._processes[name] = process
        assert process.stdout is not None
        self._hearers.append(threading.Thread(target=self._hear, args=(name, process.stdout), daemon=True))
        self._hearers[-1].start()

    def _end(self) -> None:
        end_processes(self._processes.values())
        for process in self._processes.values():
            with suppress(OSError):  # what it was not told any more
                assert process.stdin is not None
                process.stdin.close()
        for hearer in self._hearers:
            hearer.join()

    def _hear(self, name: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._heard.put((name, json.loads(line)))
        self._heard.put((name, None))

    def _say(self, name: str, **command: int) -> None:
        stream = self._processes[name].stdin
        assert stream is not None
        try:
            stream.write(json.dumps(command).encode() + b"\n")
            stream.flush()
        except OSError as error:
            raise self._ended(name) from error

    def _until(self, done: Callable[[], bool], limit: float, waiting_for: str) -> None:
        deadline = time.monotonic() + limit
        while not done():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise PeerSilent(f"waited {limit:.0f} s for {waiting_for}: {self._standing()}")
            self._take(remaining)

    def _take(self, limit: float) -> None:
        try:
            name, event = self._heard.get(timeout=limit)
        except queue.Empty:
            return
        if event is None:
            raise self._ended(name)
        if "fault" in event:
            raise PeerSilent(f"{name} stopped: {event['fault']}")
        if "snapshot" in event:
            self._snapshots[name] = event
        elif name == _LEARNER:
            sent = Sent(event["hash"], event["bytes"], event["begun"], event["at"])
            self.arrivals.sent[event["version"]] = sent
        else:
            self.arrivals.add(name, event["version"], event["hash"], event["at"])

    def _ended(self, name: str) -> PeerSilent:
        lines = self._said_by(name).read_text("utf-8", errors="replace").splitlines()
        return PeerSilent(f"{name} ended: {' '.join(lines[-3:]) or 'no word from it'}")

    def _standing(self) -> str:
        behind = {name: read[-1][0] if read else None for name, read in self.arrivals.read.items()}
        return "the newest versions that they have are " + ", ".join(f"{name}: {v}" for name, v in behind.items())

    def _said_by(self, name: str) -> Path:
        return self._folder / f"{name}.log"
