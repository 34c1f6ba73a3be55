"""Experiment trackers as sinks: TensorBoard, trackio and wandb, each an optional package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from hilosync.errors import ConfigurationError

__all__ = ["TensorBoardSink", "TrackioSink", "WandbSink", "missing"]


class TensorBoardSink:
    """Scalars as event files in a folder, for `tensorboard --logdir`."""

    def __init__(self, folder: str, config: Mapping[str, Any]):
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise missing("tensorboard") from error
        self._writer = SummaryWriter(folder)
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in config.items()))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See `Sink.log`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See `Sink.close`."""
        self._writer.close()


class TrackioSink:
    """A run of a trackio project, kept in the folder that TRACKIO_DIR names."""

    def __init__(self, project: str, config: Mapping[str, Any]):
        try:
            import trackio
        except ImportError as error:
            raise missing("trackio") from error
        self._finish = trackio.finish  # the module's own: otherwise it finishes the run again, aloud, at exit
        with redirect_stdout(sys.stderr):  # standard output is the caller's, for results
            self._run = trackio.init(
                project=project, config=dict(config), embed=False, auto_log_gpu=False, auto_log_cpu=False
            )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See `Sink.log`."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """See `Sink.close`."""
        with redirect_stdout(sys.stderr):
            self._finish()


class WandbSink:
    """A run of a wandb project; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise missing("wandb") from error
        self._run = wandb.init(project=project, config=dict(config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See `Sink.log`."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """See `Sink.close`."""
        self._run.finish()


def missing(extra: str) -> ConfigurationError:
    """What to say when an optional package is not there."""
    return ConfigurationError(f"this needs a package that is not installed: pip install 'hilosync[{extra}]'")
