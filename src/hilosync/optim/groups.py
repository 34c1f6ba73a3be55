"""Hyperparameters per param group, and the ranges that they must lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hilosync.errors import ConfigurationError, UnknownName

__all__ = ["PerGroup", "as_words", "check_constants", "check_rates", "per_group"]

PerGroup = float | tuple[float, ...]
"""One value for every param group, or one value each."""

_LARGEST = float(np.finfo(np.float32).max)
_RATE = (0.0, _LARGEST, "finite and 0 or more")
_SHARE = (0.0, np.nextafter(1.0, 0.0), "0 or more and below 1")
_RANGES = {
    "lr": _RATE,
    "weight_decay": _RATE,
    "momentum": _SHARE,
    "betas": _SHARE,
    "eps": (1e-30, _LARGEST, "finite and 1e-30 or more, which fp32 does not round to zero"),
}
"""Smallest and largest value, and how to say it."""

_EITHER = "one number, or one per param group"
_PER_GROUP = ("lr", "weight_decay")
_BACKENDS = ("auto", "numpy", "numba", "torch")


def check_constants(optimizer: str, backend: str, **constants: Any) -> None:
    """Refuses hyperparameters that no step could use.

    Args:
        optimizer: the registered name, for the message.
        backend: one of the backends of `elementwise`.
        constants: by their names: numbers, or one each per param group (`lr`, `weight_decay`), or a pair (`betas`).

    Raises:
        ConfigurationError: a constant is not a number, or out of its range; the message gives both.
        UnknownName: there is no such backend.
    """
    if backend not in _BACKENDS:
        raise UnknownName("backend", str(backend), _BACKENDS)
    for name, value in constants.items():
        many = isinstance(value, (tuple, list))
        expected = {"betas": "two numbers", "lr": _EITHER, "weight_decay": _EITHER}.get(name, "one number")
        fits = len(value) == 2 if many and name == "betas" else many and name in _PER_GROUP and len(value) > 0
        if many != fits or (name == "betas" and not many):
            raise ConfigurationError(f"{name} of {optimizer}: expected {expected}, got {value!r}")
        for number in value if many else (value,):
            _check(f"{name} of {optimizer}", number, _RANGES[name])


def check_rates(lr: PerGroup, learning_rates: Sequence[float] | None) -> PerGroup:
    """The rates of a step: those of a schedule, checked, or the configured ones where it is None.

    Raises:
        ConfigurationError: the schedule's rates are no tuple of finite numbers of 0 or more.
    """
    if learning_rates is None:
        return lr
    if not isinstance(learning_rates, (tuple, list)) or not learning_rates:
        raise ConfigurationError(
            f"learning rates of a step: expected a tuple of one rate, or one per param group, got {learning_rates!r}"
        )
    for rate in learning_rates:
        _check("learning rate of a step", rate, _RATE)
    return tuple(learning_rates)


def per_group(*values: PerGroup) -> Iterator[tuple[float, ...]]:
    """Yields one tuple of the values per param group; a value alone goes for every group.

    Raises:
        ConfigurationError: two of the values name different numbers of groups.
    """
    many = [tuple(value) if isinstance(value, (tuple, list)) else (value,) for value in values]
    counts = {len(value) for value in many} - {1}
    if len(counts) > 1:
        raise ConfigurationError(f"settings for different numbers of param groups: {sorted(counts)}")
    groups = counts.pop() if counts else 1
    return zip(*(value if len(value) == groups else value * groups for value in many), strict=True)


def as_words(optimizer: str, rows: Sequence[Sequence[float]]) -> np.ndarray:
    """Scalars as the record carries them, fp32, one row per param group.

    Raises:
        ConfigurationError: one of them is beyond fp32's range.
    """
    with np.errstate(over="ignore"):
        words = np.array(rows, np.float32)
    if not np.isfinite(words).all():
        raise ConfigurationError(
            f"scalars of {optimizer}: expected values within fp32's range, got {rows}: lower the learning rate, "
            "or the weight decay"
        )
    return words


def _check(what: str, value: Any, allowed: tuple[float, float, str]) -> None:
    low, high, words = allowed
    # NaN compares false, and so does not pass.
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"{what}: expected a number, {words}, got {value!r}")
