"""`hilo learn`: the learner of a run, on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from hilosync.cli.display import Display, summary_table
from hilosync.cli.history import History
from hilosync.cli.options import RunOptions, run_options
from hilosync.cli.session import Session, Summary
from hilosync.log import Log, open_log
from hilosync.rl.lockstep import Progress
from hilosync.runtime import Roll

__all__ = ["command", "conduct"]


def conduct(options: RunOptions, log: Log, history: Path | None = None) -> Summary:
    """Makes all versions of a run on a log, shown on standard error.

    Args:
        options: what to do.
        log: an empty log.
        history: file for a line of figures per version, or None.
    """
    session = Session(options, log)
    plan = session.learner.plan
    with (
        History(history, plan) as lines,
        Display(_title(options, session), plan.adapter_bytes, options.versions) as display,
    ):

        def show(progress: Progress, roll: Roll) -> None:
            lines.add(progress)
            display.show(progress, roll)

        return session.run(show, display.watch)


def _title(options: RunOptions, session: Session) -> str:
    from hilosync.bench.shapes import adapter_plan
    from hilosync.compress import budget_bytes

    learner = session.learner
    adapter = learner.plan.adapter_bytes
    if options.sync == "full" or learner.run.genesis.budget is None:
        return f"{learner.log.url}: the whole adapter, {adapter:,} bytes, at every version"
    budget = learner.run.genesis.budget
    full = adapter_plan("qwen3-1.7b", 64)
    same = budget_bytes(options.budget, full)
    shares = (100 * budget / adapter, 100 * same / full.adapter_bytes)
    return (
        f"{learner.log.url}: budget {options.budget} = {budget:,} bytes per version, {shares[0]:.2f}% of this "
        f"{adapter:,}-byte adapter (for Qwen3-1.7B at rank 64: {same:,} bytes, {shares[1]:.2f}%)"
    )


@click.command("learn")
@click.argument("log")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@run_options
def command(options: RunOptions, log: str, as_json: bool, **_: Any) -> None:
    """Run the learner of a run: train, publish to LOG (file:runs/mine) and wait for workers.

    Start workers in other terminals with `hilo work LOG`.
    """
    summary = conduct(options, open_log(log, create=True))
    if as_json:
        click.echo(msgspec.json.encode(summary))
    else:
        Console().print(summary_table([summary]))
