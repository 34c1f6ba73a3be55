"""Snapshots as bytes: the manifest of a version, and the chunks that it names (docs/wire.md gives the layouts).

    manifest   header (136) ‖ check (8) ‖ chunk keys (32 each)
    chunk      a safetensors file: elements [first, last) of the parameters and of every optimizer slot

Both are functions of the run, the version and its bits alone, so whoever writes the snapshot of a
version writes the same bytes under the same names.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from hilosync.errors import ConfigurationError, MalformedRecord
from hilosync.wire.frame import (
    CHECK_BYTES,
    FORMAT_VERSION,
    MAGIC,
    MANIFEST_HEADER_BYTES,
    MANIFEST_KIND,
    Buffer,
    Limits,
    check_of,
    open_frame,
)

__all__ = [
    "CHUNK_BYTES",
    "Chunk",
    "Manifest",
    "decode_chunk",
    "decode_manifest",
    "elements_per_chunk",
    "encode_chunk",
    "encode_manifest",
    "read_chunk_origin",
]

CHUNK_BYTES = 4 << 20
"""Bytes that no chunk exceeds."""

# magic, kind, format version, flags, version, run, plan, configuration, digest, body hash, elements
# per chunk, chunks
_HEADER = struct.Struct("<4sBBHQ16s16s16s32s32sII")
_KEY_BYTES = 32

# The header of a chunk has a few hundred bytes; an optimizer whose slots need more is refused.
_LARGEST_CHUNK_HEADER = 8192
_ELEMENT_BYTES = 4
_CHUNK_FORMAT = "hilo-chunk-1"
_RUN = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the snapshot of one version is made of.

    Attributes:
        run: the run's id, 16 bytes.
        plan: fingerprint of the adapter plan, 16 bytes.
        configuration: `configuration_fingerprint` of the genesis, 16 bytes.
        version: the policy version.
        digest: the digest of that version, as its record has it, 32 bytes.
        elements: elements of each buffer in a chunk; the last chunk may hold fewer.
        chunks: blob keys in the order of their elements, each 64 hex digits.
    """

    run: bytes
    plan: bytes
    configuration: bytes
    version: int
    digest: bytes
    elements: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Which part of which state a chunk holds.

    Attributes:
        run: the run's id, 16 bytes.
        version: the policy version.
        first: index of the first element that it holds of every buffer.
    """

    run: bytes
    version: int
    first: int


def elements_per_chunk(buffers: int) -> int:
    """Elements of each of `buffers` fp32 buffers that a chunk of at most `CHUNK_BYTES` holds."""
    return (CHUNK_BYTES - _LARGEST_CHUNK_HEADER) // (_ELEMENT_BYTES * buffers)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as bytes."""
    body = b"".join(bytes.fromhex(key) for key in manifest.chunks)
    header = _HEADER.pack(
        MAGIC,
        MANIFEST_KIND,
        FORMAT_VERSION,
        0,
        manifest.version,
        manifest.run,
        manifest.plan,
        manifest.configuration,
        manifest.digest,
        blake3(body).digest(),
        manifest.elements,
        len(manifest.chunks),
    )
    return b"".join((header, check_of(header), body))


def decode_manifest(data: Buffer, limits: Limits | None = None) -> Manifest:
    """Reads a manifest and verifies that its bytes are as they were written, not that they are true.

    Raises:
        MalformedRecord: any byte is not as it was written, a count is not what the format allows,
            bytes are missing or left over.
    """
    limits = limits or Limits()
    view = open_frame(data, MANIFEST_KIND)
    header = view[:MANIFEST_HEADER_BYTES]
    start = MANIFEST_HEADER_BYTES + CHECK_BYTES
    flags, version, run, plan, configuration, digest, claimed, elements, chunks = _HEADER.unpack(header)[3:]
    if flags:
        raise MalformedRecord(f"manifest flags {flags:#06x}: expected none; use a newer hilosync")
    check = check_of(header)
    if view[MANIFEST_HEADER_BYTES:start] != check:
        found = bytes(view[MANIFEST_HEADER_BYTES:start]).hex()
        raise MalformedRecord(f"damaged header of a manifest: expected check {check.hex()}, got {found}")
    if version < 1 or elements < 1 or not 1 <= chunks <= limits.chunks:
        raise MalformedRecord(
            f"manifest of version {version}: expected version 1 or more and 1 to {limits.chunks} chunks of 1 element "
            f"or more, got {chunks} chunks of {elements}"
        )
    if len(view) != start + _KEY_BYTES * chunks:
        raise MalformedRecord(f"manifest: expected {start + _KEY_BYTES * chunks} bytes by its header, got {len(view)}")
    found = blake3(view[start:]).digest()
    if found != claimed:
        raise MalformedRecord(
            f"damaged body of a manifest: expected hash {claimed.hex()[:16]}…, got {found.hex()[:16]}…"
        )
    keys = tuple(bytes(view[at : at + _KEY_BYTES]).hex() for at in range(start, len(view), _KEY_BYTES))
    return Manifest(run, plan, configuration, version, digest, elements, keys)


