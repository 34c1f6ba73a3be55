"""`hilo verify`: fold a whole log in a fresh process and check every hash and digest."""

from __future__ import annotations

import json
import time

import click
from rich.console import Console
from rich.progress import Progress

from hilosync.errors import MalformedRecord, PeerSilent
from hilosync.log import open_log
from hilosync.runtime import Replica

__all__ = ["command"]


@click.command("verify")
@click.argument("log")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(log: str, as_json: bool) -> None:
    """Replay LOG (an address, or a run folder) from its seed and check every record and every digest.

    Exits with 1 and names the record, or the first version and tensor, if anything differs.
    """
    started = time.perf_counter()
    opened = open_log(log)
    # `head` stops at a hole, or leaps over it; a listing shows what lies behind it.
    newest = max(opened.steps.head(), opened.steps.highest())
    replica = Replica.join(opened)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("replaying", total=newest)
        for version in range(1, newest + 1):
            try:
                replica.advance(to=version)
            except PeerSilent:
                raise MalformedRecord(
                    f"record {version} of {opened.url} is missing, although record {newest} is there: "
                    "the log has a hole; restore the record, or use another log"
                ) from None
            progress.update(bar, completed=version)
    seconds = time.perf_counter() - started
    if as_json:
        result = {
            "log": opened.url,
            "run": replica.run.genesis.run,
            "versions": replica.version,
            "digest_checks": replica.checks,
            "digest_mismatches": 0,
            "final_digest": replica.digest.hex(),
            "seconds": seconds,
        }
        click.echo(json.dumps(result))
        return
    click.echo(
        f"{opened.url}: {replica.version} records replayed, {replica.checks} digests checked, all equal; "
        f"version {replica.version} is {replica.digest.hex()[:16]} ({seconds:.1f} s)"
    )
