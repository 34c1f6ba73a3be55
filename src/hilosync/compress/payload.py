"""The frame that every built-in payload shares, and the bf16 words inside it.

::

    offset  bytes  field
    0       1      kind: which compressor wrote it
    1       8      xxh3-64 of the kind and the body, little endian
    9       …      body

The checksum makes any damage a `MalformedPayload` at the decoder's door; authenticity is the
record's business (hash chain, signature).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
import xxhash

from hilosync.errors import MalformedPayload

__all__ = ["FRAME_BYTES", "Kind", "bf16_bytes", "bf16_values", "rank_dtype", "seal", "unseal"]

FRAME_BYTES = 9
"""Bytes of a frame around an empty body."""

_CHECKSUM = slice(1, FRAME_BYTES)


class Kind(IntEnum):
    """Which compressor wrote a payload."""

    DENSE = 0
    SPAR = 1
    SPAR_RD = 2
    POWERSGD = 3
    TOPK = 4


def seal(kind: Kind, *parts: bytes | memoryview) -> bytes:
    """Frames the concatenation of `parts`."""
    payload = bytearray().join([bytes(FRAME_BYTES), *parts])
    payload[0] = kind
    payload[_CHECKSUM] = _checksum(kind, memoryview(payload)[FRAME_BYTES:])
    return bytes(payload)


def unseal(kind: Kind, payload: bytes | memoryview) -> memoryview:
    """The body of a framed payload, without a copy.

    Raises:
        MalformedPayload: too short, of another kind, or damaged.
    """
    view = memoryview(payload).cast("B")
    if len(view) < FRAME_BYTES:
        raise MalformedPayload(f"expected a payload of at least {FRAME_BYTES} bytes, got {len(view)}")
    if view[0] != kind:
        raise MalformedPayload(f"expected a payload of kind {kind}, got kind {view[0]}: check the compressor")
    body = view[FRAME_BYTES:]
    if bytes(view[_CHECKSUM]) != _checksum(kind, body):
        raise MalformedPayload("the payload's checksum does not match its bytes: it was damaged; read it again")
    return body


def _checksum(kind: Kind, body: memoryview) -> bytes:
    return xxhash.xxh3_64_intdigest(body, seed=kind).to_bytes(8, "little")


def rank_dtype(largest_rank: int) -> np.dtype:
    """The narrowest unsigned little-endian word that holds every rank of a plan."""
    return np.dtype("u1") if largest_rank < 1 << 8 else np.dtype("<u2" if largest_rank < 1 << 16 else "<u4")


def bf16_bytes(values: torch.Tensor) -> bytes:
    """Rounds to bf16 (nearest, ties to even) and returns the words, row-major, little endian."""
    words = values.to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy()
    return words.astype("<i2", copy=False).tobytes()


def bf16_values(body: memoryview) -> torch.Tensor:
    """Reads bf16 words as fp32 values, exactly; shape (len(body) // 2,).

    Raises:
        MalformedPayload: a word is NaN or Inf.
    """
    words = np.frombuffer(body, dtype="<u2")
    if bool(((words & 0x7F80) == 0x7F80).any()):
        raise MalformedPayload("the payload holds NaN or Inf: no encoder writes one")
    return torch.from_numpy((words.astype(np.uint32) << np.uint32(16)).view(np.float32))
