"""Ending processes that were started for a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

__all__ = ["end_processes"]

_GRACE = 10.0
"""Seconds to end in, once asked to."""


def end_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Asks those that still run to end, all at once, and kills those that do not."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
