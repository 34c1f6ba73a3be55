"""`hilo verify`: fold a whole log in a fresh process and check every hash and digest."""

from __future__ import annotations

import json
import time

import click
from rich.console import Console
from rich.progress import Progress

from hilosync.cli.extent import Extent, extent_of
from hilosync.errors import MalformedRecord, PeerSilent, Truncated
from hilosync.runtime import Replica
from hilosync.runtime.joining import open_run

__all__ = ["command"]


@click.command("verify")
@click.argument("log")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(log: str, as_json: bool) -> None:
    """Replay LOG (an address, a run folder or a join ticket) from its seed and check every record and every digest.

    A log whose first records have been removed is replayed from its oldest snapshot, which is checked against the
    records as well. Exits with 1 and names the record, or the first version and tensor, if anything differs.
    """
    started = time.perf_counter()
    opened, _ = open_run(log)
    extent = extent_of(opened.steps)
    replica = Replica.join(opened)
    _start_from_snapshot(replica, extent)
    first = replica.version
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("replaying", total=extent.newest, completed=first)
        for version in range(first + 1, extent.newest + 1):
            try:
                replica.advance(to=version)
            except PeerSilent:
                raise MalformedRecord(extent.hole_at(version, opened.url)) from None
            progress.update(bar, completed=version)
    seconds = time.perf_counter() - started
    if as_json:
        result = {
            "log": opened.url,
            "run": replica.run.genesis.run,
            "versions": replica.version,
            "first_version": first,
            "digest_checks": replica.checks,
            "digest_mismatches": 0,
            "final_digest": replica.digest.hex(),
            "seconds": seconds,
        }
        click.echo(json.dumps(result))
        return
    if first:
        click.echo(f"{opened.url}: {extent.removed}; verified from the snapshot of version {first} on")
    click.echo(
        f"{opened.url}: {replica.version - first} records replayed, {replica.checks} digests checked, all equal; "
        f"version {replica.version} is {replica.digest.hex()[:16]} ({seconds:.1f} s)"
    )


def _start_from_snapshot(replica: Replica, extent: Extent) -> None:
    """Takes a replica to the oldest snapshot that can be used, if the records before it have been removed.

    Raises:
        Truncated: there is none.
    """
    if extent.oldest == 1:
        return
    refused = ""
    # A snapshot is checked with its own record and the one before.
    for version in [v for v in replica.log.snapshots.versions() if v > extent.oldest]:
        try:
            replica.advance(to=version)
            return
        except Truncated as error:
            refused = f": {error}"
    raise Truncated(
        f"{replica.log.url}: {extent.removed}, and no snapshot can be verified in their place{refused}; restore the "
        "records, or use another log"
    )
