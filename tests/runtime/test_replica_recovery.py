"""A replica that is new, behind or broken: it chooses the cheaper way, and never serves a wrong bit."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
import torch
from disks import Killed, Killer, MemoryDisk

import hilosync as hilo
from hilosync.errors import ChainBroken, Diverged, LogNotFound, MalformedRecord, RunMismatch, Truncated
from hilosync.log import Faults, Log, Order, open_log
from hilosync.runtime import Heartbeat, Limits, Notice, Presence, Replica, Worker, snapshots
from hilosync.runtime import replica as replica_module
from hilosync.runtime.snapshots import write_snapshot

LATE = 200
FILE = "replica.safetensors"


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(model, log) -> hilo.Learner:
    return hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Spar(budget=700), log=log, seed=7)


def publish(learner, model, backward, versions: int, snapshots: tuple[int, ...] = ()) -> None:
    for _ in range(versions):
        backward(model)
        learner.step()
        if learner.version in snapshots:
            write_snapshot(learner.log, learner.run, learner._machine.state, learner.version)


@pytest.fixture
def learner(model, memory):
    return begin(model, memory)


def corrupt(replica: Replica, element: int = 3) -> None:
    """What a stray write into memory does."""
    replica._machine.state.params[element] += 1.0


@pytest.fixture(scope="module")
def long_run():
    """A run of 200 versions with snapshots of 100 and 180: (address, its final digest)."""
    from tiny_peft import tiny_model

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshots, "elements_per_chunk", lambda buffers: 60)
        yield make_long_run(tiny_model(), "memory:long-run")


def make_long_run(model, address: str) -> tuple[str, bytes]:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(32, 12, generator=generator), torch.randn(32, 3, generator=generator)
    learner = begin(model, address)

    def backward(model):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()

    publish(learner, model, backward, LATE, snapshots=(100, 180))
    return learner.log.url, learner.digest


# What a read of a record and of a chunk cost, in seconds; which way is then the faster one.
SLOW_RECORDS = ({"read": 1.0, "get": 1.0}, "snapshot", 180)
SLOW_CHUNKS = ({"read": 1.0, "get": 100.0}, "replay", 8)


@pytest.mark.parametrize(("costs", "kind", "base"), [SLOW_RECORDS, SLOW_CHUNKS])
def test_a_late_joiner_takes_the_way_that_is_faster_when_both_are_timed(long_run, costs, kind, base, caplog):
    address, digest = long_run
    log, clock = open_log(address), Clock()

    def wait(operation: str) -> None:
        clock.now += costs.get(operation, 0.0)

    slow = Faults(seed=0, delay=wait).wrap(log)
    replica = Replica.join(slow, clock=clock)
    with caplog.at_level(logging.INFO, logger="hilosync"):
        started = clock.now
        assert replica.advance() == LATE
        taken = clock.now - started
    assert replica.digest == digest and replica.version == LATE
    (recovery,) = replica.recoveries
    choice = recovery.choice
    assert (recovery.cause, choice.kind, choice.base, choice.target) == ("start", kind, base, LATE)
    assert recovery.choice.why in caplog.text and f"{kind} from version {base} to {LATE}" in caplog.text
    # The other way, timed on the same slow log by a replica that has no choice.
    other = Replica.join(slow, clock=clock)
    started = clock.now
    if kind == "snapshot":
        other.recoverer._log = replace(slow, snapshots=open_log("memory:no-snapshots", create=True).snapshots)
    else:
        other.advance(to=8)
        other.recoverer.recover(other._machine, "truncated", LATE, replayable=False)
        assert other.version == 180
    assert other.advance() == LATE and other.digest == digest
    assert taken < clock.now - started
    estimates = sorted((choice.replay_seconds, choice.snapshot_seconds))
    assert choice.replay_seconds == estimates[kind == "snapshot"]


def test_a_few_records_are_applied_without_asking_what_follows(learner, model, backward, memory):
    publish(learner, model, backward, 7, snapshots=(6,))
    calls: list[str] = []
    replica = Replica.join(Faults(seed=0, delay=calls.append).wrap(learner.log))
    assert replica.advance() == 7 and replica.recoveries == []
    assert "head" not in calls and "versions" not in calls


def test_a_replica_left_behind_by_the_retention_goes_on_from_a_snapshot(learner, model, backward):
    replica = Replica.join(learner.log)
    publish(learner, model, backward, 3)
    replica.advance()
    publish(learner, model, backward, 12, snapshots=(10,))
    learner.log.steps.forget(before=9)
    assert replica.advance() == 15 and replica.digest == learner.digest
    (recovery,) = replica.recoveries
    assert (recovery.cause, recovery.held, recovery.choice.base) == ("truncated", 3, 10)
    assert "replay impossible" in recovery.choice.why
    assert Replica.join(learner.log).advance(to=12) == 12


def test_without_a_snapshot_a_truncated_log_cannot_be_followed_and_says_so(learner, model, backward):
    replica = Replica.join(learner.log)
    publish(learner, model, backward, 6)
    learner.log.steps.forget(before=5)
    with pytest.raises(Truncated, match=r"no way from version 0 to 6: .*got snapshots of no version"):
        replica.advance()
    write_snapshot(learner.log, learner.run, learner._machine.state, 6)
    with pytest.raises(Truncated, match="no way from version 0 to 5"):
        replica.advance(to=5)
    assert replica.advance() == 6 and replica.digest == learner.digest


def spoil_snapshot(log: Log, version: int, how: str, monkeypatch) -> None:
    """Flips a byte of the snapshot's chunk as it is read, or takes it away."""
    from hilosync.wire import decode_manifest

    key = decode_manifest(log.snapshots.read(version)).chunks[0]
    if how == "missing":
        log.blobs.remove(key)
        return
    honest = type(log.blobs).get

    def get(self, wanted):
        content = honest(self, wanted)
        if wanted == key:
            raise MalformedRecord(f"the blob {key[:16]} has other bytes")
        return content

    monkeypatch.setattr(type(log.blobs), "get", get)


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_snapshot_that_cannot_be_used_is_passed_over_for_an_older_one(learner, model, backward, how, monkeypatch):
    publish(learner, model, backward, 14, snapshots=(9, 12))
    learner.log.steps.forget(before=8)
    spoil_snapshot(learner.log, 12, how, monkeypatch)
    replica = Replica.join(learner.log)
    assert replica.advance() == 14 and replica.digest == learner.digest
    (recovery,) = replica.recoveries
    assert recovery.choice.base == 9 and "snapshot 12 cannot be used" in recovery.refused[0]


