"""Entropy coding of small integers with a range coder and integer probability tables.

A table is the distribution of a rounded zero-mean variable of scale s = 2^(t/4), t its class. All
tables are made with integers (and `Decimal.exp`, which is correctly rounded), so encoder and
decoders on unlike machines hold the same frequencies to the last bit. `constriction` is handed
weights that already sum to what it distributes, so its own normalization multiplies by exactly 1.

Magnitudes beyond a table are escaped: the table's last symbol, then the value in 25 raw bits.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import cache
from math import isqrt
from typing import Any, Literal

import numpy as np

from hilosync.compress.passes import from_symbols, to_symbols
from hilosync.errors import MalformedPayload

__all__ = ["CLASSES", "LARGEST_INTEGER", "Shape", "SymbolReader", "SymbolWriter", "frequencies", "reach", "rounding"]

Shape = Literal["gauss", "laplace", "basis"]
"""Distribution and rounding: coefficients are rounded with a dead zone, bases to nearest."""

CLASSES = range(-16, 41)
"""Classes of scale: 2^−4 to 2^10 in quarter octaves."""

LARGEST_INTEGER = (1 << 24) - 1
"""Largest magnitude that can be coded: the largest for which every integer is an fp32 value."""

_PRECISION = 24
_ESCAPE_WEIGHT = 1 << 10
_FRACTION_BITS = 96
_WIDEST = 4096
_RARE_BELOW = 0


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
    """Largest magnitude with a symbol of its own in the tables of a class."""
    return min(int(10 * 2.0 ** (class_ / 4)) + 6, _WIDEST)


@cache
def frequencies(shape: Shape, class_: int) -> np.ndarray:
    """Integer frequencies of −M … M and of the escape, int64, shape (2M + 2,), sum 2^24, all positive."""
    M = reach(class_)
    count = 2 * M + 2
    tail = _laplace_tail(class_, M) if shape == "laplace" else _gauss_tail(shape, class_, M)
    free = (1 << _PRECISION) - count - _ESCAPE_WEIGHT
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


def _coder() -> Any:
    """The range coder's module, loaded by the first payload."""
    from constriction import stream  # pyright: ignore[reportAttributeAccessIssue]

    return stream


@cache
def _model(shape: Shape, class_: int) -> Any:
    weights = (frequencies(shape, class_) - 1).astype(np.float32)
    return _coder().model.Categorical(weights, perfect=False)


@cache
def _uniform(size: int) -> Any:
    return _coder().model.Uniform(size)


@cache
def _geometric(size: int) -> Any:
    """Model of non-negative steps: each next one is about 0.6 times as likely."""
    weights, left = [], (1 << _PRECISION) - size
    for _ in range(size - 1):
        weights.append(left * 2 // 5)
        left -= weights[-1]
    return _coder().model.Categorical(np.array([*weights, left], dtype=np.float32), perfect=False)


class SymbolWriter:
    """Writes integers, first in first out."""

    def __init__(self) -> None:
        self._encoder = _coder().queue.RangeEncoder()

    def uniform(self, values: np.ndarray, size: int) -> None:
        """Values in 0 … size − 1, all equally likely."""
        if size > 1 and len(values):
            self._encoder.encode(np.asarray(values, dtype=np.int32), _uniform(size))

    def steps(self, values: np.ndarray, size: int) -> None:
        """Values in 0 … size − 1, small ones likely."""
        if len(values):
            self._encoder.encode(np.asarray(values, dtype=np.int32), _geometric(size))

    def integers(self, values: np.ndarray, shape: Shape, class_: int) -> None:
        """Signed integers, int32, shape (count,), with the tables of a class."""
        M, symbols = reach(class_), np.empty_like(values)
        escaped = to_symbols(values, M, symbols)
        self._encoder.encode(symbols, _model(shape, class_))
        if escaped:
            self._escape(values[np.abs(values) > M])

    def _escape(self, values: np.ndarray) -> None:
        self.uniform(values < 0, 2)
        self.uniform(np.abs(values), LARGEST_INTEGER)

    def finish(self) -> bytes:
        """All that was written, as little-endian 32-bit words."""
        return self._encoder.get_compressed().astype("<u4").tobytes()


class SymbolReader:
    """Reads what a `SymbolWriter` wrote, given the same calls."""

    def __init__(self, words: bytes | memoryview) -> None:
        if len(words) % 4:
            raise MalformedPayload(f"expected whole 32-bit words of coded integers, got {len(words)} bytes")
        self._decoder = _coder().queue.RangeDecoder(np.frombuffer(words, dtype="<u4").astype(np.uint32))

    def uniform(self, count: int, size: int) -> np.ndarray:
        """`count` values in 0 … size − 1."""
        return self.symbols(_uniform(size), count) if size > 1 else np.zeros(count, dtype=np.int32)

    def steps(self, count: int, size: int) -> np.ndarray:
        """`count` values in 0 … size − 1."""
        return self.symbols(_geometric(size), count)

    def integers(self, out: np.ndarray, shape: Shape, class_: int) -> None:
        """Fills `out`, flat, int32 or fp32, with signed integers of a class."""
        M = reach(class_)
        symbols = self.symbols(_model(shape, class_), len(out))
        if escaped := from_symbols(symbols, M, out):
            negative = self.uniform(escaped, 2)
            out[symbols > 2 * M] = self.uniform(escaped, LARGEST_INTEGER) * (1 - 2 * negative)

    def finish(self) -> None:
        """Checks that nothing is left over.

        Raises:
            MalformedPayload: there are more words than symbols.
        """
        if not self._decoder.maybe_exhausted():
            raise MalformedPayload("coded integers are left over after the last block")

    def symbols(self, model: Any, count: int) -> np.ndarray:
        """The next symbols of one of the coder's models, int32, shape (count,)."""
        try:
            return self._decoder.decode(model, count)
        # The library raises AssertionError for words that no encoder writes.
        except AssertionError as error:
            raise MalformedPayload(f"coded integers cannot be decoded: {error}") from error
