"""Snapshots: written by anyone, checked by everyone, whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load as load_safetensors

import hilosync as hilo
from hilosync.errors import (
    ConfigurationError,
    Diverged,
    LogNotFound,
    LogUnavailable,
    MalformedRecord,
    PlanMismatch,
    RunMismatch,
    Truncated,
)
from hilosync.log import Faults, Log, open_log
from hilosync.plan import bind
from hilosync.runtime import snapshots
from hilosync.runtime.disk import FileDisk
from hilosync.runtime.snapshots import SnapshotLoader, load_snapshot, read_manifest, write_snapshot
from hilosync.wire import decode_manifest, encode_manifest

VERSIONS = 6


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of a few elements, so that a tiny adapter has several."""
    monkeypatch.setattr(snapshots, "elements_per_chunk", lambda buffers: 60)


@pytest.fixture
def learner(learner_at) -> hilo.Learner:
    return learner_at(VERSIONS)


def machine_at(log: Log, version: int):
    """A replica's machine at a version."""
    replica = hilo.Replica.join(log)
    replica.advance(to=version)
    return replica._machine


def write(log: Log, version: int):
    machine = machine_at(log, version)
    return write_snapshot(log, machine.run, machine.state, version)


def same(a, b) -> bool:
    return all(
        torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(a.buffers(), b.buffers(), strict=True)
    )


@pytest.mark.parametrize("version", [1, 2, VERSIONS])
def test_a_loaded_snapshot_has_the_bits_of_its_version_and_goes_on(learner, version):
    log = learner.log
    assert write(log, version).published
    machine = machine_at(log, version)
    state, position = load_snapshot(log, learner.run, version)
    assert same(state, machine.state) and position == machine.position
    other = hilo.Replica.join(log)
    other._machine.rebase(state, position)
    assert other.advance() == VERSIONS and other.digest == learner.digest


def test_everyone_writes_the_same_bytes(learner, model, backward):
    first, second = (open_log(f"{learner.log.url}-{i}", create=True) for i in range(2))
    for log in (first, second):
        for version in range(VERSIONS + 1):
            log.steps.append(version, learner.log.steps.read(version))
        write(log, 4)
    assert first.snapshots.read(4) == second.snapshots.read(4)
    assert sorted(first.blobs.keys()) == sorted(second.blobs.keys()) != []


def test_a_snapshot_that_is_there_is_not_written_again(learner):
    assert write(learner.log, 3).published
    again = write(learner.log, 3)
    assert not again.published and again.stored_bytes == 0


