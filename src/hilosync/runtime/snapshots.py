"""Snapshots: the state of a version, stored by anyone who holds it and checked by whoever loads it.

A snapshot is chunks in the blob store and a manifest in the index, published last: it is there whole
or not at all. Nobody trusts the manifest. What was loaded is checked against the records before it is
used, so it does not matter who wrote it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from blake3 import blake3

from hilosync.errors import (
    ConfigurationError,
    DiskUnavailable,
    LogNotFound,
    MalformedRecord,
    PlanMismatch,
    RunMismatch,
    WireError,
)
from hilosync.log import Log
from hilosync.optim import PolicyState
from hilosync.protocol import Evidence, Position, Run, gather_evidence
from hilosync.runtime.initial import stored_parameters
from hilosync.runtime.points import reach
from hilosync.wire import (
    Chunk,
    Manifest,
    decode_chunk,
    decode_manifest,
    elements_per_chunk,
    encode_chunk,
    encode_manifest,
)

if TYPE_CHECKING:
    from hilosync.runtime.disk import Disk

__all__ = ["SnapshotLoader", "WrittenSnapshot", "load_snapshot", "read_evidence", "read_manifest", "write_snapshot"]

_logger = logging.getLogger(__name__)

_CACHED = "chunk-"
"""What the names of chunks in a cache begin with."""


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """What `write_snapshot` did.

    Attributes:
        version: the policy version.
        published: whether this call made it visible; False if it was there, or is older than the retention.
        stored_bytes: bytes of the chunks and the manifest that this call stored.
    """

    version: int
    published: bool
    stored_bytes: int


def write_snapshot(log: Log, run: Run, state: PolicyState, version: int) -> WrittenSnapshot:
    """Stores the state of a version for others to start from, unless its snapshot is there already.

    Args:
        log: the run's stores.
        run: the run.
        state: parameters and slots of `version`, which nobody changes meanwhile.
        version: the version, whose record the log holds; 1 or more.

    Raises:
        ConfigurationError: version 0, which follows from the genesis.
        Diverged: the log says that `version` has another state; nothing was stored.
        Truncated: the records that a reader would check this snapshot with have been removed.
        LogUnavailable: the storage refused or did not answer; chunks may have been stored, but no manifest.
    """
    if version < 1:
        raise ConfigurationError(f"no snapshot of version {version}: expected 1 or more; version 0 needs none")
    if log.snapshots.read(version) is not None:
        return WrittenSnapshot(version, published=False, stored_bytes=0)
    evidence = read_evidence(log, run, version)
    evidence.verify(state)
    buffers, names = state.buffers(), _names(state)
    elements = elements_per_chunk(len(buffers))
    keys: list[str] = []
    stored = 0
    for first in range(0, run.plan.size, elements):
        parts = [buffer[first : first + elements].detach().cpu().numpy().data.cast("B") for buffer in buffers]
        content = encode_chunk(Chunk(run.genesis.run_id, version, first), names, parts)
        keys.append(log.blobs.put(content))
        stored += len(content)
    manifest = encode_manifest(
        Manifest(
            run=run.genesis.run_id,
            plan=run.plan.fingerprint,
            configuration=run.configuration,
            version=version,
            digest=evidence.position.digest,
            elements=elements,
            chunks=tuple(keys),
        )
    )
    reach("before snapshot publish")
    published = log.snapshots.publish(version, manifest)
    reach("after snapshot publish")
    return WrittenSnapshot(version, published, stored + len(manifest))


def read_manifest(log: Log, run: Run, version: int) -> Manifest:
    """The manifest of a version, as far as it can be checked by itself.

    Raises:
        LogNotFound: there is no snapshot of this version.
        MalformedRecord: it is damaged, or its chunks cannot make up a state of this plan.
        RunMismatch, PlanMismatch: it belongs elsewhere.
    """
    where = f"snapshot {version} of {log.url}"
    data = log.snapshots.read(version)
    if data is None:
        raise LogNotFound(f"there is no {where}: it was never published, or was removed; use another, or replay")
    try:
        manifest = decode_manifest(data)
    except MalformedRecord as error:
        raise MalformedRecord(f"{where}: {error}") from error
    wanted = (run.genesis.run_id, run.configuration)
    if (manifest.run, manifest.configuration) != wanted:
        raise RunMismatch(
            f"{where} belongs to run {manifest.run.hex()} with configuration {manifest.configuration.hex()}: expected "
            f"{wanted[0].hex()} with {wanted[1].hex()}"
        )
    if manifest.plan != run.plan.fingerprint:
        raise PlanMismatch(f"{where} was written for plan {manifest.plan.hex()}: expected {run.plan.fingerprint.hex()}")
    largest = elements_per_chunk(1 + len(run.optimizer.slots))
    chunks = -(-run.plan.size // manifest.elements)
    if manifest.version != version or manifest.elements > largest or len(manifest.chunks) != chunks:
        raise MalformedRecord(
            f"{where} is described as version {manifest.version} in {len(manifest.chunks)} chunks of "
            f"{manifest.elements} elements: expected version {version}, at most {largest} elements in a chunk and "
            f"{run.plan.size} in all; use another, or replay"
        )
    return manifest


def read_evidence(log: Log, run: Run, version: int) -> Evidence:
    """What the log says about a version's state, from its records v − 1 and v.

    Raises:
        LogNotFound: the log has no such version.
        Truncated: one of the records has been removed.
        MalformedRecord, RunMismatch, PlanMismatch, ChainBroken: a record is damaged or belongs elsewhere.
    """
    if version == 1:
        predecessor, initial = None, run.initial_state(stored_parameters(log, run))[1]
    else:
        predecessor, initial = log.steps.read(version - 1), None
    record = log.steps.read(version)
    if record is None or (predecessor is None and version > 1):
        missing = version if record is None else version - 1
        raise LogNotFound(
            f"record {missing} of {log.url} is missing: expected records {version - 1} and {version}, which say what "
            f"the state of version {version} is; restore it, or use another version"
        )
    try:
        return gather_evidence(run, version, record, predecessor, initial)
    except WireError as error:
        raise type(error)(f"records {version - 1} and {version} of {log.url}: {error}") from error


class SnapshotLoader:
    """Loads one snapshot, chunk by chunk, straight into the state.

    After `LogUnavailable`, `load` may be called again: it goes on where it stopped.

    Attributes:
        fetched: chunks read from the log so far.
        fetched_bytes: their bytes.
    """

    def __init__(self, log: Log, run: Run, version: int, cache: Disk | None = None):
        """Prepares to load the snapshot of a version.

        Args:
            log: the run's stores.
            run: the run.
            version: whose snapshot.
            cache: where chunks are kept until the state is whole, so that another process can go on after
                this one died; None to keep none.
        """
        self.fetched = 0
        self.fetched_bytes = 0
        self._log = log
        self._run = run
        self._version = version
        self._cache = cache
        self._begun: tuple[Manifest, Evidence, PolicyState] | None = None
        self._loaded = 0

    def load(self) -> tuple[PolicyState, Position]:
        """The verified state, and where in the log it stands.

        Raises:
            LogNotFound: there is no such snapshot, or one of its chunks or records is gone.
            LogUnavailable: the storage did not answer; call again.
            MalformedRecord: the manifest or a chunk is damaged; the message names the chunk.
            RunMismatch, PlanMismatch: the snapshot belongs elsewhere.
            Truncated: the records that it is checked with have been removed.
            Diverged: the state is not the one that the learner published. Use another snapshot, or replay.
        """
        self.load_first()
        assert self._begun is not None
        manifest, evidence, state = self._begun
        for index in range(self._loaded, len(manifest.chunks)):
            self._load_chunk(manifest, state, index)
            self._loaded = index + 1
        try:
            evidence.verify(state)
        finally:
            self._prune(keep=())
        self._begun = None
        self._loaded = 0
        return state, evidence.position

    def load_first(self) -> None:
        """Loads the first chunk alone, whose time tells what the others will take; `load` goes on from it.

        Raises:
            HiLoError: as `load`.
        """
        if self._begun is None:
            self._begun = self._begin()
        if self._loaded == 0:
            manifest, _, state = self._begun
            self._load_chunk(manifest, state, 0)
            self._loaded = 1

    def _begin(self) -> tuple[Manifest, Evidence, PolicyState]:
        manifest = read_manifest(self._log, self._run, self._version)
        # Before the chunks: retention may remove the records while they are being fetched.
        evidence = read_evidence(self._log, self._run, self._version)
        if manifest.digest != evidence.position.digest:
            raise MalformedRecord(
                f"snapshot {self._version} of {self._log.url} claims digest {manifest.digest.hex()[:16]}…: expected "
                f"{evidence.position.digest.hex()[:16]}…, as record {self._version} has it; use another, or replay"
            )
        self._prune(keep=manifest.chunks)
        size = self._run.plan.size
        state = PolicyState(torch.empty(size), {name: torch.empty(size) for name in self._run.optimizer.slots})
        return manifest, evidence, state

    def _load_chunk(self, manifest: Manifest, state: PolicyState, index: int) -> None:
        key, first = manifest.chunks[index], index * manifest.elements
        where = f"chunk {index + 1} of {len(manifest.chunks)} of snapshot {self._version} of {self._log.url}"
        count = min(manifest.elements, self._run.plan.size - first)
        content = self._cached(key)
        try:
            if content is None:
                content = self._log.blobs.get(key)
                self.fetched += 1
                self.fetched_bytes += len(content)
                self._keep(key, content)
            parts = decode_chunk(content, Chunk(manifest.run, manifest.version, first), _names(state), count)
        except (LogNotFound, MalformedRecord) as error:
            raise type(error)(f"{where} ({key}): {error}; use another snapshot, or replay") from error
        for buffer, part in zip(state.buffers(), parts, strict=True):
            # As integers: a copy of fp32 values may change the payload of a NaN.
            buffer.view(torch.int32).numpy()[first : first + count] = np.frombuffer(part, "<i4")

    def _cached(self, key: str) -> bytes | None:
        if self._cache is None:
            return None
        try:
            content = self._cache.read(_CACHED + key)
        except DiskUnavailable as error:
            return self._do_without_cache(error)
        return content if content is not None and blake3(content).hexdigest() == key else None

    def _keep(self, key: str, content: bytes) -> None:
        if self._cache is not None:
            try:
                self._cache.write(_CACHED + key, [content])
            except DiskUnavailable as error:
                self._do_without_cache(error)

    def _prune(self, keep: tuple[str, ...]) -> None:
        """Removes chunks that will not be needed again, of this snapshot or an earlier one."""
        if self._cache is not None:
            try:
                kept = {_CACHED + key for key in keep}
                for name in self._cache.names():
                    if name.startswith(_CACHED) and name not in kept:
                        self._cache.remove(name)
            except DiskUnavailable as error:
                self._do_without_cache(error)

    def _do_without_cache(self, error: DiskUnavailable) -> None:
        # The cache only saves time; a full disk must not keep a replica from its state.
        _logger.warning("snapshot %d: loading without a cache of chunks: %s", self._version, error)
        self._cache = None


def load_snapshot(log: Log, run: Run, version: int, cache: Disk | None = None) -> tuple[PolicyState, Position]:
    """Loads and verifies the snapshot of a version; arguments and errors are `SnapshotLoader`'s."""
    return SnapshotLoader(log, run, version, cache).load()


def _names(state: PolicyState) -> list[str]:
    """What a chunk calls the buffers of a state, in the order of `PolicyState.buffers`."""
    return ["params", *(f"slots.{name}" for name in sorted(state.slots))]
