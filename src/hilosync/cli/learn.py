"""`hilo learn`: the learner of a run, on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from hilosync.cli.display import Display, summary_table
from hilosync.cli.folder import remove_unbegun
from hilosync.cli.history import History, metrics_of
from hilosync.cli.options import RunOptions, run_options
from hilosync.cli.resume import checkpoint_folder, options_to_json, resumed_options
from hilosync.cli.session import Session, Summary
from hilosync.errors import LogNotFound, RunMismatch, UnknownName
from hilosync.log import Log, check_writable, open_log, parse_address
from hilosync.log.objects import file_root
from hilosync.metrics import open_tracker
from hilosync.rl.loop import Progress
from hilosync.runtime import LEARNER, Roll

__all__ = ["check_options", "command", "conduct"]


def check_options(options: RunOptions) -> None:
    """Refuses what needs no model to be refused, before anything is made or removed for a run.

    Raises:
        ConfigurationError: an unknown name, a budget that cannot be read, or no model at a path.
    """
    from hilosync.bench.shapes import adapter_plan
    from hilosync.compress import budget_bytes
    from hilosync.rl.policy import locate_model
    from hilosync.rl.tasks import TASKS

    _ = options.recipe.pace
    options.make_optimizer()
    options.make_compressor()
    if options.compressor != "dense":
        budget_bytes(options.budget, adapter_plan("qwen3-1.7b", 64))
    if options.recipe.task not in TASKS:
        raise UnknownName("task", options.recipe.task, TASKS)
    locate_model(options.recipe.student)
    locate_model(options.recipe.teacher)


def conduct(
    options: RunOptions, log: Log, history: Path | None = None, checkpoint: Path | None = None, resume: bool = False
) -> Summary:
    """Makes the versions of a run on a log, shown on standard error.

    Args:
        options: what to do.
        log: an empty log, or that of the run to resume.
        history: file for a line of figures per version, or None.
        checkpoint: folder of the learner's checkpoint, or None.
        resume: whether the log holds a run that is to go on.
    """
    session = Session(options, log, checkpoint, resume)
    plan = session.learner.plan
    if session.learner.resumed is not None:
        click.echo(f"{log.url}: {session.learner.resumed.summary}", err=True)
    with (
        History(history, plan, after=session.learner.version) as lines,
        Display(_title(options, session), plan.adapter_bytes, options.versions) as display,
        open_tracker(options.track, options_to_json(options)) as tracker,
    ):

        def show(progress: Progress, roll: Roll) -> None:
            lines.add(progress)
            tracker.log(metrics_of(progress, plan), progress.version)
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
    share = f"{budget:,} bytes per version, {100 * budget / adapter:.2f}% of this {adapter:,}-byte adapter"
    if str(options.budget).isdigit():
        return f"{learner.log.url}: budget {share}"
    full = adapter_plan("qwen3-1.7b", 64)
    same = budget_bytes(options.budget, full)
    return (
        f"{learner.log.url}: budget {options.budget} = {share} "
        f"(for Qwen3-1.7B at rank 64: {same:,} bytes, {100 * same / full.adapter_bytes:.2f}%)"
    )


def _refuse_used(address: str) -> None:
    """Refuses a log that holds a run, as `Learner` does, but before the models are loaded."""
    try:
        log = open_log(address)
    except LogNotFound:
        return
    raise RunMismatch(
        f"{log.url} holds a run already, at version {log.steps.head()}: "
        "give this run a log of its own, go on with that one (--resume), or remove it"
    )


@click.command("learn")
@click.argument("log")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--resume", is_flag=True, help="Go on with the run in LOG, whose learner has died.")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False),
    help="Where the learner keeps its checkpoint; by default in the folder of a file: log, else nowhere.",
)
@run_options
def command(options: RunOptions, log: str, as_json: bool, resume: bool, checkpoint: str | None, **_: Any) -> None:
    """Run the learner of a run: train, publish to LOG (file:runs/mine) and wait for workers.

    Start workers in other terminals with `hilo work LOG`. A file: log gets a line of figures per version in its
    steps.jsonl. When the learner has died, the same command with
    `--resume` goes on, with the options that the run was begun with: nothing that was published is lost.
    """
    check_writable(log)
    folder = checkpoint_folder(log, checkpoint, LEARNER)
    scheme, path = parse_address(log)
    root = file_root(path) if scheme == "file" else None
    history = None if root is None else root / "steps.jsonl"
    if resume:
        opened = open_log(log)
        options = resumed_options(options, _explicit(), opened, folder)
        check_options(options)
        summary = conduct(options, opened, history, folder, resume=True)
    else:
        check_options(options)
        _refuse_used(log)
        made = root is not None and not root.exists()
        try:
            summary = conduct(options, open_log(log, create=True), history, folder)
        finally:
            if root is not None and made:
                remove_unbegun(root)
    if as_json:
        click.echo(msgspec.json.encode(summary))
    else:
        Console().print(summary_table([summary]))


def _explicit() -> list[str]:
    """Names of the options that stand on the command line."""
    context = click.get_current_context()
    given = [
        name for name in context.params if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    return ["limits" if name == "patience" else name for name in given]
