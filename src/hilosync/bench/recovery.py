"""Kills the processes of a real run at every named point, and measures what that costs and whether anything is lost.

Two runs of the demo's task with the same seed: an undisturbed one, and one whose learner and first worker
die by SIGKILL at one point after the other and are started again. In lockstep both must end with the same
bits. Late joins are timed on the undisturbed run, which keeps all its records.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from hilosync.bench.processes import end_processes
from hilosync.errors import LogNotFound, PeerSilent, Truncated
from hilosync.log import Log, StepLog, open_log
from hilosync.runtime import LEARNER, Presence, Replica
from hilosync.runtime.points import KILL_VARIABLE, POINTS

__all__ = ["LEARNER_POINTS", "WORKER_POINTS", "run_recovery"]

LEARNER_POINTS = tuple(point for point in POINTS if not point.endswith("deliver"))
"""Where a learner is killed."""

WORKER_POINTS = tuple(point for point in POINTS if not point.endswith("append"))
"""Where a worker is killed."""

_PATIENCE = 300.0
"""Seconds without a new record after which a run counts as stuck."""

_JOINS = 5
"""Late joins of either kind; the median counts."""


def run_recovery(
    folder: Path,
    versions: int = 18,
    problems: int = 40,
    learner_points: Sequence[str] = LEARNER_POINTS,
    worker_points: Sequence[str] = WORKER_POINTS,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Runs both, and compares.

    Args:
        folder: new; both runs stay in it.
        versions: policy versions of each run; a killed learner makes at most one in each of its lives.
        problems: held-out problems at the end of a run.
        learner_points: where the learner is killed, one after the other.
        worker_points: where the first of two workers is killed.
        progress: called with a line per event.

    Returns:
        `kills`, `points_not_reached`, `divergences`, `lost_records` (seen in the log once, and gone or
        changed at the end though retention kept them), `duplicate_rollouts_used`, `digests_equal` (of both
        runs' last versions), `pass_at_1` of both, `recover_s_median` (process start until it serves again),
        `join_s_median` and `join_bytes` by each way, `replay_versions_per_s`.

    Raises:
        PeerSilent: a run is stuck; its processes' output is in `folder`.
    """
    folder.mkdir(parents=True)
    calm = _RunOfProcesses(folder / "undisturbed", versions, problems, ["--anchor-interval", "4"], progress)
    undisturbed = calm.make()
    killed = _RunOfProcesses(
        folder / "killed",
        versions,
        problems,
        ["--anchor-interval", "2", "--keep-recent", "2"],
        progress,
        {LEARNER: list(learner_points), "worker-1": list(worker_points)},
    )
    disturbed = killed.make()
    joins = _time_joins(open_log(f"file:{calm.folder}"), versions)
    return {
        "versions": versions,
        "kills": sum(killed.kills.values()),
        "points_not_reached": [f"{name} {point}" for name, points in killed.points.items() for point in points],
        "divergences": disturbed["digest_mismatches"],
        "lost_records": killed.lost_records(),
        "duplicate_rollouts_used": killed.duplicates(),
        "digests_equal": undisturbed["final_digest"] == disturbed["final_digest"],
        "final_digest": disturbed["final_digest"],
        "pass_at_1": {"undisturbed": undisturbed["pass_at_1"]["end"], "killed": disturbed["pass_at_1"]["end"]},
        "recover_s_median": statistics.median(killed.recoveries) if killed.recoveries else None,
        **joins,
    }


