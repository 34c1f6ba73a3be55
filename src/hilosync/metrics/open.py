"""From an address to a sink: `tensorboard:runs/board`, `trackio:PROJECT`, `wandb:PROJECT`, `prometheus:9464`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.metrics.base import Sink, Tracker
from hilosync.metrics.prometheus import PrometheusSink
from hilosync.metrics.trackers import TensorBoardSink, TrackioSink, WandbSink

__all__ = ["SINKS", "open_tracker"]

SINKS: dict[str, Callable[[str, Mapping[str, Any]], Sink]] = {
    "prometheus": PrometheusSink,
    "tensorboard": TensorBoardSink,
    "trackio": TrackioSink,
    "wandb": WandbSink,
}
"""How each scheme opens what follows its colon; the second argument is the run's configuration."""


def open_tracker(addresses: Sequence[str], config: Mapping[str, Any]) -> Tracker:
    """A tracker of all these sinks; of none, it drops what it is given.

    Args:
        addresses: a scheme, a colon, and a folder, a project or a port each.
        config: what the run was started with, for trackers that show it; nothing secret.

    Raises:
        ConfigurationError: an unknown scheme (`UnknownName`), a missing package, a port in use.
    """
    sinks: list[Sink] = []
    try:
        for address in addresses:
            scheme, colon, rest = address.partition(":")
            if scheme not in SINKS:
                raise UnknownName("metrics sink", scheme, tuple(SINKS))
            if not colon or not rest:
                raise ConfigurationError(
                    f"metrics sink {address!r}: expected a folder, project or port after the colon, "
                    "such as tensorboard:runs/board"
                )
            sinks.append(SINKS[scheme](rest, config))
    except BaseException:
        Tracker(sinks).close()
        raise
    return Tracker(sinks)
