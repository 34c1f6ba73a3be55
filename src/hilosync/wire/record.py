"""The record: one optimizer step as bytes (docs/wire.md gives the layout).

    header (184) ‖ [signature (64)] ‖ check (8) ‖ scalars ‖ tags ‖ payload

Every byte is covered: the body by a hash in the header, header and signature by the check, the
predecessor by its hash. All integers and floats are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from hilosync.errors import MalformedRecord
from hilosync.wire.frame import (
    CHECK_BYTES,
    FORMAT_VERSION,
    MAGIC,
    RECORD_HEADER_BYTES,
    RECORD_KIND,
    Buffer,
    Limits,
    check_of,
    open_frame,
)

__all__ = [
    "SIGNATURE_BYTES",
    "Record",
    "Signer",
    "body_hash",
    "decode_record",
    "encode_record",
    "record_overhead",
]

SIGNATURE_BYTES = 64
_SIGNED = 1  # the only flag of format version 1

Signer = Callable[[bytes], bytes]
"""Returns the 64-byte Ed25519 signature of a record's fixed header."""

# magic, kind, format version, flags, epoch, version, run, plan, configuration, previous, digest,
# body hash, groups, scalars per group, blocks, payload bytes
_HEADER = struct.Struct("<4sBBHQQ16s16s16s32s32s32sHHIQ")
_LARGEST_U64 = (1 << 64) - 1
_FIELD_BYTES = {"run": 16, "plan": 16, "configuration": 16, "previous": 32, "digest": 32}


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One optimizer step.

    Attributes:
        run: the run's id, 16 bytes.
        epoch: which life of the learner wrote it; grows with every restart.
        version: the policy version that this step makes, 1 for the first.
        previous: `record_hash` of record version − 1 (of the genesis for version 1), 32 bytes.
        plan: fingerprint of the adapter plan, 16 bytes.
        configuration: `configuration_fingerprint` of the genesis, 16 bytes.
        scalars: the optimizer's scalars of this step, fp32, shape (groups, names), exact bits.
        tags: 16 bits of each block's state sum after the step, uint16, shape (blocks,): they name
            the tensor in which a diverged replica differs.
        payload: the compressed gradient, opaque here.
        digest: the digest of parameters and optimizer state after the step, 32 bytes.
        signature: Ed25519 over the fixed header, 64 bytes, or None.

    Raises:
        MalformedRecord: a field of another length, type or shape.
    """

    run: bytes
    epoch: int
    version: int
    previous: bytes
    plan: bytes
    configuration: bytes
    scalars: np.ndarray
    tags: np.ndarray
    payload: bytes | memoryview
    digest: bytes
    signature: bytes | None = None

    def __post_init__(self) -> None:
        for name, length in _FIELD_BYTES.items():
            found = len(getattr(self, name))
            if found != length:
                raise MalformedRecord(f"record's {name}: expected {length} bytes, got {found}")
        if not 0 <= self.epoch <= _LARGEST_U64:
            raise MalformedRecord(f"record's epoch: expected an unsigned 64-bit integer, got {self.epoch}")
        if not 1 <= self.version <= _LARGEST_U64:
            raise MalformedRecord(f"record's version: expected 1 to 2^64 − 1, got {self.version}")
        if self.scalars.dtype != np.float32 or self.scalars.ndim != 2:
            raise MalformedRecord(
                f"record's scalars: expected float32 of shape (groups, names), "
                f"got {self.scalars.dtype} of shape {self.scalars.shape}"
            )
        if self.tags.dtype != np.uint16 or self.tags.ndim != 1:
            raise MalformedRecord(
                f"record's tags: expected uint16 of shape (blocks,), got {self.tags.dtype} of shape {self.tags.shape}"
            )
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise MalformedRecord(f"record's signature: expected {SIGNATURE_BYTES} bytes, got {len(self.signature)}")


def record_overhead(blocks: int, groups: int, scalars: int, signed: bool = False) -> int:
    """Bytes of a record besides its payload; a budget less this is what the compressor may use.

    Args:
        blocks: tensors of the plan.
        groups: param groups.
        scalars: scalars per param group.
        signed: whether the record carries a signature.
    """
    return RECORD_HEADER_BYTES + signed * SIGNATURE_BYTES + CHECK_BYTES + 4 * groups * scalars + 2 * blocks


def body_hash(*sections: Buffer) -> bytes:
    """blake3 of a frame's body, given whole or as its sections in order."""
    hasher = blake3()
    for section in sections:
        hasher.update(section)
    return hasher.digest()