def encode_chunk(chunk: Chunk, names: Sequence[str], parts: Sequence[Buffer]) -> bytes:
    """A chunk as bytes.

    Args:
        chunk: what it holds.
        names: the buffers' names, in the order of their bytes.
        parts: little-endian fp32 elements of each buffer from `chunk.first` on, all of one length.

    Raises:
        ConfigurationError: the buffers' names do not fit a chunk's header.
    """
    views = [memoryview(part).cast("B") for part in parts]
    return b"".join((_chunk_header(chunk, names, len(views[0]) // _ELEMENT_BYTES), *views))


def decode_chunk(data: Buffer, chunk: Chunk, names: Sequence[str], count: int) -> list[memoryview]:
    """The bytes of `count` elements of each buffer, as views, once the chunk is the one that was asked for.

    The header of a chunk follows from what it holds, so it is compared and never interpreted.

    Raises:
        MalformedRecord: it is a chunk of another run, version, place, length or optimizer, or none at all.
    """
    view = memoryview(data).cast("B")
    header = _chunk_header(chunk, names, count)
    size = _ELEMENT_BYTES * count
    expected = len(header) + size * len(names)
    if view[: len(header)] != header or len(view) != expected:
        origin = read_chunk_origin(view)
        raise MalformedRecord(
            f"expected a chunk of {expected} bytes that holds elements {chunk.first} to {chunk.first + count} of "
            f"version {chunk.version} of run {chunk.run.hex()}, got {len(view)} bytes that hold "
            + (
                "no chunk"
                if origin is None
                else f"elements from {origin.first} of version {origin.version} of run {origin.run.hex()}"
            )
        )
    return [view[len(header) + size * i : len(header) + size * (i + 1)] for i in range(len(names))]


def read_chunk_origin(data: Buffer) -> Chunk | None:
    """Which run and version a blob says that it is a chunk of; None for a blob that is no chunk."""
    view = memoryview(data).cast("B")
    if len(view) < 8:
        return None
    (length,) = struct.unpack_from("<Q", view)
    if not 2 <= length <= min(_LARGEST_CHUNK_HEADER, len(view) - 8):
        return None
    try:
        metadata = json.loads(bytes(view[8 : 8 + length]))["__metadata__"]
        if metadata["format"] != _CHUNK_FORMAT or not _RUN.fullmatch(metadata["run"]):
            return None
        version, first = metadata["version"], metadata["first"]
        if not (_NUMBER.fullmatch(version) and _NUMBER.fullmatch(first)):
            return None
        return Chunk(bytes.fromhex(metadata["run"]), int(version), int(first))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _chunk_header(chunk: Chunk, names: Sequence[str], count: int) -> bytes:
    size = _ELEMENT_BYTES * count
    entries = {
        name: {"data_offsets": [i * size, (i + 1) * size], "dtype": "F32", "shape": [count]}
        for i, name in enumerate(names)
    }
    metadata = {
        "first": str(chunk.first),
        "format": _CHUNK_FORMAT,
        "run": chunk.run.hex(),
        "version": str(chunk.version),
    }
    text = json.dumps({"__metadata__": metadata, **entries}, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if 8 + len(text) > _LARGEST_CHUNK_HEADER:
        raise ConfigurationError(
            f"the names of the optimizer's {len(names) - 1} slots make a chunk's header of {8 + len(text)} bytes: "
            f"expected at most {_LARGEST_CHUNK_HEADER}; use an optimizer with fewer or shorter names"
        )
    return struct.pack("<Q", len(text)) + text
