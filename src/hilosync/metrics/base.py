"""The seam of the metrics: one dict of numbers per step.

Names are paths with a unit at their end, as trackers group them: `sync/bytes`, `sync/encode_s`,
`spar/residual_norm`, `rollout/reward_mean`. What grows is reported as what this step added.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol

__all__ = ["Sink", "Tracker"]

_logger = logging.getLogger("hilosync")


class Sink(Protocol):
    """Where metrics go. `log` may keep them back; `close` hands over all that is left."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes the metrics of a step. Steps do not decrease; one step may come in several parts."""
        ...

    def close(self) -> None:
        """Ends the sink; it is not used afterwards."""
        ...


class Tracker:
    """Hands every step's metrics to all sinks; a context manager.

    Metrics must not end a run: a sink that fails is named in a warning once and left out from there on.
    """

    def __init__(self, sinks: Sequence[Sink] = ()):
        self._sinks = list(sinks)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hands over the metrics of a step, such as the policy version that it made."""
        for sink in list(self._sinks):
            try:
                sink.log(metrics, step)
            except Exception as error:  # trackers are other people's code and services: anything may come
                self._sinks.remove(sink)
                _logger.warning(
                    "%s failed at step %d and gets no more metrics: %s: %s",
                    type(sink).__name__,
                    step,
                    type(error).__name__,
                    error,
                )

    def close(self) -> None:
        """Closes all sinks."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # as above
                _logger.warning("%s did not close: %s: %s", type(sink).__name__, type(error).__name__, error)
        self._sinks = []

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
