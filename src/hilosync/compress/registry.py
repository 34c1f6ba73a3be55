"""Compressors by name: the built-in ones and those that installed packages register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from hilosync.compress.base import Compressor
from hilosync.compress.dense import Dense
from hilosync.compress.powersgd import PowerSGD
from hilosync.compress.spar import Spar
from hilosync.compress.spar_rd import SparRD
from hilosync.compress.topk import TopK
from hilosync.compress.warmup import Warmup
from hilosync.errors import ConfigurationError, UnknownName

__all__ = ["ENTRY_POINT_GROUP", "compressor_names", "get_compressor"]

ENTRY_POINT_GROUP = "hilosync.compressors"
"""Entry point group in which a package registers `name = "module:Class"`."""

_BUILT_IN: dict[str, Callable[..., Compressor]] = {
    "dense": Dense,
    "powersgd": PowerSGD,
    "spar": Spar,
    "spar_rd": SparRD,
    "topk": TopK,
    "warmup": Warmup,
}


def compressor_names() -> list[str]:
    """Names that `get_compressor` knows, sorted."""
    return sorted(_BUILT_IN.keys() | {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def get_compressor(name: str, settings: Mapping[str, Any] | None = None) -> Compressor:
    """Builds a compressor from its name and its keyword arguments.

    What a compressor's `settings()` returns is accepted here, so a replica builds its decoder from
    the run's genesis. A built-in name cannot be taken over by a package.

    Raises:
        UnknownName: neither built in nor registered in the entry point group.
        ConfigurationError: the compressor does not know one of the settings.
    """
    build = _BUILT_IN.get(name)
    if build is None:
        found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == name]
        if not found:
            raise UnknownName("compressor", name, compressor_names())
        build = found[0].load()
    try:
        return build(**(settings or {}))
    except TypeError as error:
        raise ConfigurationError(f"compressor {name!r} does not take the settings {settings}: {error}") from error
