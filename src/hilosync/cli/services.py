"""Logs of demonstrations: in the run's folder, or on a server that is started for it and removed with its data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hilosync.bench.nats_server import nats_server
from hilosync.bench.s3_server import s3_server

__all__ = ["LOG_KINDS", "log_for_demo"]


@contextmanager
def _file_log(folder: Path) -> Iterator[str]:
    yield f"file:{folder}"


@contextmanager
def _nats_log(folder: Path) -> Iterator[str]:
    with nats_server() as server:
        yield f"{server}/demo"


@contextmanager
def _s3_log(folder: Path) -> Iterator[str]:
    with s3_server("demo") as environment:
        # Here and in the workers' processes, which inherit it, the environment leads to the service.
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            yield f"s3://demo/{folder.name}"
        finally:
            os.environ.clear()
            os.environ.update(before)


_LOGS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"file": _file_log, "nats": _nats_log, "s3": _s3_log}

LOG_KINDS = tuple(_LOGS)
"""What a demonstration's log can be on."""


def log_for_demo(kind: str, folder: Path) -> AbstractContextManager[str]:
    """The address of a new log of a kind, and the server behind it for as long as the context lasts.

    Args:
        kind: one of `LOG_KINDS`.
        folder: the run's folder, which a `file` log lies in.

    Raises:
        ConfigurationError: the server's program is not installed.
        PeerSilent: it does not start.
    """
    return _LOGS[kind](folder)
