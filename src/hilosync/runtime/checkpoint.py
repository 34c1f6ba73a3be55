"""Checkpoints: one file that holds a process's state and where in the log it stands.

State and cursor are one file, renamed into place, so they can never disagree. The file is in safetensors
format, with a blake3 of all that it holds among its metadata. Whoever loads one trusts neither the disk
nor the file's age: a damaged file counts as absent, and the position is compared with the log.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from hilosync.errors import ConfigurationError, DiskUnavailable, RunMismatch
from hilosync.optim import PolicyState
from hilosync.protocol import Position, Run
from hilosync.runtime.disk import Disk
from hilosync.runtime.points import reach

__all__ = ["Checkpoint", "Checkpoints", "decode_checkpoint", "default_interval", "encode_checkpoint"]

_FORMAT = "hilo-checkpoint-1"
_CHEAP = 64 << 20
"""Bytes that may be written at every version without slowing a run down."""

_LARGEST_HEADER = 1 << 24
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.uint8: "U8", torch.int64: "I64"}

_logger = logging.getLogger("hilosync")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a process needs to go on.

    Attributes:
        state: parameters and slots at `position`.
        position: where in the log they stand.
        tensors: what the process keeps beside the policy, contiguous, on the CPU: a learner's residual,
            encoder state and generator state, none for a replica.
        record: the bytes of the record of `position`; a learner writes its checkpoint before it
            appends, so the log may lack this record. Empty for a replica.
        extra: the user's own state as JSON values.
    """

    state: PolicyState
    position: Position
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    record: bytes = b""
    extra: Any = None


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's metadata, all strings as safetensors has them."""

    format: str
    run: str
    plan: str
    configuration: str
    version: str
    digest: str
    previous: str
    epoch: str
    extra: str
    content: str = ""