def encode_record(record: Record, sign: Signer | None = None) -> bytes:
    """The record's bytes.

    Args:
        record: the record; a signature that it already has is kept, unless `sign` makes a new one.
        sign: signs the fixed header.

    Raises:
        MalformedRecord: more groups, scalars or blocks than the header's fields can count, or a
            signature of another length.
    """
    groups, names = record.scalars.shape
    scalars = record.scalars.astype("<f4").tobytes()
    tags = record.tags.astype("<u2").tobytes()
    signed = sign is not None or record.signature is not None
    try:
        header = _HEADER.pack(
            MAGIC,
            RECORD_KIND,
            FORMAT_VERSION,
            _SIGNED if signed else 0,
            record.epoch,
            record.version,
            record.run,
            record.plan,
            record.configuration,
            record.previous,
            record.digest,
            body_hash(scalars, tags, record.payload),
            groups,
            names,
            len(record.tags),
            memoryview(record.payload).nbytes,
        )
    except struct.error as error:
        raise MalformedRecord(
            f"record does not fit its header: expected at most 65535 groups of 65535 scalars and 2^32 − 1 "
            f"blocks, got {groups} groups of {names} scalars and {len(record.tags)} blocks"
        ) from error
    signature = sign(header) if sign is not None else record.signature or b""
    if signed and len(signature) != SIGNATURE_BYTES:
        raise MalformedRecord(f"record's signature: expected {SIGNATURE_BYTES} bytes, got {len(signature)}")
    return b"".join((header, signature, check_of(header, signature), scalars, tags, record.payload))


def decode_record(data: Buffer, limits: Limits | None = None) -> Record:
    """Reads and verifies a record. Its arrays and its payload are views of `data`: nothing is copied.

    The chain (`previous`, `version`, `run` …) is not checked here: that needs the record before it.

    Raises:
        MalformedRecord: any byte is not as it was written, a length is above its limit, bytes are
            missing or left over.
    """
    limits = limits or Limits()
    view = open_frame(data, RECORD_KIND)
    header = view[:RECORD_HEADER_BYTES]
    fields = _HEADER.unpack(header)
    flags, epoch, version, run, plan, configuration, previous, digest, claimed = fields[3:12]
    groups, names, blocks, payload_bytes = fields[12:]
    if flags & ~_SIGNED:
        raise MalformedRecord(f"record flags {flags:#06x}: expected none but {_SIGNED:#06x}; use a newer hilosync")

    check_at = RECORD_HEADER_BYTES + (SIGNATURE_BYTES if flags & _SIGNED else 0)
    signature = bytes(view[RECORD_HEADER_BYTES:check_at])
    start = check_at + CHECK_BYTES
    check = check_of(header, signature)
    if view[check_at:start] != check:
        raise MalformedRecord(
            f"damaged header of a record that calls itself version {version}: expected check {check.hex()}, "
            f"got {view[check_at:start].hex() or 'nothing'}"
        )
    for name, found, limit in (
        ("param groups", groups, limits.groups),
        ("scalars per group", names, limits.scalars),
        ("blocks", blocks, limits.blocks),
        ("payload bytes", payload_bytes, limits.payload_bytes),
    ):
        if found > limit:
            raise MalformedRecord(f"record {version}: expected at most {limit} {name}, got {found}")
    tags_at = start + 4 * groups * names
    payload_at = tags_at + 2 * blocks
    if len(view) != payload_at + payload_bytes:
        raise MalformedRecord(
            f"record {version}: expected {payload_at + payload_bytes} bytes by its header, got {len(view)}"
        )
    found = body_hash(view[start:])
    if found != claimed:
        raise MalformedRecord(
            f"damaged body of record {version}: expected hash {claimed.hex()[:16]}…, got {found.hex()[:16]}…"
        )
    return Record(
        run=run,
        epoch=epoch,
        version=version,
        previous=previous,
        plan=plan,
        configuration=configuration,
        scalars=np.frombuffer(view[start:tags_at], dtype="<f4").reshape(groups, names),
        tags=np.frombuffer(view[tags_at:payload_at], dtype="<u2"),
        payload=view[payload_at:],
        digest=digest,
        signature=signature or None,
    )
