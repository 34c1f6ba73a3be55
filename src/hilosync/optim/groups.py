"""Hyperparameters per param group."""

from __future__ import annotations

from collections.abc import Iterator

from hilosync.errors import ConfigurationError

__all__ = ["PerGroup", "per_group"]

PerGroup = float | tuple[float, ...]
"""One value for every param group, or one value each."""


def per_group(*values: PerGroup) -> Iterator[tuple[float, ...]]:
    """Yields one tuple of the values per param group.

    Raises:
        ConfigurationError: two of the values name different numbers of groups.
    """
    counts = {len(value) for value in values if isinstance(value, tuple)}
    if len(counts) > 1:
        raise ConfigurationError(f"settings for different numbers of param groups: {sorted(counts)}")
    groups = counts.pop() if counts else 1
    columns = [value if isinstance(value, tuple) else (value,) * groups for value in values]
    return zip(*columns, strict=True)