def test_with_no_usable_snapshot_the_records_are_replayed(learner, model, backward, monkeypatch):
    publish(learner, model, backward, 30, snapshots=(20,))
    learner.log.blobs.remove(learner.log.blobs.keys()[0])
    monkeypatch.setattr(replica_module, "_WORTH_A_CHOICE", 0.0)
    replica = Replica.join(learner.log)
    assert replica.advance() == 30 and replica.digest == learner.digest
    assert replica.recoveries[0].choice.kind == "replay"


@pytest.mark.parametrize("anchors", [(), (4,)])
def test_a_diverged_replica_heals_and_serves_again(learner, model, another_model, backward, anchors):
    publish(learner, model, backward, 5, anchors)
    replica = Replica.join(learner.log)
    replica.advance(to=4)
    corrupt(replica)
    with pytest.raises(Diverged, match=r"version 5 diverged in layers\.0\.lora_A"):
        replica.advance()
    with pytest.raises(Diverged):
        replica.load_into(another_model)
    recovery = replica.heal()
    assert recovery.cause == "diverged" and recovery.held == 0
    assert replica.version == 5 and replica.digest == learner.digest and replica.mismatches == 1
    replica.load_into(another_model)
    publish(learner, model, backward, 3)
    assert replica.advance() == 8 and replica.heal() is None


def test_a_second_divergence_at_the_same_version_is_final(learner, model, another_model, backward, monkeypatch):
    publish(learner, model, backward, 4, snapshots=(2,))
    replica = Replica.join(learner.log, clock=Clock())  # replaying costs nothing, so that it is chosen
    replica.advance(to=2)
    honest = hilo.AdamW.step

    def wrong(self, plan, state, gradient, scalars):
        sums = honest(self, plan, state, gradient, scalars)
        state.params[0] += 1.0
        return sums + 1

    monkeypatch.setattr(hilo.AdamW, "step", wrong)
    with pytest.raises(Diverged, match="version 3"):
        replica.advance()
    # From version 0 it goes wrong at version 1 at once, and there for a second time.
    for mismatches in (2, 3, 3, 3):
        with pytest.raises(Diverged, match="diverged"):
            replica.heal()
        assert replica.mismatches == mismatches
    with pytest.raises(Diverged):
        replica.load_into(another_model)


