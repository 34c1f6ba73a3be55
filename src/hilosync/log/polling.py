"""Waiting for something that nobody announces: ask, pause a little longer, ask again, give up in time."""

from __future__ import annotations

import random
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

    Attributes:
        shortest: seconds of the first pause.
        longest: seconds of the longest pause.
        jitter: share of a pause by which chance lengthens or shortens it, so that many who began to wait
            for the same thing do not ask for it all at once.
    """

    shortest: float = 0.002
    longest: float = 0.05
    jitter: float = 0.0

    def until(self, ask: Callable[[], Found | None], wait: float) -> Found | None:
        """The first answer of `ask` that is not None, or None after `wait` seconds; asks at least once."""
        deadline = time.monotonic() + wait
        pause = self.shortest
        while (found := ask()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            time.sleep(min(pause * random.uniform(1 - self.jitter, 1 + self.jitter), remaining))
            pause = min(2 * pause, self.longest)
        return found
