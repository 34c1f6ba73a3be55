"""Retention: how much of a run stays, and how the rest is removed without anyone missing it.

The newest snapshots stay, and the records from which a reader of the oldest of them goes on. The order
of the steps is what makes it safe beside writers and readers that nobody stops:

1. Choose the oldest snapshot that stays; one that a live reader is loading counts as needed.
2. `SnapshotIndex.forget` moves its mark there. From now on nobody finds or publishes an older snapshot.
3. Look at the readers again. A reader says what it is going to load *before* it reads the manifest. So
   whoever found an older manifest before the mark moved is seen now, and its chunks stay for this time.
4. Remove the chunks of older versions, then the records that nobody needs.

A crash between two steps leaves chunks that no manifest names. A chunk says itself which version it is
of, so the next round removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hilosync.errors import ConfigurationError, LogNotFound, MalformedRecord, PlanMismatch, RunMismatch
from hilosync.log import Log
from hilosync.protocol import Run
from hilosync.runtime.presence import Notice
from hilosync.runtime.snapshots import read_manifest
from hilosync.wire import read_chunk_origin

__all__ = ["Retained", "retain"]


@dataclass(frozen=True, slots=True)
class Retained:
    """What a round of retention left.

    Attributes:
        snapshots: versions whose snapshots stay, ascending.
        oldest_record: the oldest record that is needed; older ones, except the genesis, were removed.
        removed_chunks: chunks that were removed.
    """

    snapshots: tuple[int, ...]
    oldest_record: int
    removed_chunks: int


def retain(log: Log, run: Run, keep_recent: int, readers: Callable[[], Sequence[Notice]]) -> Retained:
    """Removes what is older than the newest `keep_recent` whole snapshots, as far as no live reader needs it.

    A snapshot whose manifest cannot be read or lacks a chunk is no reason to remove an older one. The
    genesis, and the stored adapter that a run may start from, always stay.

    Args:
        log: the run's stores.
        run: the run.
        keep_recent: snapshots to keep, 1 or more.
        readers: the notices of the processes that live now; called twice.

    Raises:
        ConfigurationError: `keep_recent` is below 1.
        LogUnavailable: the storage refused or did not answer; the next round does what is left to do.
    """
    if keep_recent < 1:
        raise ConfigurationError(f"keep_recent = {keep_recent}: expected at least 1 snapshot to keep")
    present = set(log.blobs.keys())
    chunks = {version: _chunks_of(log, run, version) for version in log.snapshots.versions()}
    whole = [version for version, keys in chunks.items() if keys and present.issuperset(keys)]
    if not whole:
        return Retained((), 1, 0)
    being_read = [notice.reading for notice in readers() if notice.reading]
    oldest = min([*whole[-keep_recent:], *being_read])
    log.snapshots.forget(before=oldest)
    living = readers()
    removed = _remove_chunks(log, run, oldest, present, chunks, {notice.reading for notice in living})
    record = oldest - 1
    for notice in living:
        # Who loads a snapshot needs the record before its own as well, to check it; who holds a version, the next.
        record = min(record, notice.reading - 1 if notice.reading else notice.version + 1)
    log.steps.forget(before=record)
    return Retained(tuple(log.snapshots.versions()), max(record, 1), removed)


def _chunks_of(log: Log, run: Run, version: int) -> tuple[str, ...]:
    """The keys that a manifest names; none if it is no manifest of this run, or was removed meanwhile."""
    try:
        return read_manifest(log, run, version).chunks
    except (LogNotFound, MalformedRecord, RunMismatch, PlanMismatch):
        return ()


def _remove_chunks(
    log: Log, run: Run, oldest: int, present: set[str], chunks: dict[int, tuple[str, ...]], being_read: set[int]
) -> int:
    """Removes the chunks of versions below `oldest` that nobody is reading, and returns their number."""
    version_of = {key: version for version, keys in chunks.items() for key in keys}
    # What was stored since the listing belongs to a snapshot that is being written, and is not looked at.
    kept = {run.genesis.initial}.union(*(keys for version, keys in chunks.items() if version >= oldest))
    removed = 0
    for key in sorted(present - kept):
        version = version_of[key] if key in version_of else _origin(log, run, key)
        if version is not None and version < oldest and version not in being_read:
            log.blobs.remove(key)
            removed += 1
    return removed


def _origin(log: Log, run: Run, key: str) -> int | None:
    """The version that a blob says that it is a chunk of; None for what is not a chunk of this run."""
    try:
        chunk = read_chunk_origin(log.blobs.get(key))
    except (LogNotFound, MalformedRecord):
        return None
    return chunk.version if chunk is not None and chunk.run == run.genesis.run_id else None