def default_interval(run: Run) -> int:
    """Versions between checkpoints: 1 for states up to 64 MiB, proportionally more beyond."""
    return max(1, -(-4 * run.plan.size * (1 + len(run.optimizer.slots)) // _CHEAP))


def encode_checkpoint(run: Run, checkpoint: Checkpoint) -> list[bytes | memoryview]:
    """The file as parts, whose tensors are views of the checkpoint's: nothing large is copied.

    Raises:
        ConfigurationError: `extra` is no JSON value, or a tensor has a dtype that is not kept.
    """
    position = checkpoint.position
    try:
        extra = json.dumps(checkpoint.extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a checkpoint's extra state must consist of JSON values: {error}") from error
    metadata = _Metadata(
        format=_FORMAT,
        run=run.genesis.run,
        plan=run.plan.fingerprint.hex(),
        configuration=run.configuration.hex(),
        version=str(position.version),
        digest=position.digest.hex(),
        previous=position.previous.hex(),
        epoch=str(position.epoch),
        extra=extra,
    )
    tensors = {"state.params": checkpoint.state.params}
    tensors |= {f"state.slot.{name}": slot for name, slot in checkpoint.state.slots.items()}
    tensors |= {f"own.{name}": tensor for name, tensor in checkpoint.tensors.items()}
    if checkpoint.record:
        tensors["record"] = torch.frombuffer(bytearray(checkpoint.record), dtype=torch.uint8)
    entries: dict[str, Any] = {}
    parts: list[bytes | memoryview] = []
    end = 0
    # The widest elements first, so that every tensor is aligned.
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES:
            raise ConfigurationError(f"a checkpoint cannot keep {name} of {tensor.dtype}: expected fp32, fp64 or bytes")
        content = _bytes(tensor)
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(content)],
        }
        end += len(content)
        parts.append(content)
    digest = _content_digest(entries, metadata, parts)
    header = _header(entries, msgspec.structs.replace(metadata, content=digest))
    header += b" " * (-len(header) % 8)
    return [struct.pack("<Q", len(header)), header, *parts]


def decode_checkpoint(run: Run, data: bytes) -> Checkpoint:
    """Reads and verifies a file.

    Raises:
        RunMismatch: a whole checkpoint of another run, plan or configuration.
        ValueError: the bytes are no whole checkpoint of this run's optimizer.
    """
    (length,) = struct.unpack_from("<Q", data) if len(data) >= 8 else (0,)
    if not 2 <= length <= min(_LARGEST_HEADER, len(data) - 8):
        raise ValueError(f"it is {len(data)} bytes long and does not begin with a safetensors header")
    try:
        entries = json.loads(data[8 : 8 + length])
        metadata = msgspec.convert(entries.pop("__metadata__"), _Metadata)
        if metadata.format != _FORMAT:
            raise ValueError(f"its format is {metadata.format!r}, this program reads {_FORMAT!r}")
        found = _content_digest(
            entries, msgspec.structs.replace(metadata, content=""), [memoryview(data)[8 + length :]]
        )
        if found != metadata.content:
            raise ValueError(f"its content has digest {found[:16]}…, expected {metadata.content[:16]}…")
        tensors = load_safetensors(data)
        position = Position(
            int(metadata.version), bytes.fromhex(metadata.digest), bytes.fromhex(metadata.previous), int(metadata.epoch)
        )
    except (KeyError, AttributeError, TypeError, RecursionError, msgspec.ValidationError, SafetensorError) as error:
        raise ValueError(f"it cannot be read ({error})") from error
    for name, wanted, got in (
        ("run", run.genesis.run, metadata.run),
        ("plan", run.plan.fingerprint.hex(), metadata.plan),
        ("configuration", run.configuration.hex(), metadata.configuration),
    ):
        if wanted != got:
            raise RunMismatch(
                f"the checkpoint belongs to {name} {got}, the log to {name} {wanted}: give this run a folder of "
                "its own, or remove that file"
            )
    state = PolicyState(
        tensors.get("state.params", torch.empty(0)),
        {name: tensors.get(f"state.slot.{name}", torch.empty(0)) for name in run.optimizer.slots},
    )
    for buffer in state.buffers():
        if buffer.shape != (run.plan.size,) or buffer.dtype != torch.float32:
            raise ValueError(f"it lacks buffers of the run's optimizer: expected {run.plan.size} fp32 elements of each")
    own = {name.removeprefix("own."): tensor for name, tensor in tensors.items() if name.startswith("own.")}
    record = tensors["record"].numpy().tobytes() if "record" in tensors else b""
    return Checkpoint(state, position, own, record, json.loads(metadata.extra))


class Checkpoints:
    """One process's checkpoint: a name on a disk, written now and then.

    A write that fails is reported and does not end the run, whose truth is in the log.

    Attributes:
        error: why the newest write failed, or None.
        version: the version of the newest checkpoint written or loaded; None before.
    """

    def __init__(self, disk: Disk, name: str, run: Run, interval: int | None = None):
        """Binds the file `name`.safetensors of a disk to a run.

        Args:
            disk: where it is.
            name: of the process.
            run: what the genesis fixes.
            interval: versions between checkpoints; None for `default_interval`.

        Raises:
            ConfigurationError: the interval is not at least one version.
        """
        if interval is not None and interval < 1:
            raise ConfigurationError(f"checkpoint interval: expected 1 version or more, got {interval}")
        self.error: DiskUnavailable | None = None
        self.version: int | None = None
        self._disk = disk
        self._file = f"{name}.safetensors"
        self._run = run
        self._interval = interval or default_interval(run)

    def due(self, version: int) -> bool:
        """Whether enough versions lie between `version` and the newest checkpoint."""
        return version - (self.version or 0) >= self._interval

    def load(self) -> Checkpoint | None:
        """The checkpoint, or None where there is none, or a damaged one, which is reported.

        Raises:
            RunMismatch: it belongs to another run.
            DiskUnavailable: the disk cannot be read.
        """
        data = self._disk.read(self._file)
        if data is None:
            return None
        try:
            checkpoint = decode_checkpoint(self._run, data)
        except ValueError as error:
            _logger.warning("the checkpoint %s on %s is damaged and will be written anew: %s", *self._where(), error)
            return None
        except RunMismatch as error:
            raise RunMismatch(f"{self._disk}, {self._file}: {error}") from error
        self.version = checkpoint.position.version
        return checkpoint

    def refuse_used(self) -> None:
        """Refuses a place that holds a checkpoint, before a new run would write over it.

        Raises:
            RunMismatch: there is one.
        """
        if self._disk.read(self._file) is not None:
            raise RunMismatch(
                f"{self._disk} holds a checkpoint already, {self._file}: resume its run, or give this one a folder of "
                "its own"
            )

    def save(self, checkpoint: Checkpoint) -> bool:
        """Writes the checkpoint; False, and a report, if the disk refused. The run goes on either way."""
        reach("before checkpoint write")
        try:
            self._disk.write(self._file, encode_checkpoint(self._run, checkpoint))
        except DiskUnavailable as error:
            self.error = error
            _logger.warning(
                "the checkpoint of version %d was not written, the run goes on: %s", checkpoint.position.version, error
            )
            return False
        self.error = None
        self.version = checkpoint.position.version
        reach("after checkpoint write")
        return True

    def discard(self, why: str) -> None:
        """Removes a checkpoint that is of no use, and says why."""
        _logger.warning("the checkpoint %s on %s is of no use and is removed: %s", *self._where(), why)
        self.version = None
        try:
            self._disk.remove(self._file)
        except DiskUnavailable as error:
            self.error = error
            _logger.warning("%s", error)

    def _where(self) -> tuple[str, Disk]:
        return self._file, self._disk


def _header(entries: dict[str, Any], metadata: _Metadata) -> bytes:
    return json.dumps({"__metadata__": msgspec.structs.asdict(metadata), **entries}, sort_keys=True).encode()


def _content_digest(entries: dict[str, Any], metadata: _Metadata, parts: Iterable[bytes | memoryview]) -> str:
    hasher = blake3(_header(entries, metadata))
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview | bytes:
    flat = tensor.detach().reshape(-1)
    return flat.numpy().data.cast("B") if flat.numel() else b""
