"""Disks that a test can look into, break, and take a process's life at."""

from __future__ import annotations

from collections.abc import Iterable

from hilosync.errors import DiskUnavailable


class MemoryDisk:
    """A disk whose files are a dict; `full` makes it refuse every write."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.full = False
        self.writes = 0

    def __str__(self) -> str:
        return "a disk in memory"

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        if self.full:
            raise DiskUnavailable(f"cannot write {name}: No space left on device; free some space there")
        self.files[name] = b"".join(parts)
        self.writes += 1

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def names(self) -> list[str]:
        return sorted(self.files)

    def flip(self, name: str, position: int) -> None:
        """Flips one bit of a file."""
        content = bytearray(self.files[name])
        content[position] ^= 4
        self.files[name] = bytes(content)


class Killed(BaseException):
    """What a test raises in the place of SIGKILL: no handler for errors catches it."""


class Killer:
    """Stands in for `reach`: raises `Killed` at the n-th passage of a point."""

    def __init__(self, point: str, passage: int = 1):
        self.point = point
        self.left = passage

    def __call__(self, name: str) -> None:
        if name == self.point:
            self.left -= 1
            if self.left == 0:
                raise Killed(name)
