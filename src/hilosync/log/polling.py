"""Waiting for something that nobody announces: ask, pause a little longer, ask again, give up in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Polling"]

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Polling:
    """How often a log is asked for news: pauses that double from `shortest` to `longest` seconds.

    The defaults suit a local file system or memory; a bucket that charges per request wants seconds.
    """

    shortest: float = 0.002
    longest: float = 0.05

    def until(self, ask: Callable[[], Found | None], wait: float) -> Found | None:
        """The first answer of `ask` that is not None, or None after `wait` seconds; asks at least once."""
        deadline = time.monotonic() + wait
        pause = self.shortest
        while (found := ask()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, self.longest)
        return found
