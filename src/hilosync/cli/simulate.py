"""`hilo simulate`: whole runs under injected faults, in virtual time (docs/simulation.md)."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hilosync.sim.planted import PLANTS

__all__ = ["command", "faults"]


@click.group("simulate")
def command() -> None:
    """Run learner and workers in virtual time, under faults that a seed determines."""


@command.command("faults")
@click.option("--seeds", default=200, show_default=True, type=click.IntRange(1), help="How many seeds to run.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The first of them.")
@click.option("--plant", type=click.Choice(sorted(PLANTS)), help="Put in a bug, which must be found.")
@click.option("--trace", is_flag=True, help="Print everything that happened.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def faults(seeds: int, seed: int, plant: str | None, trace: bool, as_json: bool) -> None:
    """Crash, cut off, reorder, corrupt, fence, and check after every event that nothing is lost or wrong.

    Stops at the first seed that breaks a promise, shows what led to it, and exits with 1.
    """
    from hilosync.sim import simulate

    console = Console(stderr=True)
    counts: Counter[str] = Counter()
    started = time.perf_counter()
    failed = None
    done = 0
    columns = (TextColumn("simulating"), MofNCompleteColumn(), TextColumn("seeds"), TimeRemainingColumn())
    # Refreshed by hand: while a seed runs, the clock of this process is the simulation's.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("seeds", total=seeds)
        for number in range(seed, seed + seeds):
            outcome = simulate(number, plant, keep=None if trace else 40)
            done += 1
            counts += outcome.counts + Counter({"versions": outcome.versions})
            progress.update(bar, completed=done, refresh=True)
            if trace:
                progress.console.print("\n".join(outcome.trace), markup=False, highlight=False, soft_wrap=True)
            if outcome.failure is not None:
                failed = outcome
                break
    console.print(_table(done, counts))
    repeat = None
    if failed is not None:
        repeat = f"hilo simulate faults --seed {failed.seed} --seeds 1 --trace" + (f" --plant {plant}" if plant else "")
        if not trace:
            console.print("\n".join(failed.trace), markup=False, highlight=False, soft_wrap=True)
        console.print(f"seed {failed.seed}: {failed.failure}\nto repeat it: {repeat}", markup=False, soft_wrap=True)
    if as_json:
        result = {
            "seeds": done,
            "first_seed": seed,
            "plant": plant,
            "failures": int(failed is not None),
            "failed_seed": None if failed is None else failed.seed,
            "failure": None if failed is None else failed.failure,
            "repeat": repeat,
            "counts": dict(sorted(counts.items())),
            "seconds": time.perf_counter() - started,
        }
        click.echo(json.dumps(result))
    elif failed is None:
        click.echo(f"{done} seeds, {counts['versions']} versions: no failure ({time.perf_counter() - started:.0f} s)")
    if failed is not None:
        sys.exit(1)


def _table(seeds: int, counts: Counter[str]) -> Table:
    table = Table(title=f"{seeds} seeds", title_justify="left", header_style="bold", show_edge=False)
    table.add_column("event")
    table.add_column("times", justify="right")
    for kind, count in sorted(counts.items()):
        table.add_row(kind, f"{count:,}")
    return table
