"""Integer probability tables of small integers, and how many integers make one symbol.

A table is the distribution of a rounded zero-mean variable of scale s = 2^(t/4), t its class. All
tables are made with integers (and `Decimal.exp`, which is correctly rounded), so encoder and
decoders on unlike machines hold the same frequencies to the last bit.

A range coder takes its time per symbol, not per bit, and most integers are worth one or two bits. So
the g integers of a *group* are one symbol, g as large as a table of their joint distribution stays
small. A group with an integer beyond the table's reach is escaped: the table's last symbol, then its
integers one by one with a table of longer reach, whose last symbol says that a value follows raw.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import cache
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

__all__ = [
    "CLASSES",
    "PRECISION",
    "Grouping",
    "Shape",
    "frequencies",
    "grouping",
    "groupings",
    "joint_frequencies",
    "reach",
    "rounding",
]

Shape = Literal["gauss", "laplace", "basis"]
"""Distribution and rounding: coefficients are rounded with a dead zone, bases to nearest."""

CLASSES = range(-16, 41)
"""Classes of scale: 2^−4 to 2^10 in quarter octaves."""

PRECISION = 24
"""Frequencies of a table sum to 2^24."""

_ESCAPE_WEIGHT = 1 << 10
_FRACTION_BITS = 96
_WIDEST = 4096
_RARE_BELOW = 0
_MOST_TOGETHER = 4
_LARGEST_JOINT = 4096
"""Entries of a joint table at most: 16 KiB of cumulated frequencies stay in the innermost cache."""


class Grouping(NamedTuple):
    """How the integers of a class are coded together.

    Attributes:
        reach: largest magnitude within a group that is not escaped, M.
        size: integers per group, g.
    """

    reach: int
    size: int

    @property
    def escape(self) -> int:
        """The symbol of an escaped group, (2M + 1)^g, after those of all others."""
        return (2 * self.reach + 1) ** self.size


def rounding(shape: Shape, class_: int) -> tuple[int, int]:
    """Offset of the rounding as a fraction: |x| becomes ⌊|x| + offset⌋.

    Below a half is a dead zone: a smaller integer costs fewer bits, the more so the rarer the larger
    one is, that is for coefficients of small scale.
    """
    if shape == "basis":
        return 1, 2
    return (7, 20) if class_ < _RARE_BELOW else (8, 20)


@cache
def reach(class_: int) -> int:
    """Largest magnitude with a symbol of its own when integers of a class are coded one by one."""
    return min(int(10 * 2.0 ** (class_ / 4)) + 6, _WIDEST)


@cache
def grouping(class_: int) -> Grouping:
    """How the integers of a class are coded together; every shape's alike."""
    near = int(4 * 2.0 ** (class_ / 4)) + 1
    size = max((g for g in range(1, _MOST_TOGETHER + 1) if (2 * near + 1) ** g <= _LARGEST_JOINT), default=1)
    return Grouping(near, size) if size > 1 else Grouping(reach(class_), 1)


@cache
def groupings() -> np.ndarray:
    """Reach and size by class, from the smallest class on, int32, shape (2, classes)."""
    return np.array([grouping(class_) for class_ in CLASSES], dtype=np.int32).T.copy()


@cache
def joint_frequencies(shape: Shape, class_: int) -> np.ndarray:
    """Integer frequencies of groups and of the escape, int64, shape ((2M + 1)^g + 1,), sum 2^24, all positive.

    The group v₀ … v_{g−1} is symbol Σ (v_i + M)·(2M + 1)^i.
    """
    M, size = grouping(class_)
    R = reach(class_)
    single = frequencies(shape, class_)[R - M : R + M + 1]
    count = len(single) ** size + 1
    joint = single
    for _ in range(size - 1):
        joint = (joint[:, None] * single >> PRECISION).ravel()
    free = (1 << PRECISION) - count - _ESCAPE_WEIGHT
    joint = joint * free >> PRECISION
    return np.append(joint, free - int(joint.sum()) + _ESCAPE_WEIGHT) + 1


@cache
def frequencies(shape: Shape, class_: int) -> np.ndarray:
    """Integer frequencies of −M … M and of the escape, int64, shape (2M + 2,), sum 2^24, all positive."""
    M = reach(class_)
    count = 2 * M + 2
    tail = _laplace_tail(class_, M) if shape == "laplace" else _gauss_tail(shape, class_, M)
    free = (1 << PRECISION) - count - _ESCAPE_WEIGHT
    positive = np.array([free * mass >> _FRACTION_BITS for mass in tail], dtype=np.int64)
    zero = free - 2 * int(positive.sum())
    return np.concatenate([positive[::-1], [zero], positive, [_ESCAPE_WEIGHT]]) + 1


def _exp(numerator: int, denominator: int) -> int:
    """exp(−numerator/denominator) as a fixed-point integer."""
    context = Context(prec=60)
    exponent = context.divide(Decimal(-numerator), Decimal(denominator))
    return int(context.multiply(context.exp(exponent), Decimal(1 << _FRACTION_BITS)))


def _squared_scale(class_: int) -> int:
    """s² = 2^(t/2) as a fixed-point integer."""
    return isqrt(1 << 2 * _FRACTION_BITS + class_)


def _laplace_tail(class_: int, M: int) -> list[int]:
    """P(v = 1), …, P(v = M): survival is exp(−√2·x/s), so each mass is the one before times a constant."""
    offset, over = rounding("laplace", class_)
    decay = isqrt((2 << 3 * _FRACTION_BITS) // _squared_scale(class_))  # √2/s
    unit = over << _FRACTION_BITS
    survival = _exp(decay * (over - offset), unit)
    ratio = _exp(decay * over, unit)
    masses = []
    for _ in range(M):
        following = survival * ratio >> _FRACTION_BITS
        masses.append((survival - following) // 2)
        survival = following
    return masses


def _gauss_tail(shape: Shape, class_: int, M: int) -> list[int]:
    """P(v = 1), …, P(v = M): midpoint sums of the density, itself by a recurrence of second order."""
    offset, over = rounding(shape, class_)
    points = max(1, 8 >> max(0, (class_ + 8) // 4))  # steps of at most about a half of s …
    points *= 1 if class_ > 4 else 1 << max(0, (12 - class_) // 8)  # … and finer where bins are wide
    square = _squared_scale(class_)
    # x_k = (1 − offset) + (k + ½)/points, in units of 1/(2·points·over)
    unit = 2 * points * over
    first, step = 2 * points * (over - offset) + over, 2 * over
    below = 2 * square * unit * unit
    value = _exp(first * first << _FRACTION_BITS, below)
    ratio = _exp((2 * first * step + step * step) << _FRACTION_BITS, below)
    change = _exp(2 * step * step << _FRACTION_BITS, below)
    # Density at 0 times the width of a step: 1/(√(2π)·s·points).
    two_pi = 6_283_185_307_179_586_476_925_286_766_559
    height = isqrt((10**30 << 3 * _FRACTION_BITS) // (two_pi * square)) // points
    masses = []
    for _ in range(M):
        total = 0
        for _ in range(points):
            total += value
            value = value * ratio >> _FRACTION_BITS
            ratio = ratio * change >> _FRACTION_BITS
        masses.append(height * total >> _FRACTION_BITS)
    return masses