@dataclass
class _RunOfProcesses:
    """A learner and two workers on one log; whoever dies by SIGKILL is started again.

    Attributes:
        points: by process, where it is still to be killed.
        kills: by process.
        recoveries: seconds from a new start to the first notice of it.
    """

    folder: Path
    versions: int
    problems: int
    options: list[str]
    progress: Callable[[str], None]
    points: dict[str, list[str]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen: dict[int, bytes] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, tuple[float, str]] = {}

    def make(self) -> dict[str, Any]:
        """Makes the versions; returns the learner's summary."""
        self.folder.mkdir()
        with ExitStack() as stack:
            self._stack = stack
            self._start(LEARNER)
            for name in ("worker-1", "worker-2"):
                self._start(name)
            moved_at, log, presence = time.monotonic(), None, None
            while self._processes[LEARNER].poll() != 0:
                time.sleep(0.05)
                if log is None:
                    log = self._opened()
                    presence = Presence(log.mailbox) if log is not None else None
                if log is not None and presence is not None:
                    moved_at = time.monotonic() if self._observe(log.steps) else moved_at
                    self._note_recoveries(presence)
                self._restart_the_dead(presence)
                if time.monotonic() - moved_at > _PATIENCE:
                    raise PeerSilent(
                        f"no new record for {_PATIENCE:.0f} s: what the processes said is in {self.folder}-*.log"
                    )
            if log is not None:
                self._observe(log.steps)
        return json.loads(Path(f"{self.folder}-{LEARNER}.out").read_text().splitlines()[-1])

    def lost_records(self) -> int:
        """Records that were in the log once, and that are not, or not the same, though they should be kept."""
        steps = open_log(f"file:{self.folder}").steps
        oldest = next(version for version in range(1, self.versions + 1) if _present(steps, version))
        return sum(
            blake3(steps.read(version) or b"").digest() != found
            for version, found in self._seen.items()
            if version >= oldest
        ) + sum(version not in self._seen for version in range(1, self.versions + 1))

    def duplicates(self) -> int:
        """Batches of rollouts that went into more than one version, by what the learner notes of every step."""
        used: Counter[tuple[int, int]] = Counter()
        for line in (self.folder / "steps.jsonl").read_text().splitlines():
            used.update(tuple(order) for order in json.loads(line)["rollout/orders"])
        return sum(count - 1 for count in used.values())

    def _opened(self) -> Log | None:
        try:
            return open_log(f"file:{self.folder}")
        except LogNotFound:
            return None

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "hilosync", *(self._learn() if name == LEARNER else self._work(name))]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment.pop(KILL_VARIABLE, None)
        if self.points.get(name):
            environment[KILL_VARIABLE] = self.points[name][0]
        with (
            Path(f"{self.folder}-{name}.out").open("wb") as output,
            Path(f"{self.folder}-{name}.log").open("ab") as errors,
        ):
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        self._stack.callback(end_processes, [process])
        self._processes[name] = process

    def _learn(self) -> list[str]:
        address = f"file:{self.folder}"
        if self._opened() is not None:
            return ["learn", address, "--json", "--resume"]
        sizes = ["--versions", self.versions, "--problems", self.problems, "--evaluate-every", self.versions]
        return ["learn", address, "--json", "--patience", "120", *self.options, *map(str, sizes)]

    def _work(self, name: str) -> list[str]:
        options = ["--name", name, "--snapshots", "3", "--checkpoint", f"{self.folder}-checkpoints"]
        return ["work", f"file:{self.folder}", *options, "--patience", "120"]

    def _restart_the_dead(self, presence: Presence | None) -> None:
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code in (None, 0):
                continue
            if code != -signal.SIGKILL:
                raise PeerSilent(f"{name} ended with code {code}: what it said is in {self.folder}-{name}.log")
            self.kills[name] += 1
            self.progress(f"{name} was killed {self.points[name].pop(0)}; {len(self.points[name])} points to go")
            notice = presence.look().notice(name) if presence is not None else None
            self._started[name] = (time.monotonic(), notice.incarnation if notice else "")
            self._start(name)

    def _note_recoveries(self, presence: Presence) -> None:
        roll = presence.look()
        for name, (started, incarnation) in list(self._started.items()):
            notice = roll.notice(name)
            if notice is not None and notice.incarnation != incarnation:
                self.recoveries.append(time.monotonic() - started)
                del self._started[name]

    def _observe(self, steps: StepLog) -> bool:
        """Notes the hashes of records that are new; whether there was one."""
        before = len(self._seen)
        for version in range(max(self._seen, default=0) + 1, steps.head() + 1):
            if _present(steps, version):
                self._seen[version] = blake3(steps.read(version) or b"").digest()
        return len(self._seen) > before


def _time_joins(log: Log, versions: int) -> dict[str, Any]:
    """Joins a finished run by replay alone, and by whatever way is chosen."""
    found: dict[str, Any] = {"join_s_median": {}, "join_bytes": {}}
    for way, snapshots in (("replay", _NoSnapshots()), ("chosen", log.snapshots)):
        seconds, sizes = [], []
        for _ in range(_JOINS):
            counted = _Counted(log)
            view = replace(log, steps=counted, blobs=counted, snapshots=snapshots)  # type: ignore[arg-type]
            started = time.perf_counter()
            replica = Replica.join(view)
            replica.advance(to=versions)
            seconds.append(time.perf_counter() - started)
            sizes.append(counted.bytes)
        found["join_s_median"][way] = statistics.median(seconds)
        found["join_bytes"][way] = statistics.median(sizes)
    found["replay_versions_per_s"] = versions / found["join_s_median"]["replay"]
    return found


class _Counted:
    """Steps and blobs of a log, with the bytes that were read."""

    def __init__(self, log: Log):
        self._log = log
        self.bytes = 0

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        data = self._log.steps.read(version, wait)
        self.bytes += len(data or b"")
        return data

    def get(self, key: str) -> bytes:
        content = self._log.blobs.get(key)
        self.bytes += len(content)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log.steps, name)


class _NoSnapshots:
    def versions(self) -> list[int]:
        return []


def _present(steps: StepLog, version: int) -> bool:
    try:
        return steps.read(version) is not None
    except Truncated:
        return False