def test_chunks_are_safetensors_files_and_never_shared_between_versions(learner):
    log = learner.log
    write(log, 3)
    write(log, 4)
    manifests = [read_manifest(log, learner.run, version) for version in (3, 4)]
    assert not set(manifests[0].chunks) & set(manifests[1].chunks)
    state = machine_at(log, 3).state
    parts = [load_safetensors(log.blobs.get(key)) for key in manifests[0].chunks]
    assert torch.equal(torch.cat([part["params"] for part in parts]), state.params)
    assert torch.equal(torch.cat([part["slots.v"] for part in parts]), state.slots["v"])
    assert len(parts) == -(-learner.plan.size // 60) > 3


def test_nan_payloads_survive_a_snapshot(learner, monkeypatch):
    machine = machine_at(learner.log, 2)
    words = torch.arange(0x7FA00000, 0x7FA00000 + learner.plan.size, dtype=torch.int32)
    machine.state.slots["m"].view(torch.int32).copy_(words)
    monkeypatch.setattr("hilosync.protocol.evidence.Evidence.verify", lambda self, state: None)
    write_snapshot(learner.log, learner.run, machine.state, 2)
    state, _ = load_snapshot(learner.log, learner.run, 2)
    assert torch.equal(state.slots["m"].view(torch.int32), words)


def test_version_0_has_no_snapshot(learner):
    with pytest.raises(ConfigurationError, match="version 0 needs none"):
        write_snapshot(learner.log, learner.run, machine_at(learner.log, 0).state, 0)


def test_a_state_that_the_log_contradicts_is_not_written_and_the_tensor_is_named(learner):
    machine = machine_at(learner.log, 3)
    machine.state.slots["v"][0] += 1
    with pytest.raises(Diverged, match=r"version 3 diverged in layers\.0\.lora_A"):
        write_snapshot(learner.log, learner.run, machine.state, 3)
    assert learner.log.blobs.keys() == [] and learner.log.snapshots.versions() == []


def test_a_state_of_another_version_is_not_loaded(learner, monkeypatch):
    """Somebody wrote the state of version 4 as version 3, with a manifest that agrees with the log."""
    monkeypatch.setattr("hilosync.protocol.evidence.Evidence.verify", lambda self, state: None)
    write_snapshot(learner.log, learner.run, machine_at(learner.log, 4).state, 3)
    monkeypatch.undo()
    monkeypatch.setattr(snapshots, "elements_per_chunk", lambda buffers: 60)
    with pytest.raises(Diverged, match="version 3 diverged in layers"):
        load_snapshot(learner.log, learner.run, 3)


def test_a_manifest_that_contradicts_the_log_is_refused_before_a_chunk_is_fetched(learner):
    write(learner.log, 3)
    manifest = decode_manifest(learner.log.snapshots.read(3))
    learner.log.snapshots.publish(4, encode_manifest(replace(manifest, version=4)))
    loader = SnapshotLoader(learner.log, learner.run, 4)
    with pytest.raises(MalformedRecord, match="claims digest"):
        loader.load()
    assert loader.fetched == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"run": bytes(16)}, RunMismatch),
        ({"configuration": bytes(16)}, RunMismatch),
        ({"plan": bytes(16)}, PlanMismatch),
        ({"version": 5}, MalformedRecord),
        ({"elements": 61}, MalformedRecord),
        ({"elements": 59}, MalformedRecord),
        ({"chunks": ("ab" * 32,)}, MalformedRecord),
    ],
)
def test_a_manifest_of_something_else_is_refused_with_both_values(learner, change, error):
    write(learner.log, 3)
    manifest = decode_manifest(learner.log.snapshots.read(3))
    learner.log.snapshots.publish(4, encode_manifest(replace(manifest, **({"version": 4} | change))))
    with pytest.raises(error, match=r"snapshot 4 of memory:.*expected"):
        load_snapshot(learner.log, learner.run, 4)


def test_a_chunk_in_anothers_place_is_refused_and_named(learner):
    write(learner.log, 3)
    manifest = read_manifest(learner.log, learner.run, 3)
    swapped = (manifest.chunks[1], manifest.chunks[0], *manifest.chunks[2:])
    learner.log.snapshots.forget(before=4)
    write(learner.log, 4)
    good = read_manifest(learner.log, learner.run, 4)
    for wrong in (swapped, (manifest.chunks[0], *good.chunks[1:]), (good.chunks[1], *good.chunks[1:])):
        bad = replace(good, version=5, digest=machine_at(learner.log, 5).digest, chunks=wrong)
        log = open_log(f"{learner.log.url}-{wrong[0]}-{wrong[1]}", create=True)
        copied = replace(learner.log, snapshots=log.snapshots)
        copied.snapshots.publish(5, encode_manifest(bad))
        with pytest.raises(MalformedRecord, match=rf"chunk 1 of {len(wrong)} of snapshot 5 .*{wrong[0]}"):
            load_snapshot(copied, learner.run, 5)


def test_a_missing_or_damaged_chunk_is_named(model, backward, tmp_path):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Dense(), log=f"file:{tmp_path}")
    backward(model)
    learner.step()
    write(learner.log, 1)
    key = read_manifest(learner.log, learner.run, 1).chunks[2]
    path = tmp_path / "blobs" / key
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with pytest.raises(MalformedRecord, match=rf"chunk 3 of \d+ of snapshot 1 of file:.*{key}.*damaged blob"):
        load_snapshot(learner.log, learner.run, 1)
    path.unlink()
    with pytest.raises(LogNotFound, match=rf"chunk 3 of \d+ of snapshot 1 of file:.*{key}.*or was removed"):
        load_snapshot(learner.log, learner.run, 1)


