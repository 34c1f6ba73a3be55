"""Entropy coding of small integers with a range coder and integer probability tables (`tables`).

`constriction` is handed weights that already sum to what it distributes, so its own normalization
multiplies by exactly 1, and its probabilities are the tables' integers.

Integers that are coded one by one and are beyond a table: the table's last symbol, then the value in
25 raw bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from hilosync.compress.symbols import escaped_places, group, symbol_counts, ungroup
from hilosync.compress.tables import PRECISION, Shape, frequencies, grouping, joint_frequencies, reach
from hilosync.errors import MalformedPayload

__all__ = ["LARGEST_INTEGER", "SymbolReader", "SymbolWriter"]

LARGEST_INTEGER = (1 << 24) - 1
"""Largest magnitude that can be coded: the largest for which every integer is an fp32 value."""


def _coder() -> Any:
    """The range coder's module, loaded by the first payload."""
    from constriction import stream  # pyright: ignore[reportAttributeAccessIssue]

    return stream


def _categorical(table: np.ndarray) -> Any:
    """The coder's model that has exactly these frequencies, which sum to 2^24."""
    return _coder().model.Categorical((table - 1).astype(np.float32), perfect=False)


@cache
def _single(shape: Shape, class_: int) -> Any:
    return _categorical(frequencies(shape, class_))


@cache
def _joint(shape: Shape, class_: int) -> Any:
    return _categorical(joint_frequencies(shape, class_))


@cache
def _uniform(size: int) -> Any:
    return _coder().model.Uniform(size)


@cache
def _geometric(size: int) -> Any:
    """Model of non-negative steps: each next one is about 0.6 times as likely."""
    weights, left = [], (1 << PRECISION) - size
    for _ in range(size - 1):
        weights.append(left * 2 // 5)
        left -= weights[-1]
    return _categorical(np.array([*weights, left]) + 1)


class SymbolWriter:
    """Writes integers, first in first out."""

    def __init__(self) -> None:
        self._encoder = _coder().queue.RangeEncoder()

    def uniform(self, values: np.ndarray, size: int) -> None:
        """Values in 0 … size − 1, all equally likely."""
        if size > 1 and len(values):
            self._encoder.encode(values.astype(np.int32, copy=False), _uniform(size))

    def steps(self, values: np.ndarray, size: int) -> None:
        """Values in 0 … size − 1, small ones likely."""
        if len(values):
            self._encoder.encode(values.astype(np.int32, copy=False), _geometric(size))

    def groups(self, symbols: np.ndarray, shape: Shape, class_: int) -> None:
        """Symbols of groups, int32, with the joint table of a class; escaped integers follow by `integers`."""
        self._encoder.encode(symbols, _joint(shape, class_))

    def bases(self, values: np.ndarray, class_: int) -> None:
        """Integers of basis vectors, int32, shape (count,), in groups."""
        together = grouping("basis", class_)
        symbols = np.empty(symbol_counts(len(values), together.size), np.int32)
        escaped = group(values, together.reach, together.size, symbols)
        self.groups(symbols, "basis", class_)
        if escaped:
            self.integers(values[escaped_places(symbols, together, len(values))], "basis", class_)

    def integers(self, values: np.ndarray, shape: Shape, class_: int) -> None:
        """Signed integers, int32, shape (count,), one by one with the longer table of a class."""
        M = reach(class_)
        beyond = np.abs(values) > M
        self._encoder.encode(np.where(beyond, 2 * M + 1, values + M).astype(np.int32), _single(shape, class_))
        self.uniform(values[beyond] < 0, 2)
        self.uniform(np.abs(values[beyond]), LARGEST_INTEGER)

    def finish(self) -> bytes:
        """All that was written, as little-endian 32-bit words."""
        return self._encoder.get_compressed().astype("<u4", copy=False).tobytes()


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

    def groups(self, count: int, shape: Shape, class_: int) -> np.ndarray:
        """`count` symbols of groups."""
        return self.symbols(_joint(shape, class_), count)

    def bases(self, count: int, class_: int) -> np.ndarray:
        """`count` integers, int32, that `SymbolWriter.bases` wrote."""
        together, values = grouping("basis", class_), np.empty(count, np.int32)
        symbols = self.groups(symbol_counts(count, together.size), "basis", class_)
        if ungroup(symbols, *together, values):
            places = escaped_places(symbols, together, count)
            values[places] = self.integers(len(places), "basis", class_)
        return values

    def integers(self, count: int, shape: Shape, class_: int) -> np.ndarray:
        """`count` signed integers, int32, that `SymbolWriter.integers` wrote."""
        M = reach(class_)
        values = self.symbols(_single(shape, class_), count) - M
        beyond = values > M
        if escaped := int(beyond.sum()):
            signs = 1 - 2 * self.uniform(escaped, 2)
            values[beyond] = signs * self.uniform(escaped, LARGEST_INTEGER)
        return values

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
