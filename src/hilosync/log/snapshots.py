"""A snapshot index of objects: `snapshots/00000000000000000100` holds the manifest of version 100.

`snapshots/index` names the versions that there are, for readers who cannot list.
"""

from __future__ import annotations

from hilosync.errors import LogUnavailable
from hilosync.log.named import NamedObjects
from hilosync.log.numbered import DIGITS, numbered, numbers_in, read_mark

__all__ = ["INDEX", "ObjectSnapshotIndex", "versions_in"]

INDEX = "snapshots/index"
"""The versions whose manifests are there, in decimal, one a line."""

# The oldest version that may have a snapshot, in decimal; absent while nothing has been forgotten.
_OLDEST = "snapshots/oldest"

_ATTEMPTS = 5


class ObjectSnapshotIndex:
    """`SnapshotIndex` on objects; only `versions` and `forget` list."""

    def __init__(self, objects: NamedObjects):
        self._objects = objects

    def publish(self, version: int, manifest: bytes) -> bool:
        """See `SnapshotIndex.publish`."""
        name = _name(version)
        if version < self._oldest():
            return False
        self._objects.create(name, manifest, durable=True)
        if version < self._oldest():
            # The mark was moved meanwhile, and the removal that follows it may not have seen this manifest.
            self._objects.remove(name)
            return False
        self._write_index()
        return True

    def read(self, version: int) -> bytes | None:
        """See `SnapshotIndex.read`."""
        return None if version < self._oldest() else self._objects.get(_name(version))

    def versions(self) -> list[int]:
        """See `SnapshotIndex.versions`."""
        oldest = self._oldest()
        return sorted(version for version in self._listed() if version >= oldest)

    def forget(self, before: int) -> None:
        """See `SnapshotIndex.forget`."""
        before = max(before, self._oldest())
        if before > self._oldest():
            self._objects.replace(_OLDEST, str(before).encode(), durable=True)
        for version in self._listed():
            if version < before:
                self._objects.remove(_name(version))
        self._write_index()

    def _write_index(self) -> None:
        """Writes what a listing shows, until it still shows that afterwards.

        Of two who write at once, the later one may have listed earlier; it then lists again.
        """
        for _ in range(_ATTEMPTS):
            versions = self.versions()
            self._objects.replace(INDEX, "".join(f"{version}\n" for version in versions).encode(), durable=True)
            if self.versions() == versions:
                return

    def _listed(self) -> list[int]:
        return numbers_in(self._objects.names("snapshots"))

    def _oldest(self) -> int:
        return read_mark(self._objects, _OLDEST, "the oldest version that has a snapshot")


def versions_in(index: bytes | None, url: str) -> list[int]:
    """The versions that the content of `snapshots/index` names; none where there is no index.

    Raises:
        LogUnavailable: it is not a list of versions.
    """
    lines = (index or b"").split()
    if not all(len(line) <= DIGITS and line.isdigit() for line in lines):
        raise LogUnavailable(f"{url}: {INDEX} is damaged: expected versions, one a line; publish a snapshot again")
    return sorted(map(int, lines))


def _name(version: int) -> str:
    return numbered("snapshots", version)
