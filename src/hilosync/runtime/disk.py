"""Where a process keeps what must survive it: a few named files, each replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from hilosync.errors import ConfigurationError, DiskUnavailable
from hilosync.log.objects import sync
from hilosync.runtime.points import reach

__all__ = ["Disk", "FileDisk"]


class Disk(Protocol):
    """Named files of one process, or of several that use other names.

    Atomicity: whoever reads a name gets the bytes of one `write` whole, or None; also after a crash.
    Durability: when `write` returns, the bytes survive a crash of the process and of the machine.
    Errors: `DiskUnavailable` when the disk refuses; the old bytes are then still there.
    Names are 1 to 128 letters, digits, ``.``, ``_`` and ``-``, and begin with a letter or digit.
    """

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, or None if there is none."""
        ...

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Replaces a file by the concatenation of `parts`, which the caller may change once it returns."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        ...

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        ...


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PARTIAL = ".partial"
_LARGEST_FILE = 1 << 40

_ADVICE = {
    errno.ENOSPC: "free some space there, or choose another folder",
    errno.EDQUOT: "free some space there, or choose another folder",
    errno.EFBIG: "raise the limit on file sizes, or choose another folder",
    errno.EACCES: "ask for access, or choose another folder",
    errno.EPERM: "ask for access, or choose another folder",
    errno.EROFS: "mount it writable, or choose another folder",
    errno.ENOTDIR: "a part of the path is a file: choose another folder",
    errno.EISDIR: "a directory is in the file's place: move it away, or choose another folder",
    errno.EIO: "the device fails: choose a folder on another one",
}


class FileDisk:
    """`Disk` in a folder, which the first `write` makes."""

    def __init__(self, folder: str | Path):
        self._folder = Path(folder).expanduser().absolute()

    def __str__(self) -> str:
        return str(self._folder)

    def read(self, name: str) -> bytes | None:
        """See `Disk.read`."""
        path = self._path(name)
        with _explained(path, "read"):
            try:
                with path.open("rb") as stream:
                    size = os.fstat(stream.fileno()).st_size
                    if size > _LARGEST_FILE:
                        raise DiskUnavailable(f"{path} has {size} bytes: expected at most {_LARGEST_FILE}; remove it")
                    return stream.read()
            except FileNotFoundError:
                return None

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """See `Disk.write`."""
        path = self._path(name)
        with _explained(path, "write"):
            self._folder.mkdir(parents=True, exist_ok=True)
            # What a killed process left half-written. Should another one be writing this name just
            # now, its write fails and is reported: only one process may use a name.
            for partial in self._folder.glob(f"{name}.*{_PARTIAL}"):
                partial.unlink(missing_ok=True)
            partial = path.with_name(f"{name}.{secrets.token_hex(8)}{_PARTIAL}")
            try:
                with partial.open("xb") as stream:
                    for part in parts:
                        stream.write(part)
                    stream.flush()
                    os.fsync(stream.fileno())
                reach("before rename")
                partial.replace(path)
            except BaseException:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
                raise
            reach("after rename")
            sync(self._folder)

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        path = self._path(name)
        with _explained(path, "remove"), suppress(FileNotFoundError):
            path.unlink()
            sync(self._folder)

    def names(self) -> list[str]:
        """See `Disk.names`."""
        with _explained(self._folder, "list"):
            try:
                entries = [entry.name for entry in self._folder.iterdir() if entry.is_file()]
            except FileNotFoundError:
                return []
        return sorted(entry for entry in entries if _NAME.fullmatch(entry) and not entry.endswith(_PARTIAL))

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.endswith(_PARTIAL):
            raise ConfigurationError(
                f"a file cannot be named {name[:200]!r}: expected 1 to 128 letters, digits, '.', '_' and '-', the "
                f"first of them a letter or digit, and not {_PARTIAL!r} at the end"
            )
        return self._folder / name


@contextmanager
def _explained(path: Path, doing: str) -> Iterator[None]:
    """Turns the system's error into one line that names the file, the reason and what helps."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DiskUnavailable(f"cannot {doing} {path}: {reason}{f'; {advice}' if advice else ''}") from error
