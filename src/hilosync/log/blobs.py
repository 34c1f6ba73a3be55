"""A blob store of objects that are named by their blake3 digest: `blobs/<64 hex digits>`."""

from __future__ import annotations

import re

from blake3 import blake3

from hilosync.errors import LogNotFound, MalformedRecord
from hilosync.log.named import NamedObjects

__all__ = ["ObjectBlobStore"]

_KEY = r"[0-9a-f]{64}"


class ObjectBlobStore:
    """`BlobStore` on objects."""

    def __init__(self, objects: NamedObjects):
        self._objects = objects

    def put(self, content: bytes) -> str:
        """See `BlobStore.put`."""
        key = blake3(content).hexdigest()
        self._objects.create(f"blobs/{key}", content, durable=True)
        return key

    def get(self, key: str) -> bytes:
        """See `BlobStore.get`."""
        # A key can come from anywhere; as a path it must not leave its folder.
        if re.fullmatch(_KEY, key) is None:
            raise LogNotFound(f"{self._objects.url}: no blob {key[:80]!r}: expected 64 hex digits")
        content = self._objects.get(f"blobs/{key}")
        if content is None:
            raise LogNotFound(f"{self._objects.url}: no blob {key}: it was never stored here, or was removed")
        found = blake3(content).hexdigest()
        if found != key:
            raise MalformedRecord(f"{self._objects.url}: damaged blob: expected {key[:16]}…, got {found[:16]}…")
        return content

    def keys(self) -> list[str]:
        """See `BlobStore.keys`."""
        return [name for name in self._objects.names("blobs") if re.fullmatch(_KEY, name)]

    def remove(self, key: str) -> None:
        """See `BlobStore.remove`."""
        if re.fullmatch(_KEY, key):
            self._objects.remove(f"blobs/{key}")
