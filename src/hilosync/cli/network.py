"""What `hilo bench network` shows: a bar while it measures, then tables and a picture."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from hilosync.bench.links import Link, network_missing
from hilosync.bench.log_places import LOG_KINDS
from hilosync.bench.network import NETWORKS, Sizes, run_network
from hilosync.bench.tree import run_tree
from hilosync.cli.bar import counting_bar
from hilosync.cli.picture import draw_network, draw_tree

__all__ = ["measure_network", "measure_tree"]

_Table = tuple[str, list[str], list[list[str]]]
"""Title, headings and rows."""


def measure_network(
    sizes: Sizes,
    link: Link,
    logs: list[str],
    networks: list[str],
    workers: int,
    records: int,
    adapters: int,
    pause: float,
    partition: float,
    out: Path,
) -> tuple[dict[str, Any], _Table]:
    """Runs `run_network` and draws its picture; arguments as there, empty lists for everything.

    Returns:
        Its result, and a table of it.
    """
    with _ended_by_termination(), counting_bar("sent") as tell:
        result = run_network(
            sizes,
            logs or LOG_KINDS,
            networks or NETWORKS,
            link,
            workers,
            records,
            adapters,
            pause,
            partition,
            progress=tell,
        )
    draw_network(result, out)
    title = (
        f"{workers} workers; record {sizes.record:,} bytes, adapter {sizes.adapter:,} bytes; seconds until the last "
        "worker had it, and until all had caught up after the link was cut"
    )
    headings = ["network", "log", "record", "p99", "adapter", "speedup", "faults", "caught up"]
    rows = [
        [
            row["network"],
            row["log"],
            f"{row['record_s_median']:.3f}",
            f"{row['record_s_p99']:.3f}",
            f"{row['adapter_s_median']:.2f}",
            f"{row['speedup']:.1f}",
            str(sum(row["faults"].values())),
            "" if row["partition"] is None else f"{row['partition']['recover_s']:.1f}",
        ]
        for row in result["rows"]
    ]
    for absent in result["missing"]:
        Console(stderr=True).print(
            f"not measured: {absent['network']}, {absent['log']}: {absent['why']}", soft_wrap=True
        )
    return result, (title, headings, rows)


def measure_tree(sizes: Sizes, link: Link, workers: int, snapshot: int, out: Path) -> tuple[dict[str, Any], _Table]:
    """Runs `run_tree`, with half of the link's delay for each site, and draws its picture.

    Returns:
        Its result, and a table of it.
    """
    console = Console(stderr=True)
    why = network_missing()
    if why is not None:
        console.print(f"no shaped links, so everybody is on this machine: {why}", soft_wrap=True)
    with _ended_by_termination(), counting_bar("sent") as tell:
        shaped = Link(link.mbit, link.delay_ms / 2) if why is None else None
        result = run_tree(sizes, shaped, workers=workers, snapshot=snapshot, progress=tell)
    result["missing"] = why
    draw_tree(result, out)
    title = (
        f"{workers} workers, {result['relays']} relays; adapter {sizes.adapter:,} bytes, snapshot "
        f"{result['snapshot_bytes']:,} bytes; seconds until the last worker had it"
    )
    rows = [
        [
            row["way"],
            *(_seconds(row[f"{what}_s"]) for what in ("adapter", "adapter_worker", "snapshot", "snapshot_worker")),
        ]
        for row in result["rows"]
    ]
    return result, (title, ["way", "adapter", "median worker", "snapshot", "median worker"], rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


@contextmanager
def _ended_by_termination() -> Iterator[None]:
    """Lets a request to end end the servers and workers too, as an interrupt does."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
