"""One object over several connections, in pieces.

A packet that is lost halves the rate of its connection. Over a wide-area path it takes many round trips to grow
again, so that a single connection stays far below what the path could carry, and several of them add up.
"""

from __future__ import annotations

__all__ = ["FIRST_PIECE", "WAYS", "cut"]

WAYS = 8
"""Connections that an object comes over, at most."""

FIRST_PIECE = 256 << 10
"""Bytes that are asked for before the object's size is known; an object of no more than that comes in one piece."""


def cut(start: int, size: int, longest: int | None = None) -> list[tuple[int, int]]:
    """Where the pieces of an object begin and end: the first one, and the rest in equal parts for the other ways.

    Args:
        start: offset of the first byte that is wanted.
        size: bytes of the whole object, more than `start`.
        longest: bytes of a piece at most; None for no limit.
    """
    second = min(start + FIRST_PIECE, size)
    length = max(-(-(size - second) // (WAYS - 1)), FIRST_PIECE)
    length = length if longest is None else min(length, longest)
    return [(start, second), *((first, min(first + length, size)) for first in range(second, size, length))]
