"""A file system that may lose at a crash whatever was not synced, and the processes' disks on it.

A write lands in the page cache. `sync` makes a file's content durable, `sync_names` the names. A crash keeps
the durable part for sure; of the rest, directory changes survive up to a random one (a journal keeps
their order), and the content of an unsynced file survives whole, as a prefix, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

__all__ = ["SimulatedDisk", "Volume", "flipped"]


class _Content:
    """One file's bytes: what a reader sees, and what a crash is sure to leave."""

    __slots__ = ("bytes", "durable")

    def __init__(self, content: bytes):
        self.bytes = content
        self.durable: bytes | None = None


class Volume:
    """A flat folder of files.

    Attributes:
        changes: grows with every change.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._files: dict[str, _Content] = {}
        self._durable_files: dict[str, _Content] = {}
        self._journal: list[dict[str, _Content | None]] = []

    def read(self, name: str) -> bytes | None:
        """The bytes of a file as a reader sees them now, or None."""
        content = self._files.get(name)
        return None if content is None else content.bytes

    def names(self) -> list[str]:
        """All names, in no particular order."""
        return list(self._files)

    def write(self, name: str, content: bytes) -> None:
        """Creates or overwrites a file, in the page cache."""
        self._change({name: _Content(content)})

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name, in one step, replacing what had that name."""
        self._change({old: None, new: self._files[old]})

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        if name in self._files:
            self._change({name: None})

    def sync(self, name: str) -> None:
        """Makes a file's content durable; its name is another matter."""
        content = self._files[name]
        content.durable = content.bytes

    def sync_names(self) -> None:
        """Makes all creations, renamings and removals so far durable."""
        for change in self._journal:
            _apply(change, self._durable_files)
        self._journal.clear()

    def corrupt(self, name: str, random: Random) -> None:
        """Flips one bit of a file, as a failing disk does."""
        self.changes += 1
        content = self._files[name]
        content.bytes = flipped(content.bytes, random)
        content.durable = content.bytes

    def crash(self, random: Random) -> int:
        """The machine loses power and starts again; returns the number of files that were lost, torn or came back."""
        self.changes += 1
        before = {name: content.bytes for name, content in self._files.items()}
        for change in self._journal[: random.randint(0, len(self._journal))]:
            _apply(change, self._durable_files)
        self._journal.clear()
        for content in self._durable_files.values():
            if content.durable is None:
                kept = random.choice((0, random.randint(0, len(content.bytes)), len(content.bytes)))
                content.bytes = content.durable = content.bytes[:kept]
        self._files = dict(self._durable_files)
        after = {name: content.bytes for name, content in self._files.items()}
        return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())

    def _change(self, change: dict[str, _Content | None]) -> None:
        self.changes += 1
        _apply(change, self._files)
        self._journal.append(change)


class SimulatedDisk:
    """`Disk` on a volume: a file is written aside, synced, renamed, and its name synced.

    Args:
        volume: where the files are; it survives the process.
        operation: called with a description before every primitive operation; raises to crash the process there.
    """

    def __init__(self, volume: Volume, operation: Callable[[str], None]):
        self._volume = volume
        self._operation = operation

    def __str__(self) -> str:
        return "the simulated disk"

    def read(self, name: str) -> bytes | None:
        """See `Disk.read`."""
        self._operation(f"read {name}")
        return self._volume.read(name)

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """See `Disk.write`."""
        aside, written = f"{name}.partial", b""
        for part in parts:
            self._operation(f"write {aside}")
            written += part
            self._volume.write(aside, written)
        self._operation(f"sync {aside}")
        self._volume.sync(aside)
        self._operation(f"rename {aside}")
        self._volume.rename(aside, name)
        self._operation("sync the folder")
        self._volume.sync_names()

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        self._operation(f"remove {name}")
        self._volume.remove(name)

    def names(self) -> list[str]:
        """See `Disk.names`."""
        self._operation("list the folder")
        return [name for name in self._volume.names() if not name.endswith(".partial")]


def _apply(change: dict[str, _Content | None], files: dict[str, _Content]) -> None:
    for name, content in change.items():
        if content is None:
            files.pop(name, None)
        else:
            files[name] = content


def flipped(content: bytes, random: Random) -> bytes:
    """The bytes with one bit flipped."""
    if not content:
        return content
    changed = bytearray(content)
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
