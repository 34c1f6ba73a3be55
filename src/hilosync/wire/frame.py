"""What every frame of a log has in common: a fixed header, its check, and a hashed body.

A frame is ``header ‖ [signature] ‖ check ‖ body``. The header has a fixed length per kind and
holds the body's hash, so the hash of the header alone stands for the whole frame: it is what the
next record names as its predecessor and what a signature signs. The check, eight bytes of the
blake3 of everything before it, finds damage to the header in the very frame that is damaged,
before a length out of it is believed.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from hilosync.errors import MalformedRecord

__all__ = [
    "CHECK_BYTES",
    "FORMAT_VERSION",
    "GENESIS_HEADER_BYTES",
    "GENESIS_KIND",
    "MAGIC",
    "MANIFEST_HEADER_BYTES",
    "MANIFEST_KIND",
    "PREFIX_BYTES",
    "RECORD_HEADER_BYTES",
    "RECORD_KIND",
    "Buffer",
    "Limits",
    "check_of",
    "open_frame",
    "record_hash",
]

Buffer = bytes | bytearray | memoryview

MAGIC = b"HiLo"
GENESIS_KIND = 0
RECORD_KIND = 1
MANIFEST_KIND = 2
FORMAT_VERSION = 1
PREFIX_BYTES = 8
CHECK_BYTES = 8
GENESIS_HEADER_BYTES = 48
RECORD_HEADER_BYTES = 184
MANIFEST_HEADER_BYTES = 136

_KIND_NAMES = {GENESIS_KIND: "genesis", RECORD_KIND: "record", MANIFEST_KIND: "manifest"}
_HEADER_BYTES = {
    GENESIS_KIND: GENESIS_HEADER_BYTES,
    RECORD_KIND: RECORD_HEADER_BYTES,
    MANIFEST_KIND: MANIFEST_HEADER_BYTES,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest lengths that a decoder believes.

    Attributes:
        payload_bytes: a record's payload.
        blocks: tensors of a plan, and state tags of a record.
        groups: param groups.
        scalars: scalars per param group.
        genesis_bytes: the JSON text of a genesis.
        elements: elements of all tensors of a plan, which a replica allocates several times over.
        chunks: chunks of a snapshot.
    """

    payload_bytes: int = 1 << 30
    blocks: int = 1 << 16
    groups: int = 1 << 10
    scalars: int = 64
    genesis_bytes: int = 1 << 22
    elements: int = 1 << 32
    chunks: int = 1 << 20


def check_of(header: Buffer, signature: Buffer = b"") -> bytes:
    """The check that follows a header and its signature: blake3 of both, cut to 8 bytes."""
    return blake3(header).update(signature).digest(CHECK_BYTES)


def open_frame(data: Buffer, kind: int) -> memoryview:
    """The bytes as a flat view, once they begin like a frame of this kind and of the known format.

    Raises:
        MalformedRecord: too short, another magic number, kind or format version.
    """
    view = memoryview(data).cast("B")
    name = _KIND_NAMES[kind]
    smallest = _HEADER_BYTES[kind] + CHECK_BYTES
    if len(view) < smallest:
        raise MalformedRecord(f"truncated {name}: expected at least {smallest} bytes, got {len(view)}")
    if view[:4] != MAGIC:
        raise MalformedRecord(f"not a HiLo {name}: expected it to begin with {MAGIC!r}, got {bytes(view[:4])!r}")
    if view[4] != kind:
        found = _KIND_NAMES.get(view[4], f"a frame of kind {view[4]}")
        raise MalformedRecord(f"expected a {name} (kind {kind}), got {found}")
    if view[5] != FORMAT_VERSION:
        raise MalformedRecord(
            f"{name} of format version {view[5]}: this program reads version {FORMAT_VERSION}; "
            "use the hilosync that wrote it, or a newer one"
        )
    return view


def record_hash(data: Buffer) -> bytes:
    """The 32 bytes by which the next record names this record or genesis: blake3 of its fixed header.

    The header holds the body's hash, so the result covers the whole frame, except a signature,
    which covers the same header. Nothing is verified here: decode first.

    Raises:
        MalformedRecord: shorter than its header, or neither a record nor a genesis.
    """
    view = memoryview(data).cast("B")
    kind = view[4] if len(view) >= PREFIX_BYTES else RECORD_KIND
    view = open_frame(view, GENESIS_KIND if kind == GENESIS_KIND else RECORD_KIND)
    return blake3(view[: _HEADER_BYTES[kind]]).digest()
