"""Integer probability tables of small integers, and how many integers make one symbol.

A table is the distribution of a rounded zero-mean variable of scale s = 2^(t/4), t its class. All
tables are made with integers (and `Decimal.exp`, which is correctly rounded), so encoder and
decoders on unlike machines hold the same frequencies to the last bit.

A range coder takes its time per symbol, not per bit, and most integers are worth one or two bits. So
the g integers of a *group* are one symbol, g as large as a table of their joint distribution stays
small. A group with an integer beyond the table's reach is escaped: the table's last symbol, then its
integers one by one with a table of longer reach, whose last symbol says that a value follows raw.

Groups of three or four Gaussian coefficients have a symbol only if their sum is even: they are points
of the lattice D_g. Half as many symbols save up to a bit per group, and D₄ packs four dimensions so
well that a step smaller by a tenth, which makes up for the distortion, costs less than that.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import cache
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

__all__ = [
    "CLASSES",
    "COEFFICIENT_SHAPES",
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

COEFFICIENT_SHAPES: tuple[Shape, Shape] = ("gauss", "laplace")
"""By the bit that stands for a component's."""

CLASSES = range(-16, 41)
"""Classes of scale: 2^−4 to 2^10 in quarter octaves."""

PRECISION = 24
"""Frequencies of a table sum to 2^24."""

_ESCAPE_WEIGHT = 1 << 10
_FRACTION_BITS = 96
_WIDEST = 4096
_MOST_TOGETHER = 4
_LARGEST_JOINT = 8192
"""Entries of a joint table at most: its 32 KiB of cumulated frequencies stay near."""


class Grouping(NamedTuple):
    """How the integers of a class are coded together.

    Attributes:
        reach: largest magnitude within a group that is not escaped, M.
        size: integers per group, g.
        even: 1 if only groups of an even sum have symbols, otherwise 0.
    """

    reach: int
    size: int
    even: int

    @property
    def odd(self) -> int:
        """The lowest bit of Σ (v_i + M)·(2M + 1)^i for groups v of an even sum."""
        return self.size * self.reach & self.even

    @property
    def escape(self) -> int:
        """The symbol of an escaped group, after those of all others."""
        return ((2 * self.reach + 1) ** self.size + self.even - self.odd) >> self.even


def rounding(shape: Shape, class_: int) -> tuple[int, int]:
    """Offset of the rounding as a fraction: |x| becomes ⌊|x| + offset⌋.

    Below a half is a dead zone: a smaller integer costs fewer bits, the more so the rarer the larger
    one is, that is for coefficients of small scale.
    """
    if shape == "basis":
        return 1, 2
    return min(max(32 + 3 * class_, 16), 36), 80


@cache
def reach(class_: int) -> int:
    """Largest magnitude with a symbol of its own when integers of a class are coded one by one."""
    return min(int(10 * 2.0 ** (class_ / 4)) + 6, _WIDEST)


@cache
def grouping(shape: Shape, class_: int) -> Grouping:
    """How the integers of a class are coded together."""
    near = int(4 * 2.0 ** (class_ / 4)) + 1
    for size in range(_MOST_TOGETHER, 1, -1):
        together = Grouping(near, size, int(shape == "gauss" and size > 2))
        if together.escape < _LARGEST_JOINT:
            return together
    return Grouping(reach(class_), 1, 0)


@cache
def groupings() -> np.ndarray:
    """Of coefficients: `Grouping` by shape and class, from the smallest class on, int32, shape (2, 3, classes)."""
    of_shapes = [[grouping(shape, class_) for class_ in CLASSES] for shape in COEFFICIENT_SHAPES]
    return np.array(of_shapes, dtype=np.int32).transpose(0, 2, 1).copy()


@cache
def joint_frequencies(shape: Shape, class_: int) -> np.ndarray:
    """Integer frequencies of groups and of the escape, int64, sum 2^24, all positive; the escape's is the last.

    The group v₀ … v_{g−1} is symbol Σ (v_i + M)·(2M + 1)^i; where only groups of an even sum have symbols, half of
    that, rounded down.
    """
    together, R = grouping(shape, class_), reach(class_)
    M = together.reach
    single = frequencies(shape, class_)[R - M : R + M + 1]
    joint = single
    for _ in range(together.size - 1):
        joint = (joint[:, None] * single >> PRECISION).ravel()
    near = int(joint.sum())
    joint = joint[together.odd :: 1 + together.even]
    free = (1 << PRECISION) - len(joint) - 1 - _ESCAPE_WEIGHT
    # What groups out of reach have of the product is the escape's.
    joint = joint * (free * near >> PRECISION) // int(joint.sum())
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
