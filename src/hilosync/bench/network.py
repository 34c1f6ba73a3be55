"""Times records and whole adapters from a learner to all its workers, over each kind of log and each network.

Every process is real. The learner and the log's server stand at one place, all workers at another: on this machine
without a link, or behind one that is shaped. Whole adapters travel as the full synchronization sends them, as one
record each: a file, a bucket's object, or messages of 4 MiB of NATS.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hilosync.bench.fleet import Fleet, Loopback, Place
from hilosync.bench.links import Link, Network, Site, network_missing
from hilosync.bench.log_places import LOG_KINDS, place_log
from hilosync.bench.peers import SCALARS
from hilosync.bench.shapes import adapter_plan
from hilosync.compress.budget import budget_bytes
from hilosync.errors import BudgetTooSmall, UnknownName
from hilosync.wire import record_overhead

__all__ = ["NETWORKS", "Sizes", "model_sizes", "run_network"]

NETWORKS = ("loopback", "link", "lossy")
"""None between the places; a link with a rate and a delay; one with jitter and loss as well."""

_LEAST_SECONDS = 120.0
_SLOWEST_MBIT = 1.0
"""A link on which records come slower than this, all workers together, counts as silent."""


@dataclass(frozen=True)
class Sizes:
    """What is sent.

    Attributes:
        record: bytes of a record with a compressed gradient.
        adapter: bytes of a record with the whole adapter.
        blocks: tensors of the adapter.
    """

    record: int
    adapter: int
    blocks: int


def model_sizes(model: str = "qwen3-1.7b", rank: int = 64, budget: str = "1.6%") -> Sizes:
    """The sizes for a model's LoRA adapter.

    Raises:
        UnknownName: there is no such model in `bench.shapes`.
        ConfigurationError: the budget cannot be read.
        BudgetTooSmall: no record is that small.
    """
    plan = adapter_plan(model, rank)
    blocks = len(plan.blocks)
    size, overhead = budget_bytes(budget, plan), record_overhead(blocks, 1, SCALARS)
    if size < overhead:
        raise BudgetTooSmall(
            f"a record of {blocks} tensors has at least {overhead} bytes, got {size}; raise the budget"
        )
    return Sizes(size, overhead + plan.adapter_bytes, blocks)


def run_network(
    sizes: Sizes,
    kinds: Sequence[str] = LOG_KINDS,
    networks: Sequence[str] = NETWORKS,
    link: Link | None = None,
    workers: int = 8,
    records: int = 40,
    adapters: int = 2,
    pause: float = 2.0,
    partition: float = 20.0,
    seed: int = 0,
    progress: Callable[[int, int, str], None] = lambda done, total, message: None,
) -> dict[str, Any]:
    """Sends records, then whole adapters, then records while the link is cut.

    Args:
        sizes: of record and adapter.
        kinds: of logs, from `LOG_KINDS`. A file is read on the learner's own machine only.
        networks: from `NETWORKS`.
        link: between the two places; by default 62.5 Mbit/s, 40 ms ± 10 ms each way, and of 100 packets 1 is lost.
        workers: how many.
        records: of each series; every one is appended when all workers have had the one before for a while.
        adapters: of each series.
        pause: seconds of that while, on average: steps take seconds, and readers ask the less often the longer
            they wait.
        partition: seconds for which the link is cut while a record is appended every `pause`; 0 for never.
        seed: of the bytes.
        progress: called with what is done, of how much, and a line of text.

    Returns:
        `rows`: for each network and log `record_s_median` and `record_s_p99` (from the call of append until the
        last worker had read and verified it), `record_worker_s_median` (until the median worker had),
        `append_s_median` (until append returned), the same for `adapter_s_median`, `adapter_worker_s_median`,
        `speedup` (adapter over record), `partition` (null without one; `records`, and `recover_s` from its end
        until all workers had all of them) and `faults` (records `lost`, `repeated`, `out_of_order`, `changed`,
        over all workers). `missing`: what was not measured, and why. `nothing_lost`: whether all faults are 0.

    Raises:
        UnknownName: no such kind of log or network.
        PeerSilent: a process ended, or a record took absurdly long.
    """
    for names, known, what in ((kinds, LOG_KINDS, "kind of log"), (networks, NETWORKS, "network")):
        for name in names:
            if name not in known:
                raise UnknownName(what, name, known)
    link = link or Link(mbit=62.5, delay_ms=40, jitter_ms=10, loss=0.01)
    links = {"loopback": None, "link": Link(link.mbit, link.delay_ms), "lossy": link}
    wanted = [(name, kind) for name in networks for kind in kinds]
    missing = [{"network": name, "log": kind, "why": why} for name, kind in wanted if (why := _why_not(name, kind))]
    measured = [pair for pair in wanted if not _why_not(*pair)]
    total = len(measured) * (records + adapters)
    rows: list[dict[str, Any]] = []
    for name, kind in measured:

        def tell(
            done: int, message: str, before: int = len(rows) * (records + adapters), kind: str = kind, name: str = name
        ):
            progress(before + done, total, f"{name}, {kind}: {message}")

        with _fleet(kind, links[name], sizes, workers, seed) as (fleet, site):
            series = _Series(fleet, sizes, random.Random(seed), pause, tell)
            rows.append({"network": name, "log": kind} | series.measure(records, adapters, partition, site))
    return {
        "record_bytes": sizes.record,
        "adapter_bytes": sizes.adapter,
        "workers": workers,
        "link": {"mbit": link.mbit, "delay_ms": link.delay_ms, "jitter_ms": link.jitter_ms, "loss": link.loss},
        "rows": rows,
        "missing": missing,
        "nothing_lost": all(not any(row["faults"].values()) for row in rows),
    }


@dataclass
class _Series:
    """The records of one kind of log over one network."""

    fleet: Fleet
    sizes: Sizes
    random: random.Random
    pause: float
    tell: Callable[[int, str], None]

    def measure(self, records: int, adapters: int, partition: float, site: Site | None) -> dict[str, Any]:
        """Sends all of them, and says how long they took."""
        self.tell(0, f"{records} records of {self.sizes.record:,} bytes")
        small = [self._send(number, self.sizes.record) for number in range(1, records + 1)]
        self.tell(records, f"{adapters} adapters of {self.sizes.adapter:,} bytes")
        large = [self._send(records + number, self.sizes.adapter) for number in range(1, adapters + 1)]
        cut = self._cut(partition, site) if site is not None and partition > 0 else None
        arrivals = self.fleet.arrivals
        figures: dict[str, Any] = {}
        for what, versions in (("record", small), ("adapter", large)):
            last = [arrivals.last(version) for version in versions]
            figures[f"{what}_s_median"] = median(last)
            if what == "record":
                figures["record_s_p99"] = float(np.quantile(last, 0.99))
            figures[f"{what}_worker_s_median"] = median(arrivals.middle(version) for version in versions)
            sent = [arrivals.sent[version] for version in versions]
            figures[f"{what}_append_s_median"] = median(record.appended - record.begun for record in sent)
        figures["speedup"] = figures["adapter_s_median"] / figures["record_s_median"]
        return figures | {"partition": cut, "faults": arrivals.faults()}

    def _send(self, number: int, size: int) -> int:
        limit = self._limit(size)
        version = self.fleet.append(size, limit)
        self.fleet.wait_for(version, limit)
        self.tell(number, f"{self.fleet.arrivals.last(version):.3f} s until all workers had {size:,} bytes")
        self.fleet.listen(self.pause * self.random.uniform(0.5, 1.5))
        return version

    def _cut(self, seconds: float, site: Site) -> dict[str, Any]:
        """Goes on appending while the workers' site hears nothing, and waits until they have caught up."""
        first = self.fleet.version + 1
        self.tell_partition(f"the link is cut for {seconds:g} s")
        site.cut()
        mended = time.monotonic() + seconds
        try:
            while time.monotonic() < mended:
                self.fleet.append(self.sizes.record, self._limit(self.sizes.record))
                self.fleet.listen(min(self.pause, mended - time.monotonic()))
        finally:
            site.mend()
        mended = time.monotonic()
        last = self.fleet.version
        self.fleet.wait_for(last, self._limit((last - first + 1) * self.sizes.record))
        recovered = time.monotonic() - mended
        self.tell_partition(f"{last - first + 1} records were there {recovered:.1f} s after it was mended")
        return {"cut_s": seconds, "records": last - first + 1, "recover_s": recovered}

    def tell_partition(self, message: str) -> None:
        """Says what happens while nothing is counted."""
        self.tell(len(self.fleet.arrivals.sent) - 1, message)

    def _limit(self, size: int) -> float:
        return _LEAST_SECONDS + len(self.fleet.workers) * size * 8e-6 / _SLOWEST_MBIT


@contextmanager
def _fleet(kind: str, link: Link | None, sizes: Sizes, workers: int, seed: int) -> Iterator[tuple[Fleet, Site | None]]:
    """Learner and workers on a new log, and the workers' site if there is a link."""
    with TemporaryDirectory(prefix="hilo-network-") as folder, ExitStack() as stack:
        center: Place = Loopback()
        remote: Place = center
        site = None
        if link is not None:
            network = stack.enter_context(Network())
            center, remote = network.add("learner"), (site := network.add("workers", link))
        log = place_log(kind, stack, Path(folder), center, remote)
        learner, read = (center, log.written_at), [(remote, log.read_at)] * workers
        yield Fleet(stack, Path(folder), learner, read, log.environment, sizes.blocks, seed), site


def _why_not(network: str, kind: str) -> str | None:
    if network == "loopback":
        return None
    if kind == "file":
        return "a folder is read on the learner's machine"
    return network_missing()
