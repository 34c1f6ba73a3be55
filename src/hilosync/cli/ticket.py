"""`hilo ticket`: one line that gives a new worker all it needs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hilosync.errors import ConfigurationError
from hilosync.runtime.joining import open_run, ticket_of
from hilosync.wire import encode_ticket

__all__ = ["command"]


@click.command("ticket")
@click.argument("log")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file as well.")
def command(log: str, out: Path | None) -> None:
    """Print the join ticket of the run in LOG (an address, or a run folder): one line without secrets.

    A worker joins with `hilo work TICKET`, or `hilo work FILE`, from any machine that can reach the log. The ticket
    names the run, so that a worker never follows another one that was begun at the same address.
    """
    opened, run = open_run(log)
    ticket = encode_ticket(ticket_of(opened, run))
    if out is not None:
        try:
            out.write_text(ticket + "\n", "utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the ticket to {out}: {os.strerror(error.errno or 0)}; choose another file"
            ) from error
    click.echo(ticket)
