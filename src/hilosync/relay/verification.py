"""What a relay can check of an object by its name alone, before it gives it out again."""

from __future__ import annotations

import re
from collections import OrderedDict

from blake3 import blake3

from hilosync.errors import ChainBroken, MalformedRecord
from hilosync.wire import decode_genesis, decode_manifest, decode_record, record_hash

__all__ = ["Verifier", "is_immutable", "is_mark"]

_RECORD = re.compile(r"steps/\d{20}")
_MANIFEST = re.compile(r"snapshots/\d{20}")
_BLOB = re.compile(r"blobs/[0-9a-f]{64}")
_MARK = re.compile(r"(steps|snapshots)/oldest|snapshots/index")

_REMEMBERED = 4096
"""Records whose hashes are remembered, 32 bytes each."""


def is_immutable(path: str) -> bool:
    """Whether this is the name of a record, a manifest or a blob: bytes that never change."""
    return any(kind.fullmatch(path) for kind in (_RECORD, _MANIFEST, _BLOB))


def is_mark(path: str) -> bool:
    """Whether this is the name of one of the few small objects that change."""
    return _MARK.fullmatch(path) is not None


class Verifier:
    """Checks records, manifests and blobs; it remembers the hashes of the records that it has seen."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, bytes] = OrderedDict()

    def check(self, path: str, content: bytes | bytearray | memoryview) -> None:
        """Checks a whole object.

        Records and manifests are checked against the hashes that they hold and against the number in
        their name, records also against the record before them if that has passed here; blobs against
        the hash that is their name. Of marks nothing can be checked.

        Raises:
            MalformedRecord: a byte is not as it was written, or it is another object than its name says.
            ChainBroken: a record does not follow the one before it.
        """
        if _BLOB.fullmatch(path):
            found = blake3(content).hexdigest()
            if found != path.removeprefix("blobs/"):
                raise MalformedRecord(f"damaged blob: expected {path[6:22]}…, got {found[:16]}…")
        elif _MANIFEST.fullmatch(path):
            _expect(path, decode_manifest(content).version)
        elif _RECORD.fullmatch(path):
            self._check_record(path, content)

    def _check_record(self, path: str, content: bytes | bytearray | memoryview) -> None:
        version = int(path.removeprefix("steps/"))
        if version == 0:
            decode_genesis(content)
        else:
            record = decode_record(content)
            _expect(path, record.version)
            expected = self._hashes.get(version - 1)
            if expected is not None and record.previous != expected:
                raise ChainBroken(
                    f"record {version} does not follow record {version - 1} as it passed here: expected "
                    f"{expected.hex()[:16]}…, got {record.previous.hex()[:16]}…; restart this relay for another run"
                )
        self._hashes[version] = record_hash(content)
        while len(self._hashes) > _REMEMBERED:
            self._hashes.popitem(last=False)


def _expect(path: str, version: int) -> None:
    if int(path.rpartition("/")[2]) != version:
        raise MalformedRecord(f"another object in the place of {path}: it calls itself version {version}")
