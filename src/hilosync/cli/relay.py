"""`hilo relay`: a caching HTTP relay of a log's records and snapshots."""

from __future__ import annotations

import re

import click

from hilosync.cli.numbers import seconds_option

__all__ = ["command"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Bytes(click.ParamType):
    """A number of bytes: 500M, 2G, 1000000."""

    name = "bytes"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d{1,15})([KMG]?)(i?B)?", str(value), re.IGNORECASE)
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r}: expected a number of bytes, such as 500M or 2G", param, ctx)
        return int(match[1]) * _UNITS[match[2].upper()]


class _Address(click.ParamType):
    """HOST:PORT, where a host with colons stands in brackets."""

    name = "host:port"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]*)):(\d{1,5})", value)
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r}: expected HOST:PORT, such as 0.0.0.0:8080", param, ctx)
        return match[1] or match[2] or "0.0.0.0", int(match[3])


@click.command("relay")
@click.argument("upstream")
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    type=_Address(),
    metavar="HOST:PORT",
    help="Where to serve; port 0 takes a free one.",
)
@click.option(
    "--cache-bytes",
    default="1G",
    show_default=True,
    type=_Bytes(),
    help="Memory for objects; the largest must fit.",
)
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False), help="PEM file, to serve HTTPS.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="PEM file of the certificate's key.")
@seconds_option(
    "--wait", 300.0, "Seconds to wait for a log to be there. A relay upstream may come and go: readers are told."
)
@click.option(
    "--store-and-forward",
    is_flag=True,
    help="Pass on nothing before the whole object is here and verified; for comparison.",
)
def command(
    upstream: str,
    listen: tuple[str, int],
    cache_bytes: int,
    certificate: str | None,
    key: str | None,
    wait: float,
    store_and_forward: bool,
) -> None:
    """Serve the records and snapshots of the log at UPSTREAM over HTTP, from memory.

    UPSTREAM is a log (file:runs/demo, s3://bucket/run) or another relay (http://host:8080). Each object is asked
    for once there, passed on while it arrives, and kept only if it is what it claims to be. Workers name the relay
    and the log behind it: `hilo work http://relay:8080+s3://bucket/run`.
    """
    from hilosync.errors import ConfigurationError, LogNotFound
    from hilosync.log import Polling, open_objects
    from hilosync.relay import Cache, open_upstream, serve

    if (certificate is None) != (key is None):
        raise ConfigurationError("--certificate and --key belong together: give both, or neither")
    missing: list[LogNotFound] = []

    def look() -> bool | None:
        try:
            open_objects(upstream)
            return True
        except LogNotFound as error:
            missing.append(error)
            return None

    if Polling(longest=0.5).until(look, wait) is None:
        raise missing[-1]
    serve(
        lambda: Cache(open_upstream(upstream), cache_bytes, store_and_forward),
        upstream,
        *listen,
        listening=lambda own: click.echo(f"relay: serves {upstream} on {own}", err=True),
        certificate=certificate,
        key=key,
    )
