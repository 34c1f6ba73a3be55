"""`hilo work`: one worker of a run, on its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hilosync.cli.numbers import seconds_option
from hilosync.cli.options import OUTAGE_OPTION
from hilosync.log import Patience, check_writable
from hilosync.metrics import open_tracker
from hilosync.rl.recipe import Recipe
from hilosync.rl.serving import answer_with
from hilosync.runtime import Limits, Notice, Replica, Worker
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.joining import open_run

__all__ = ["command"]


@click.command("work")
@click.argument("run")
@click.option("--name", help="Name of this worker; by default one made of the process id.")
@seconds_option("--wait", 300.0, "Seconds to wait for the run to begin.")
@seconds_option("--patience", 60.0, "Seconds of silence after which the learner is gone.")
@OUTAGE_OPTION
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads to compute with.")
@click.option("--snapshots", type=click.IntRange(1), help="Write a snapshot every so many versions, beside the work.")
@click.option("--checkpoint", type=click.Path(file_okay=False), help="Folder for this worker's state, by its name.")
@click.option("--track", multiple=True, help="Send metrics to prometheus:PORT, say; as for `hilo learn`.")
@click.option("--device", help="Where to compute; by default what the run's recipe says.")
def command(
    run: str,
    name: str | None,
    wait: float,
    patience: float,
    outage: float,
    threads: int,
    snapshots: int | None,
    checkpoint: str | None,
    track: tuple[str, ...],
    device: str | None,
) -> None:
    """Run one worker: follow RUN, generate rollouts for its learner until the run is finished.

    RUN is a join ticket (`hilo ticket`), a file that holds one, or the address of a log.
    """
    import msgspec
    import torch

    torch.set_num_threads(threads)
    name = name or f"worker-{os.getpid()}"
    kept = None if checkpoint is None else Path(checkpoint) / name
    log, _ = open_run(run, wait)
    check_writable(log.url)
    reach = Patience(outage)
    replica = Replica.join(reach.wrap(log), checkpoint=kept)
    if snapshots is not None:
        replica.snapshots = SnapshotWriter(replica.log, replica.run, snapshots)
    recipe = Recipe.from_json(replica.run.genesis.task)
    if device is not None:
        recipe = msgspec.structs.replace(recipe, device=device)
    engine = recipe.engine()
    worker = Worker(replica, name, answer_with(engine, name), Limits(patience=patience), reach.clock)
    click.echo(f"{name}: process {os.getpid()} serves {replica.log.url}", err=True)

    counted = {"sync/digest_checks": 0, "sync/digest_mismatch": 0}

    def watch(notice: Notice) -> None:
        totals = {"sync/digest_checks": notice.checks, "sync/digest_mismatch": notice.mismatches}
        added = {metric: total - counted[metric] for metric, total in totals.items()}
        counted.update(totals)
        tracker.log({"sync/version": notice.version, "sync/apply_s": notice.apply_seconds, **added}, notice.version)
        click.echo(
            f"{name}: version {notice.version} digest {notice.digest[:12]} checks {notice.checks} "
            f"apply {1e3 * notice.apply_seconds:.1f} ms",
            err=True,
        )

    with open_tracker(track, {"worker": name, "run": replica.run.genesis.run}) as tracker:
        version = worker.run(watch)
    if replica.snapshots is not None:
        replica.snapshots.close(wait=patience)
    click.echo(f"{name}: finished at version {version}, digest {replica.digest.hex()[:16]}, {worker.answered} batches")
    sys.stdout.flush()
