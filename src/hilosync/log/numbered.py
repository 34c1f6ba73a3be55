"""Objects that are named by a version, in folders whose older ones are removed behind a mark."""

from __future__ import annotations

from collections.abc import Iterable

from hilosync.errors import LogUnavailable
from hilosync.log.named import NamedObjects

__all__ = ["DIGITS", "numbered", "numbers_in", "read_mark"]

DIGITS = 20
"""Decimal digits of a version in a name: enough for 64 bits, so that names sort like versions."""


def numbered(folder: str, version: int) -> str:
    """The name of a version's object."""
    return f"{folder}/{version:0{DIGITS}d}"


def numbers_in(names: Iterable[str]) -> list[int]:
    """The versions among the names of a folder, in their order; other names are left out."""
    return [int(name) for name in names if len(name) == DIGITS and name.isdecimal()]


def read_mark(objects: NamedObjects, path: str, meaning: str) -> int:
    """The oldest version that a folder keeps, in decimal; 0 while nothing has been forgotten.

    Args:
        objects: where the mark is.
        path: its name.
        meaning: which version it is, for the message.

    Raises:
        LogUnavailable: it holds something else.
    """
    mark = objects.get(path)
    if mark is None:
        return 0
    if not mark.isdigit() or len(mark) > DIGITS:
        raise LogUnavailable(
            f"{objects.url}: {path} is damaged: expected a version, got {mark[:DIGITS]!r}; write {meaning} into it"
        )
    return int(mark)
