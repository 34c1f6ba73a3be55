"""What a run goes on with when its learner is started again: the options that it was begun with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hilosync.cli.folder import CHECKPOINTS
from hilosync.cli.options import RunOptions, default_learning_rate
from hilosync.errors import ConfigurationError, RunMismatch
from hilosync.log import Log, parse_address
from hilosync.log.objects import file_root
from hilosync.protocol import Run
from hilosync.rl.recipe import Recipe
from hilosync.runtime.checkpoint import Checkpoints
from hilosync.runtime.disk import FileDisk

__all__ = ["checkpoint_folder", "options_to_json", "resumed_options"]

_OF_THE_PROCESS = ("capture", "limits", "outage", "sign", "threads", "track")
"""Options that say how a process works, not what the run is: they are given anew."""


def checkpoint_folder(address: str, given: str | None, name: str) -> Path | None:
    """Where the process `name` keeps its checkpoint: below `given`, else in the folder of a file: log, else nowhere."""
    if given is not None:
        return Path(given) / name
    scheme, path = parse_address(address)
    return file_root(path) / CHECKPOINTS / name if scheme == "file" else None


def options_to_json(options: RunOptions) -> dict[str, Any]:
    """What a checkpoint keeps of the options."""
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    kept = {name: value for name, value in fields.items() if name not in _OF_THE_PROCESS}
    return msgspec.to_builtins(kept)


def resumed_options(options: RunOptions, explicit: Iterable[str], log: Log, folder: Path | None) -> RunOptions:
    """The options that the run was begun with, and those of this command that may be others now.

    They come from the learner's checkpoint. Without one, the genesis says what a run is; learning rate,
    schedule, clipping and number of versions are then those of this command.

    Args:
        options: of this command, defaults included.
        explicit: names of the options that were given on the command line.
        log: the run's log.
        folder: of the learner's checkpoint, or None.

    Raises:
        RunMismatch: an option that the run fixes was given with another value; shows both.
        ConfigurationError: the run ships whole adapters, whose learner keeps a state that no log holds.
    """
    run = Run.of(log.steps.read(0) or b"")
    if run.genesis.optimizer.name == "replace":
        raise ConfigurationError(
            f"{log.url} ships whole adapters: the optimizer's state of such a run is in its learner alone, so that "
            "it cannot be resumed; begin it again"
        )
    checkpoint = None if folder is None else Checkpoints(FileDisk(folder), "learner", run).load()
    saved = (checkpoint.extra or {}).get("options") if checkpoint is not None else None
    if saved is None:
        begun = dataclasses.replace(
            options,
            recipe=Recipe.from_json(run.genesis.task),
            optimizer=run.genesis.optimizer.name,
            compressor=run.genesis.compressor.name,
            budget=str(run.genesis.budget),
            lr=options.lr if "lr" in explicit else default_learning_rate(run.genesis.optimizer.name),
        )
    else:
        known = {name: saved[name] for name in RunOptions.__dataclass_fields__ if name in saved}
        begun = dataclasses.replace(options, **(known | {"recipe": Recipe.from_json(saved["recipe"])}))
    changes: dict[str, Any] = {}
    for name in explicit:
        if name in Recipe.__struct_fields__:
            _refuse_another(log, name, getattr(begun.recipe, name), getattr(options.recipe, name))
        elif name in ("optimizer", "compressor", "sync") or (name == "budget" and saved is not None):
            _refuse_another(log, name, getattr(begun, name), getattr(options, name))
        elif name in RunOptions.__dataclass_fields__:
            changes[name] = getattr(options, name)
    return dataclasses.replace(begun, **changes)


def _refuse_another(log: Log, name: str, begun: object, given: object) -> None:
    if begun != given:
        raise RunMismatch(
            f"{log.url} was begun with --{name} {begun}, this command says {given}: leave the option out, or begin "
            "another run"
        )
