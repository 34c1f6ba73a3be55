"""Learning-rate schedules, which only the learner evaluates: workers get the rates as words of the record.

A schedule maps the version that a step makes (1 is the first) to one rate per param group, the form
that `Learner.step(learning_rates=…)` takes. Any function of that form will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from hilosync.optim.groups import PerGroup

__all__ = ["Schedule", "constant", "cosine", "follow", "linear"]

Schedule = Callable[[int], tuple[float, ...]]


class _TorchScheduler(Protocol):
    def get_last_lr(self) -> list[float]: ...


def constant(lr: PerGroup) -> Schedule:
    """The same rates at every version."""
    return _scaled(lr, lambda version: 1.0)


def linear(lr: PerGroup, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Rises over `warmup` versions to `lr`, then falls along a line to `end` · `lr` at version `steps`."""
    return _scaled(lr, lambda version: _warm(version, warmup) or 1 + (end - 1) * _progress(version, warmup, steps))


def cosine(lr: PerGroup, steps: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Rises over `warmup` versions to `lr`, then falls along half a cosine to `end` · `lr` at version `steps`."""

    def factor(version: int) -> float:
        wave = (1 + math.cos(math.pi * _progress(version, warmup, steps))) / 2
        return _warm(version, warmup) or end + (1 - end) * wave

    return _scaled(lr, factor)


def follow(scheduler: _TorchScheduler) -> Schedule:
    """The rates of a torch scheduler as they are now; whoever owns it calls its `step`."""
    return lambda version: tuple(float(rate) for rate in scheduler.get_last_lr())


def _scaled(lr: PerGroup, factor: Callable[[int], float]) -> Schedule:
    rates = lr if isinstance(lr, tuple) else (lr,)
    return lambda version: tuple(rate * factor(version) for rate in rates)


def _warm(version: int, warmup: int) -> float | None:
    return version / warmup if version < warmup else None


def _progress(version: int, warmup: int, steps: int) -> float:
    return min(1.0, max(0.0, (version - warmup) / max(1, steps - warmup)))
