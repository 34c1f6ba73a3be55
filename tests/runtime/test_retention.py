"""What is old is removed, and nobody who lives misses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hilosync as hilo
from hilosync.errors import ConfigurationError, LogUnavailable, Truncated
from hilosync.log import Faults, Log
from hilosync.plan import bind
from hilosync.runtime import Notice, snapshots
from hilosync.runtime.retention import retain
from hilosync.runtime.snapshots import SnapshotLoader, load_snapshot, read_manifest, write_snapshot
from hilosync.wire import decode_manifest, encode_manifest

VERSIONS = 12


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(snapshots, "elements_per_chunk", lambda buffers: 90)


@pytest.fixture
def learner(learner_at) -> hilo.Learner:
    return learner_at(VERSIONS)


def write(log: Log, run: Any, *versions: int) -> None:
    replica = hilo.Replica.join(log)
    for version in versions:
        replica.advance(to=version)
        write_snapshot(log, run, replica._machine.state, version)


def reader(version: int, reading: int = 0) -> Notice:
    return Notice(sender="w1", incarnation="w1-1", beat=1, state="serving", version=version, reading=reading)


def nobody() -> list[Notice]:
    return []


def chunks_of(log: Log, run: Any, *versions: int) -> set[str]:
    return {key for version in versions for key in read_manifest(log, run, version).chunks}


def records(log: Log) -> list[int]:
    found = []
    for version in range(1, VERSIONS + 1):
        try:
            log.steps.read(version)
            found.append(version)
        except Truncated:
            pass
    return found


def test_the_newest_snapshots_stay_with_the_records_that_check_and_continue_them(learner):
    log, run = learner.log, learner.run
    write(log, run, 2, 4, 6, 8)
    kept = chunks_of(log, run, 6, 8)
    result = retain(log, run, 2, nobody)
    assert result.snapshots == (6, 8) and result.oldest_record == 5 and result.removed_chunks > 0
    assert set(log.blobs.keys()) == kept
    assert records(log) == [*range(5, VERSIONS + 1)]
    assert log.steps.read(0) is not None
    for version in (6, 8):
        load_snapshot(log, run, version)
    assert retain(log, run, 2, nobody).removed_chunks == 0


def test_nothing_is_removed_without_a_whole_snapshot(learner):
    assert retain(learner.log, learner.run, 2, nobody).snapshots == ()
    assert records(learner.log) == [*range(1, VERSIONS + 1)]


def test_a_snapshot_that_is_being_loaded_stays(learner):
    log, run = learner.log, learner.run
    write(log, run, 2, 4, 6, 8)
    result = retain(log, run, 1, lambda: [reader(0, reading=4)])
    assert result.snapshots == (4, 6, 8)
    assert records(log)[0] == 3
    load_snapshot(log, run, 4)
    retain(log, run, 1, lambda: [reader(4)])
    assert log.snapshots.versions() == [8] and records(log)[0] == 5
    retain(log, run, 1, lambda: [reader(12)])
    assert records(log)[0] == 7


def test_a_reader_that_comes_between_the_two_looks_keeps_its_chunks(learner):
    """It found the manifest just before the mark moved: it must be able to load all of it."""
    log, run = learner.log, learner.run
    write(log, run, 2, 4, 6, 8)
    looks = iter([[], [reader(0, reading=4)]])
    stopped: list[SnapshotLoader] = []

    def look() -> list[Notice]:
        if not stopped:
            # One chunk of version 4 is read, then the storage stops answering for a while.
            asked = iter(range(100))

            def delay(operation: str) -> None:
                if operation == "get" and next(asked) == 1:
                    raise LogUnavailable("injected")

            loader = SnapshotLoader(Faults(0, delay=delay).wrap(log), run, 4)
            with pytest.raises(LogUnavailable):
                loader.load()
            stopped.append(loader)
        return next(looks)

    retain(log, run, 1, look)
    assert log.snapshots.versions() == [8]
    state, position = stopped[0].load()
    assert position.version == 4
    follower = hilo.Replica.join(log)
    follower._machine.rebase(state, position)
    assert follower.advance() == VERSIONS
    removed = retain(log, run, 1, lambda: [reader(VERSIONS)]).removed_chunks
    assert removed > 0, "the chunks that were spared are removed once their reader is done"
    assert set(log.blobs.keys()) == chunks_of(log, run, 8)


def test_a_replica_that_lags_finds_its_next_record(learner):
    log, run = learner.log, learner.run
    lagging = hilo.Replica.join(log)
    lagging.advance(to=3)
    write(log, run, 6, 8, 10)
    result = retain(log, run, 1, lambda: [reader(12), reader(lagging.version)])
    assert result.snapshots == (10,) and result.oldest_record == 4
    assert lagging.advance() == VERSIONS and lagging.digest == learner.digest


def test_chunks_of_a_writer_that_died_are_removed_once_their_version_is_old(learner):
    log, run = learner.log, learner.run
    write(log, run, 2)

    def die(operation: str) -> None:
        if operation == "publish":
            raise LogUnavailable("injected: the process died before its manifest")

    dying = Faults(0, delay=die).wrap(log)
    for version in (4, 9):
        with pytest.raises(LogUnavailable):
            write(dying, run, version)
    orphans = set(log.blobs.keys()) - chunks_of(log, run, 2)
    write(log, run, 6, 8)
    retain(log, run, 2, nobody)
    left = set(log.blobs.keys()) - chunks_of(log, run, 6, 8)
    assert 0 < len(left) < len(orphans), "version 9 may be being written just now, version 4 never appears"
    write(log, run, 9, 11, 12)
    retain(log, run, 2, nobody)
    assert set(log.blobs.keys()) == chunks_of(log, run, 11, 12)


def test_a_writer_of_a_forgotten_version_publishes_nothing_and_leaves_nothing(learner):
    log, run = learner.log, learner.run
    slow = hilo.Replica.join(log)
    slow.advance(to=4)
    write(log, run, 6, 8)

    def retain_before_publishing(operation: str) -> None:
        if operation == "publish":
            retain(log, run, 1, nobody)

    written = write_snapshot(Faults(0, delay=retain_before_publishing).wrap(log), run, slow._machine.state, 4)
    assert not written.published
    assert log.snapshots.versions() == [8] and log.snapshots.read(4) is None
    retain(log, run, 1, nobody)
    assert set(log.blobs.keys()) == chunks_of(log, run, 8)


def test_the_stored_adapter_of_version_0_and_blobs_of_others_stay(model, memory, backward):
    with torch.no_grad():
        for parameter in bind(model).parameters:
            parameter.add_(0.25)
    learner = hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Dense(), log=memory)
    for _ in range(6):
        backward(model)
        learner.step()
    stranger = learner.log.blobs.put(b"something that is no chunk")
    write(learner.log, learner.run, 2, 4, 6)
    manifest = decode_manifest(learner.log.snapshots.read(2))
    false = replace(manifest, version=3, chunks=(learner.run.genesis.initial,) * len(manifest.chunks))
    learner.log.snapshots.publish(3, encode_manifest(false))
    retain(learner.log, learner.run, 1, nobody)
    left = set(learner.log.blobs.keys())
    assert left == chunks_of(learner.log, learner.run, 6) | {learner.run.genesis.initial, stranger}
    state, position = load_snapshot(learner.log, learner.run, 6)
    late = hilo.Replica.join(learner.log)
    late._machine.rebase(state, position)
    assert late.digest == learner.digest


@pytest.mark.parametrize("damage", ["manifest", "chunk", "another run's"])
def test_a_snapshot_that_cannot_be_used_is_no_reason_to_remove_an_older_one(learner, damage: str):
    log, run = learner.log, learner.run
    write(log, run, 4, 6)
    manifest = decode_manifest(log.snapshots.read(6))
    if damage == "manifest":
        log.snapshots.publish(8, b"no manifest")
    elif damage == "chunk":
        write(log, run, 8)
        log.blobs.remove(read_manifest(log, run, 8).chunks[1])
    else:
        log.snapshots.publish(8, encode_manifest(replace(manifest, version=8, run=bytes(16))))
    result = retain(log, run, 1, nobody)
    assert result.snapshots == (6, 8) and records(log)[0] == 5
    load_snapshot(log, run, 6)


@pytest.mark.parametrize("operation", ["keys", "versions", "forget", "remove"])
def test_a_round_that_was_cut_off_anywhere_is_completed_by_the_next(learner, operation: str):
    log, run = learner.log, learner.run
    write(log, run, 2, 4, 6, 8)
    passages = 0
    while True:
        passages += 1
        left = iter(range(passages))

        def cut(asked: str, left=left) -> None:
            if asked == operation and next(left, None) is None:
                raise LogUnavailable("injected: cut off")

        try:
            retain(Faults(0, delay=cut).wrap(log), run, 1, nobody)
            break
        except LogUnavailable:
            load_snapshot(log, run, 8)
    assert log.snapshots.versions() == [8] and records(log)[0] == 7
    assert set(log.blobs.keys()) == chunks_of(log, run, 8)


def test_keeping_no_snapshot_at_all_is_refused(learner):
    with pytest.raises(ConfigurationError, match="expected at least 1"):
        retain(learner.log, learner.run, 0, nobody)


def test_a_replica_that_joins_while_others_retain_loses_nothing(learner):
    log, run = learner.log, learner.run
    write(log, run, 2, 4, 6, 8)
    retain(log, run, 2, nobody)
    announced = [0]
    rounds = []

    def retain_now(operation: str) -> None:
        if operation == "get" and not rounds:
            rounds.append(announced[-1])
            for version in (10, 12):
                while writer.version < version:
                    writer.receive(log.steps.read(writer.version + 1))
                write_snapshot(log, run, writer.state, version)
            retain(log, run, 1, lambda: [reader(0, reading=announced[-1])])

    writer = hilo.Replica.join(log)._machine
    writer.rebase(*load_snapshot(log, run, 8))
    joining = hilo.Replica.join(Faults(0, delay=retain_now).wrap(log))
    joining.recoverer.on_reading = announced.append
    assert joining.advance() == VERSIONS and joining.digest == learner.digest
    assert rounds == [8] and announced[-1] == 0
    assert log.snapshots.versions() == [8, 10, 12]
    retain(log, run, 1, lambda: [reader(VERSIONS)])
    assert log.snapshots.versions() == [12]


def test_a_replica_whose_snapshot_is_removed_as_it_looks_finds_the_newer_one(learner):
    log, run = learner.log, learner.run
    write(log, run, 2, 4)
    retain(log, run, 1, nobody)
    rounds = []

    def retain_now(operation: str) -> None:
        # Between the listing of the snapshots and the announcement of the one that is going to be read.
        if operation == "read_manifest" and not rounds:
            rounds.append(operation)
            write(log, run, 10)
            retain(log, run, 1, nobody)

    joining = hilo.Replica.join(log)
    announce = joining.recoverer._announce
    joining.recoverer._announce = lambda version: (retain_now("read_manifest"), announce(version))
    assert joining.advance() == VERSIONS and joining.digest == learner.digest
    assert rounds and log.snapshots.versions() == [10]
