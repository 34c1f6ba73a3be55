"""The genesis: record 0, from which anyone can build version 0 of the policy.

    header (48) ‖ check (8) ‖ JSON

It names the adapter's tensors, the optimizer, the compressor and the seed; the records after it
need nothing else to be replayed.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Any

import msgspec
from blake3 import blake3

from hilosync.errors import ConfigurationError, MalformedRecord
from hilosync.wire.frame import (
    CHECK_BYTES,
    FORMAT_VERSION,
    GENESIS_HEADER_BYTES,
    GENESIS_KIND,
    MAGIC,
    Buffer,
    Limits,
    check_of,
    open_frame,
)
from hilosync.wire.record import body_hash

__all__ = [
    "Genesis",
    "PlanLayout",
    "Setup",
    "TensorLayout",
    "configuration_fingerprint",
    "decode_genesis",
    "encode_genesis",
]

# magic, kind, format version, flags, JSON bytes, body hash
_HEADER = struct.Struct("<4sBBHQ32s")

_Length = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Group = Annotated[int, msgspec.Meta(ge=0, le=(1 << 16) - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_RunId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Key = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Initial = Annotated[str, msgspec.Meta(pattern=r"\A(seed|[0-9a-f]{64})\Z")]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class TensorLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the adapter plan, as `hilosync.plan.Block` has it."""

    name: _Name
    rows: _Length
    columns: _Length
    fan_in: _Count = 0
    group: _Group = 0


class PlanLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The adapter plan: its tensors in canonical order, and the bytes of an element as served."""

    blocks: tuple[TensorLayout, ...]
    bytes_per_element: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registered optimizer or compressor: its name and its settings, JSON values."""

    name: _Name
    settings: dict[str, Any] = {}


class Genesis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run is.

    Attributes:
        run: the run's id, 16 bytes as 32 lower-case hex digits.
        seed: determines the initial adapter, the prompts and the sampling noise.
        created_by: the program that began the run, for people.
        plan: the adapter's tensors.
        optimizer: the transition that every replica replays.
        compressor: reads the payloads.
        budget: largest bytes of a record, header included; None for no limit.
        base_model: what the adapter is an adapter of: a path or a hub id, or None.
        peft: the PEFT configuration an engine is served the adapter with, or None.
        initial: ``"seed"``, or the blob key of an initial snapshot.
        task: free for the rollout side; opaque here.
        key: Ed25519 public key that signs every record, 64 hex digits; None for a run without signatures.
    """

    run: _RunId
    seed: _Seed
    created_by: str
    plan: PlanLayout
    optimizer: Setup
    compressor: Setup
    budget: Annotated[int, msgspec.Meta(ge=1)] | None = None
    base_model: str | None = None
    peft: dict[str, Any] | None = None
    initial: _Initial = "seed"
    task: dict[str, Any] = {}
    key: _Key | None = None

    @property
    def run_id(self) -> bytes:
        """The run's id as the 16 bytes that records carry."""
        return bytes.fromhex(self.run)


def configuration_fingerprint(genesis: Genesis) -> bytes:
    """16 bytes that two runs share exactly when a payload means the same transition in both.

    It covers compressor and optimizer with their settings, the initial state and the seed; neither
    the plan, which has a fingerprint of its own, nor budget, model, task or key, which change no bit of
    what a given record does.
    """
    meaning = {
        "compressor": genesis.compressor,
        "initial": genesis.initial,
        "optimizer": genesis.optimizer,
        "seed": genesis.seed,
    }
    return blake3(b"hilo-configuration-1\n" + _canonical_json(meaning)).digest(16)


def encode_genesis(genesis: Genesis) -> bytes:
    """The genesis as record 0's bytes; its `record_hash` is the `previous` of record 1.

    Raises:
        ConfigurationError: a field that a reader would refuse, or that JSON cannot carry (NaN …).
    """
    text = _canonical_json(genesis)
    header = _HEADER.pack(MAGIC, GENESIS_KIND, FORMAT_VERSION, 0, len(text), body_hash(text))
    data = b"".join((header, check_of(header), text))
    try:
        decode_genesis(data)
    except MalformedRecord as error:
        raise ConfigurationError(f"this run cannot be described: {error}") from error
    return data


def decode_genesis(data: Buffer, limits: Limits | None = None) -> Genesis:
    """Reads and verifies a genesis.

    Raises:
        MalformedRecord: any byte is not as it was written, a length or a field is not what the
            format allows, bytes are missing or left over.
    """
    limits = limits or Limits()
    view = open_frame(data, GENESIS_KIND)
    header = view[:GENESIS_HEADER_BYTES]
    flags, length, claimed = _HEADER.unpack(header)[3:]
    if flags:
        raise MalformedRecord(f"genesis flags {flags:#06x}: expected none; use a newer hilosync")
    start = GENESIS_HEADER_BYTES + CHECK_BYTES
    check = check_of(header)
    if view[GENESIS_HEADER_BYTES:start] != check:
        raise MalformedRecord(
            f"damaged header of a genesis: expected check {check.hex()}, got {view[GENESIS_HEADER_BYTES:start].hex()}"
        )
    if length > limits.genesis_bytes:
        raise MalformedRecord(f"genesis: expected at most {limits.genesis_bytes} bytes of JSON, got {length}")
    if len(view) != start + length:
        raise MalformedRecord(f"genesis: expected {start + length} bytes by its header, got {len(view)}")
    found = body_hash(view[start:])
    if found != claimed:
        raise MalformedRecord(
            f"damaged body of a genesis: expected hash {claimed.hex()[:16]}…, got {found.hex()[:16]}…"
        )
    try:
        genesis = msgspec.json.decode(view[start:], type=Genesis)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"genesis: {error}") from error
    _check_plan(genesis.plan, limits)
    return genesis


def _check_plan(plan: PlanLayout, limits: Limits) -> None:
    if not 1 <= len(plan.blocks) <= limits.blocks:
        raise MalformedRecord(f"genesis: expected 1 to {limits.blocks} tensors, got {len(plan.blocks)}")
    groups = 1 + max(block.group for block in plan.blocks)
    if groups > limits.groups:
        raise MalformedRecord(f"genesis: expected at most {limits.groups} param groups, got {groups}")
    elements = sum(block.rows * block.columns for block in plan.blocks)
    if elements > limits.elements:
        raise MalformedRecord(f"genesis: expected at most {limits.elements} elements, got {elements}")


def _canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no spaces and shortest floats: one text per value.

    Raises:
        ConfigurationError: JSON has no such value.
    """
    try:
        plain = msgspec.to_builtins(value)
        text = json.dumps(plain, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a setting that JSON cannot carry: {error}; use finite numbers, strings, lists and objects"
        ) from error