def test_a_replica_torn_by_an_interrupt_heals_from_its_checkpoint(learner, model, backward, monkeypatch):
    disk = MemoryDisk()
    publish(learner, model, backward, 6)
    replica = Replica.join(learner.log, checkpoint=disk)
    replica.advance(to=4)
    with monkeypatch.context() as patched:
        patched.setattr(hilo.AdamW, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replica.advance()
    recovery = replica.heal()
    assert (recovery.cause, recovery.held) == ("torn", 4)
    assert replica.version == 5 and replica.advance() == 6 and replica.digest == learner.digest
    assert replica.mismatches == 0


def test_a_record_damaged_on_its_way_is_read_again_and_one_damaged_in_the_log_is_an_error(
    learner, model, backward, monkeypatch
):
    publish(learner, model, backward, 3)
    honest, damaged = type(learner.log.steps).read, []

    def read(self, version, wait=0.0):
        data = honest(self, version, wait)
        if version == 2 and len(damaged) < limit:
            damaged.append(version)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    monkeypatch.setattr(type(learner.log.steps), "read", read)
    limit = 2
    replica = Replica.join(learner.log)
    assert replica.advance() == 3 and replica.digest == learner.digest and len(damaged) == 2
    damaged.clear()
    limit = 1000
    replica = Replica.join(learner.log)
    with pytest.raises(MalformedRecord, match="record 2 of memory:"):
        replica.advance()
    assert replica.version == 1 and len(damaged) < 10


def test_an_earlier_record_in_the_place_of_a_later_one_is_an_error(model, tmp_path, backward):
    learner = begin(model, f"file:{tmp_path}/run")
    publish(learner, model, backward, 4)
    names = [tmp_path / "run" / "steps" / f"{version:020d}" for version in (2, 4)]
    names[1].write_bytes(names[0].read_bytes())
    replica = Replica.join(learner.log)
    for _ in range(2):
        with pytest.raises(ChainBroken, match=r"record 4 of file:.*: got record 2 in its place"):
            replica.advance()
    assert replica.version == 3


def test_a_replica_goes_on_from_its_checkpoint(learner, model, backward):
    disk = MemoryDisk()
    publish(learner, model, backward, 5)
    first = Replica.join(learner.log, checkpoint=disk)
    first.advance()
    publish(learner, model, backward, 2)
    second = Replica.join(learner.log, checkpoint=disk)
    assert second.version == 5 and second.digest == first.digest
    assert torch.equal(second.params, first.params) and torch.equal(second.slot("v"), first.slot("v"))
    assert second.advance() == 7 and second.digest == learner.digest and second.checks == 2
    sparse = MemoryDisk()
    third = Replica.join(learner.log, checkpoint=sparse, checkpoint_interval=4)
    for version in range(1, 8):
        third.advance(to=version)
    assert sparse.writes == 1 and Replica.join(learner.log, checkpoint=sparse).version == 4


@pytest.mark.parametrize("point", ["before apply", "after apply", "before checkpoint write", "after checkpoint write"])
def test_wherever_a_replica_is_killed_it_goes_on_without_skipping_or_repeating(
    learner, model, backward, monkeypatch, point
):
    from hilosync.runtime import checkpoint

    disk = MemoryDisk()
    publish(learner, model, backward, 6)
    replica = Replica.join(learner.log, checkpoint=disk)
    with monkeypatch.context() as patched:
        for module in (replica_module, checkpoint):
            patched.setattr(module, "reach", Killer(point, passage=4))
        with pytest.raises(Killed):
            for version in range(1, 7):
                replica.advance(to=version)
    again = Replica.join(learner.log, checkpoint=disk)
    assert again.version == {"after checkpoint write": 4}.get(point, 3)
    assert again.advance() == 6 and again.digest == learner.digest


@pytest.mark.parametrize("position", [0, 9, 200, -1])
def test_a_replicas_damaged_checkpoint_counts_as_none(learner, model, backward, caplog, position):
    disk = MemoryDisk()
    publish(learner, model, backward, 3)
    Replica.join(learner.log, checkpoint=disk).advance()
    disk.flip(FILE, position)
    with caplog.at_level(logging.WARNING, logger="hilosync"):
        replica = Replica.join(learner.log, checkpoint=disk)
    assert replica.version == 0 and "is damaged" in caplog.text
    assert replica.advance() == 3 and replica.digest == learner.digest
    assert Replica.join(learner.log, checkpoint=disk).version == 3


def test_a_checkpoint_that_the_log_contradicts_is_thrown_away(learner, model, backward, memory, caplog):
    disk = MemoryDisk()
    publish(learner, model, backward, 2)
    Replica.join(learner.log, checkpoint=disk).advance()
    rewritten = Faults(seed=0).wrap(open_log(f"{memory}-rewritten", create=True))
    rewritten.steps.append(0, learner.log.steps.read(0))
    rewritten.steps.append(1, learner.log.steps.read(1))
    with caplog.at_level(logging.WARNING, logger="hilosync"):
        replica = Replica.join(rewritten, checkpoint=disk)
    assert "it holds version 2" in caplog.text and "ends at version 1" in caplog.text
    assert replica.version == 0 and replica.advance() == 1


def test_a_checkpoint_of_another_run_is_refused(learner, model, another_model, backward, memory):
    disk = MemoryDisk()
    publish(learner, model, backward, 2)
    Replica.join(learner.log, checkpoint=disk).advance()
    other = begin(another_model, f"{memory}-other")
    with pytest.raises(RunMismatch, match=f"{learner.run.genesis.run}, the log to run {other.run.genesis.run}"):
        Replica.join(other.log, checkpoint=disk)


def test_a_replica_whose_disk_is_full_goes_on(learner, model, backward, caplog):
    disk = MemoryDisk()
    replica = Replica.join(learner.log, checkpoint=disk)
    disk.full = True
    publish(learner, model, backward, 3)
    with caplog.at_level(logging.WARNING, logger="hilosync"):
        assert replica.advance() == 3 and replica.digest == learner.digest
    assert "the run goes on: cannot write" in caplog.text


def test_a_diverged_worker_says_so_heals_and_answers(learner, model, backward):
    publish(learner, model, backward, 2)
    replica = Replica.join(learner.log)
    replica.advance(to=1)
    corrupt(replica)
    said: list[Notice] = []
    mailbox = learner.log.mailbox
    honest = mailbox.post

    def post(sender, content):
        if sender == "w":
            import msgspec

            said.append(msgspec.json.decode(content, type=Notice))
        honest(sender, content)

    mailbox.post = post
    worker = Worker(replica, "w", lambda held, order: held.digest, Limits(silence=5.0, patience=30.0))
    thread = threading.Thread(target=worker.run)
    mailbox.offer([Order(2, 0)])
    notice = Notice(sender="learner", incarnation="l", beat=0, state="serving", version=2)
    with Heartbeat(mailbox, notice, interval=0.1) as heartbeat:
        thread.start()
        (delivery,) = mailbox.collect(2, wait=60)
        heartbeat.update(state="finished")
        thread.join(timeout=60)
    assert delivery.content == learner.digest
    states = [notice.state for notice in said]
    assert states.index("diverged") < len(states) - 1 - states[::-1].index("serving")
    diverged = said[states.index("diverged")]
    assert diverged.mismatches == 1 and "layers.0.lora_A" in diverged.detail
    assert (said[-1].state, said[-1].mismatches, said[-1].digest) == ("finished", 1, learner.digest.hex())


def test_a_worker_that_cannot_be_healed_ends_with_the_tensor(learner, model, backward, monkeypatch):
    publish(learner, model, backward, 2)
    replica = Replica.join(learner.log)
    honest = hilo.AdamW.step
    monkeypatch.setattr(hilo.AdamW, "step", lambda *arguments: honest(*arguments) + 1)
    with pytest.raises(Diverged):
        Worker(replica, "w", lambda held, order: b"", Limits(silence=1.0, patience=30.0)).run()
    said = Presence(learner.log.mailbox).look().notice("w")
    assert (said.state, said.mismatches) == ("failed", 2) and "layers.0.lora_A" in said.detail


def test_the_initial_adapter_that_is_gone_is_named(model, memory, backward):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    learner = begin(model, memory)
    publish(learner, model, backward, 1)
    learner.log.blobs.remove(learner.run.genesis.initial)
    with pytest.raises(LogNotFound):
        Replica.join(learner.log)
