"""Times a whole adapter and a snapshot through a tree of relays, against workers that all read from the origin.

The learner and a relay beside it are the origin. Every site (the origin, each further relay, each worker) has a
link of its own, so whoever serves n readers sends everything n times over its link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hilosync.bench.fleet import Fleet, Loopback, Place
from hilosync.bench.links import Link, Network
from hilosync.bench.log_places import start_relay
from hilosync.bench.network import Sizes
from hilosync.errors import UnknownName
from hilosync.log import open_log

__all__ = ["WAYS", "run_tree"]

WAYS = ("direct", "store-and-forward", "cut-through")
"""All workers read from the origin; or from relays that pass on whole objects, or bytes as they come."""

_LIMIT = 3600.0
"""Seconds for each of the things that are shared."""


def run_tree(
    sizes: Sizes,
    link: Link | None,
    ways: Sequence[str] = WAYS,
    workers: int = 8,
    relays: int = 2,
    snapshot: int = 0,
    seed: int = 0,
    progress: Callable[[int, int, str], None] = lambda done, total, message: None,
) -> dict[str, Any]:
    """Shares one adapter and one snapshot in each way.

    Args:
        sizes: the adapter's; a record goes before it, so that connections stand.
        link: of every site; None for this machine without links.
        ways: from `WAYS`.
        workers: how many; each reads from the origin, or from one relay of the tree.
        relays: how many below the origin.
        snapshot: bytes of the snapshot; 0 for none.
        seed: of the bytes.
        progress: called with what is done, of how much, and a line of text.

    Returns:
        `rows`: for each way `adapter_s` (from the call of append until the last worker had read and verified
        it), `adapter_worker_s` (until the median worker had), `snapshot_s` and `snapshot_worker_s` (from the
        call to fetch what the origin has stored; null without one), and `faults`, as in `run_network`.
        `snapshot_bytes`: as stored.

    Raises:
        UnknownName: there is no such way.
        PeerSilent: a process ended, or something took an hour.
    """
    rows: list[dict[str, Any]] = []
    stored = 0

    def tell(message: str) -> None:
        progress(len(rows), len(ways), f"{ways[len(rows)]}: {message}")

    for way in ways:
        if way not in WAYS:
            raise UnknownName("way", way, WAYS)
        with TemporaryDirectory(prefix="hilo-tree-") as folder, ExitStack() as stack:
            fleet = _fleet(stack, Path(folder), way, link, workers, relays, sizes.blocks, seed)
            fleet.wait_for(fleet.append(sizes.record, _LIMIT), _LIMIT)
            tell(f"an adapter of {sizes.adapter:,} bytes to {workers} workers")
            version = fleet.append(sizes.adapter, _LIMIT)
            fleet.wait_for(version, _LIMIT)
            row = {
                "way": way,
                "adapter_s": fleet.arrivals.last(version),
                "adapter_worker_s": fleet.arrivals.middle(version),
                "snapshot_s": None,
                "snapshot_worker_s": None,
            }
            tell(f"{row['adapter_s']:.1f} s until the last worker had it")
            if snapshot:
                tell(f"a snapshot of {snapshot:,} bytes to {workers} workers")
                stored, seconds = fleet.share_snapshot(snapshot, _LIMIT)
                row |= {"snapshot_s": seconds[-1], "snapshot_worker_s": median(seconds)}
                tell(f"{seconds[-1]:.1f} s until the last worker had it")
            rows.append(row | {"faults": fleet.arrivals.faults()})
            progress(len(rows), len(ways), f"{way}: done")
    return {
        "adapter_bytes": sizes.adapter,
        "snapshot_bytes": stored,
        "workers": workers,
        "relays": relays,
        "link": None if link is None else {"mbit": link.mbit, "delay_ms": link.delay_ms},
        "rows": rows,
        "nothing_lost": all(not any(row["faults"].values()) for row in rows),
    }


def _fleet(
    stack: ExitStack, folder: Path, way: str, link: Link | None, workers: int, relays: int, blocks: int, seed: int
) -> Fleet:
    if link is None:
        here = Loopback()

        def place(name: str) -> Place:
            return here
    else:
        network = stack.enter_context(Network())

        def place(name: str) -> Place:
            return network.add(name, link)

    origin = place("origin")
    address = f"file:{folder / 'log'}"
    open_log(address, create=True)  # the relay waits for the folder
    served = [start_relay(stack, origin, address, folder / "origin.log")]
    if way != "direct":
        options = ["--store-and-forward"] if way == "store-and-forward" else []
        served = [
            start_relay(stack, place(f"relay-{n}"), served[0], folder / f"relay-{n}.log", *options)
            for n in range(1, relays + 1)
        ]
    readers = [(place(f"worker-{n + 1}"), served[n * len(served) // workers]) for n in range(workers)]
    return Fleet(stack, folder, (origin, address), readers, {}, blocks, seed)
