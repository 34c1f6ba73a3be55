"""`hilo demo`: a learner, worker processes and one log in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import msgspec
from rich.console import Console

from hilosync.bench.processes import end_processes
from hilosync.cli.display import summary_table
from hilosync.cli.folder import CHECKPOINTS, LOG_ADDRESS, check_replaceable, clear
from hilosync.cli.learn import check_options, conduct
from hilosync.cli.options import RunOptions, run_options
from hilosync.cli.picture import draw_learning
from hilosync.cli.services import LOG_KINDS, log_for_demo
from hilosync.cli.session import Summary
from hilosync.errors import PeerSilent
from hilosync.log import open_log
from hilosync.runtime import LEARNER

__all__ = ["command"]


@click.command("demo")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Worker processes to start.")
@click.option("--out", default="runs/demo", show_default=True, type=click.Path(path_type=Path), help="Run folder.")
@click.option(
    "--log",
    "kind",
    default="file",
    show_default=True,
    type=click.Choice(LOG_KINDS),
    help="What the log is on; a server is started for it and ends with the run.",
)
@click.option("--compare", is_flag=True, help="Run it twice, with HiLo and with whole adapters, and draw both.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@run_options
def command(options: RunOptions, workers: int, out: Path, kind: str, compare: bool, as_json: bool) -> None:
    """Watch a real on-policy run: a learner trains a rank-64 adapter on what its workers generate.

    The workers never receive the adapter, only one compressed gradient per version, and hold the
    learner's exact bits at every version. Results: OUT/summary.json, OUT/steps.jsonl and OUT/learning.png. To see a
    worker lost, kill one of the processes that OUT/worker-1.log names, then start it again with
    `hilo work OUT --name worker-1`.
    """
    # Whatever can be refused is refused before an earlier run is removed.
    check_options(options)
    check_replaceable(out)
    syncs = ["hilo", "full"] if compare else [options.sync]
    folders = {sync: out.with_name(f"{out.name}-full") if compare and sync == "full" else out for sync in syncs}
    if compare:
        check_replaceable(folders["full"])
    summaries: list[Summary] = []
    for sync, folder in folders.items():
        clear(folder)
        try:
            folder.mkdir(parents=True)
            with log_for_demo(kind, folder) as address, _workers(folder, address, workers, options):
                if kind != "file":
                    (folder / LOG_ADDRESS).write_text(address, "utf-8")
                log = open_log(address, create=True)
                kept = folder / CHECKPOINTS / LEARNER
                summary = conduct(replace(options, sync=sync), log, folder / "steps.jsonl", kept)
        except PeerSilent as error:
            raise PeerSilent(f"{error}; what the workers said is in {folder}/worker-*.log") from error
        (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
        summaries.append(summary)
    draw_learning(summaries, out / "learning.png")
    if as_json:
        click.echo(msgspec.json.encode(summaries if compare else summaries[0]))
        return
    console = Console()
    console.print(summary_table(summaries))
    check = f"  (check it: hilo verify {out})" if kind == "file" else ""
    console.print(f"{out / 'summary.json'}  {out / 'learning.png'}{check}", highlight=False, soft_wrap=True)


@contextmanager
def _workers(folder: Path, address: str, count: int, options: RunOptions) -> Iterator[None]:
    """Starts worker processes and sees them end: by themselves if the run finished, stopped if it failed."""
    # One thread each: with two workers beside a learner more threads only get into each other's way,
    # and rollouts repeat bit for bit only with a fixed number of threads.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, count + 1):
            name = f"worker-{number}"
            arguments = ["work", address, "--name", name, "--threads", "1"]
            arguments += [
                "--patience",
                str(options.limits.patience),
                "--outage",
                str(options.outage),
                "--checkpoint",
                str(folder / CHECKPOINTS),
            ]
            with (folder / f"{name}.log").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "hilosync", *arguments], stdout=output, stderr=output, env=environment
                    )
                )
        yield
        deadline = time.monotonic() + options.limits.patience
        for process in processes:
            process.wait(timeout=max(1.0, deadline - time.monotonic()))
    finally:
        end_processes(processes)
