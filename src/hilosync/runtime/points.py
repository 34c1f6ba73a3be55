"""Named points in the life of a process at which a test can kill it.

`HILO_KILL_AT="after append:3"` ends the process with SIGKILL at the third passage of that point, as a
power failure or an out-of-memory killer would: nothing is flushed, no handler runs. Without the variable
a passage costs one look into the environment.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from hilosync.errors import ConfigurationError

__all__ = ["KILL_VARIABLE", "POINTS", "reach"]

KILL_VARIABLE = "HILO_KILL_AT"

POINTS = (
    "before append",
    "after append",
    "before apply",
    "after apply",
    "before checkpoint write",
    "after checkpoint write",
    "before rename",
    "after rename",
    "before snapshot publish",
    "after snapshot publish",
    "before deliver",
    "after deliver",
)
"""Every point that the code passes, in the order of docs/operations.md."""

_passages: Counter[str] = Counter()


def reach(name: str) -> None:
    """Passes a point, or ends the process there.

    Raises:
        ConfigurationError: the variable names no point, so nothing would ever be killed.
    """
    wanted = os.environ.get(KILL_VARIABLE)
    if not wanted:
        return
    point, _, passage = wanted.partition(":")
    if point not in POINTS or (passage and not passage.isdecimal()):
        raise ConfigurationError(
            f"{KILL_VARIABLE}={wanted!r}: expected one of {', '.join(POINTS)}, and ':n' for the n-th passage"
        )
    if name == point:
        _passages[name] += 1
        if _passages[name] == int(passage or 1):
            os.kill(os.getpid(), signal.SIGKILL)