def test_a_snapshot_without_its_records_says_so(learner):
    with pytest.raises(LogNotFound, match="there is no snapshot 3 of memory:"):
        load_snapshot(learner.log, learner.run, 3)
    write(learner.log, 3)
    learner.log.steps.forget(before=3)
    with pytest.raises(Truncated):
        load_snapshot(learner.log, learner.run, 3)
    with pytest.raises(LogNotFound, match=rf"record {VERSIONS + 1} of memory:.* is missing"):
        write_snapshot(learner.log, learner.run, machine_at(learner.log, 0).state, VERSIONS + 1)


def failing(log: Log, healthy: int) -> tuple[Log, list[str]]:
    """A log whose storage answers `healthy` more requests for blobs, then fails once, and so on."""
    asked: list[str] = []

    def delay(operation: str) -> None:
        if operation == "get":
            asked.append(operation)
            if len(asked) % (healthy + 1) == 0:
                raise LogUnavailable("injected: nobody answers")

    return Faults(0, delay=delay).wrap(log), asked


def test_loading_goes_on_where_it_stopped(learner):
    write(learner.log, 3)
    log, asked = failing(learner.log, healthy=3)
    loader = SnapshotLoader(log, learner.run, 3)
    tries = 1
    while True:
        try:
            state, _ = loader.load()
            break
        except LogUnavailable:
            tries += 1
    assert same(state, machine_at(learner.log, 3).state)
    chunks = len(read_manifest(learner.log, learner.run, 3).chunks)
    assert tries > 1 and loader.fetched == chunks and len(asked) == chunks + tries - 1


def test_a_process_that_died_while_loading_left_its_chunks_to_the_next(learner, tmp_path):
    write(learner.log, 3)
    cache = FileDisk(tmp_path / "cache")
    cache.write("learner.safetensors", [b"somebody else's"])
    cache.write("chunk-" + "0" * 64, [b"of an earlier snapshot"])
    log, _ = failing(learner.log, healthy=4)
    first = SnapshotLoader(log, learner.run, 3, cache)
    with pytest.raises(LogUnavailable):
        first.load()
    kept = [name for name in cache.names() if name.startswith("chunk-")]
    assert len(kept) == first.fetched == 4
    cache.write(kept[0], [b"half of a chun"])  # damage costs one more request, nothing else
    second = SnapshotLoader(learner.log, learner.run, 3, cache)
    state, _ = second.load()
    assert same(state, machine_at(learner.log, 3).state)
    assert second.fetched == len(read_manifest(learner.log, learner.run, 3).chunks) - 3
    assert cache.names() == ["learner.safetensors"]


def test_a_cache_on_a_full_disk_is_done_without(learner, tmp_path, caplog):
    write(learner.log, 3)
    (tmp_path / "file").write_bytes(b"")
    state, _ = load_snapshot(learner.log, learner.run, 3, FileDisk(tmp_path / "file" / "cache"))
    assert same(state, machine_at(learner.log, 3).state)
    assert "loading without a cache of chunks" in caplog.text


def test_a_run_that_starts_from_a_stored_adapter_has_a_snapshot_of_version_1(model, memory, backward):
    with torch.no_grad():
        for parameter in bind(model).parameters:
            parameter.add_(0.25)
    learner = hilo.Learner(model, optimizer=hilo.SGDM(lr=0.1), compressor=hilo.Dense(), log=memory)
    backward(model)
    learner.step()
    assert write(learner.log, 1).published
    state, position = load_snapshot(learner.log, learner.run, 1)
    assert torch.equal(state.params, learner.params) and position.digest == learner.digest


def test_a_writer_whose_storage_fails_publishes_nothing(learner):
    for operation in ("put", "publish"):

        def refuse(asked: str, operation=operation) -> None:
            if asked == operation:
                raise LogUnavailable("injected: the disk is full")

        machine = machine_at(learner.log, 3)
        with pytest.raises(LogUnavailable, match="the disk is full"):
            write_snapshot(Faults(0, delay=refuse).wrap(learner.log), learner.run, machine.state, 3)
        assert learner.log.snapshots.versions() == []
    assert write(learner.log, 3).published
