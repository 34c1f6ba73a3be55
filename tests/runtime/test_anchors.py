"""A run writes snapshots beside its steps, and nothing that befalls one holds the run up."""

from __future__ import annotations

import threading

import pytest
import torch

import hilosync as hilo
from hilosync.errors import ConfigurationError, LogUnavailable, Truncated
from hilosync.log import Faults, open_log
from hilosync.runtime import anchors
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.snapshots import load_snapshot

LIMIT = 60.0


def learner_on(model, log, **options) -> hilo.Learner:
    settings = {"optimizer": hilo.AdamW(lr=1e-2), "compressor": hilo.Spar(budget=700), "anchor_interval": 2}
    return hilo.Learner(model, log=log, **(settings | options))


class Gate:
    """Lets operations of one kind through only once it has been opened."""

    def __init__(self, operation: str):
        self.reached, self.opened = threading.Event(), threading.Event()
        self._operation = operation

    def __call__(self, operation: str) -> None:
        if operation == self._operation:
            self.reached.set()
            assert self.opened.wait(LIMIT)


def test_steps_go_on_while_a_snapshot_is_being_stored(model, memory, backward):
    gate = Gate("put")
    log = Faults(0, delay=gate).wrap(open_log(memory, create=True))
    learner = learner_on(model, log, keep_recent=None)
    for _ in range(2):
        backward(model)
        learner.step()
    assert gate.reached.wait(LIMIT)
    state_at_2 = learner.params
    # The store answers nothing before the gate is opened below, and yet versions 3 to 5 are made.
    for version in (3, 4, 5):
        backward(model)
        report = learner.step()
        assert report.version == version
        assert [snapshot.version for snapshot in report.snapshots] == ([4] if version == 4 else [])
        assert all("still being written" in snapshot.error for snapshot in report.snapshots)
    gate.opened.set()
    (snapshot,) = learner.close(LIMIT)
    assert (snapshot.version, snapshot.published, snapshot.error) == (2, True, "")
    assert snapshot.stored_bytes > 3 * 4 * learner.plan.size
    state, _ = load_snapshot(log, learner.run, 2)
    assert torch.equal(state.params, state_at_2) and not torch.equal(state.params, learner.params)


def test_close_waits_no_longer_than_it_was_told(model, memory, backward):
    gate = Gate("put")
    learner = learner_on(model, Faults(0, delay=gate).wrap(open_log(memory, create=True)), anchor_interval=1)
    backward(model)
    learner.step()
    assert gate.reached.wait(LIMIT)
    assert learner.close(wait=0.01) == []
    gate.opened.set()
    assert [snapshot.version for snapshot in learner.close(LIMIT)] == [1]


def test_a_failing_storage_is_reported_and_tried_again_at_the_next_anchor(model, memory, backward, caplog):
    broken = {"put"}

    def delay(operation: str) -> None:
        if operation in broken:
            raise LogUnavailable("injected: No space left on device; free some space there")

    learner = learner_on(model, Faults(0, delay=delay).wrap(open_log(memory, create=True)), keep_recent=None)
    reports = []
    for _ in range(4):
        backward(model)
        reports += learner.step().snapshots
        reports += learner.close(LIMIT)
        if learner.version == 2:
            broken.clear()
    assert [(report.version, report.published) for report in reports] == [(2, False), (4, True)]
    assert "LogUnavailable: injected: No space left on device" in reports[0].error
    assert "the next one is due at version 4" in caplog.text
    assert learner.log.snapshots.versions() == [4]


def test_a_fault_of_the_program_in_a_snapshot_does_not_end_the_run(model, memory, backward, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(anchors, "write_snapshot", broken)
    learner = learner_on(model, memory, anchor_interval=1)
    backward(model)
    (report,) = [*learner.step().snapshots, *learner.close(LIMIT)]
    assert report.error == "ZeroDivisionError: a mistake" and not report.published


def test_too_little_memory_for_a_copy_is_reported(model, memory, backward, monkeypatch):
    learner = learner_on(model, memory, anchor_interval=1)
    backward(model)

    def refuse(self):
        raise RuntimeError("DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr("hilosync.arithmetic.state.PolicyState.clone", refuse)
    (report,) = learner.step().snapshots
    assert "no memory for a copy of the state" in report.error
    assert learner.version == 1


def test_a_worker_and_its_learner_may_write_the_same_snapshot(model, memory, backward):
    learner = learner_on(model, memory, keep_recent=None)
    replica = hilo.Replica.join(memory)
    replica.snapshots = writer = SnapshotWriter(open_log(memory), replica.run, 2)
    published = []
    for _ in range(4):
        backward(model)
        reports = [*learner.step().snapshots]
        for _ in range(3):
            replica.advance()
            assert writer.close(LIMIT)
            reports += [*learner.close(LIMIT), *writer.take_reports()]
        assert not any(report.error for report in reports)
        published += [report.published for report in reports]
    assert len(published) == 4 and published.count(True) >= 2
    assert learner.log.snapshots.versions() == [2, 4]
    load_snapshot(learner.log, learner.run, 4)


def test_a_replica_writes_the_snapshots_that_its_learner_does_not(model, memory, backward):
    learner = learner_on(model, memory, anchor_interval=None)
    replica = hilo.Replica.join(memory)
    replica.snapshots = SnapshotWriter(replica.log, replica.run, 3)
    for _ in range(7):
        backward(model)
        learner.step()
        replica.advance()
        assert replica.snapshots.close(LIMIT)
    assert [report.version for report in replica.snapshots.take_reports()] == [3, 6]
    assert learner.log.snapshots.versions() == [3, 6]


def test_a_learner_keeps_the_newest_snapshots_and_the_records_after_them(model, memory, backward):
    learner = learner_on(model, memory, keep_recent=2)
    for _ in range(9):
        backward(model)
        learner.step()
        learner.close(LIMIT)
    assert learner.log.snapshots.versions() == [6, 8]
    with pytest.raises(Truncated, match="has been removed"):
        learner.log.steps.read(4)
    assert learner.log.steps.read(5) is not None
    state, position = load_snapshot(learner.log, learner.run, 6)
    replica = hilo.Replica.join(memory)
    replica._machine.rebase(state, position)
    assert replica.advance() == 9 and replica.digest == learner.digest


@pytest.mark.parametrize("wrong", [{"anchor_interval": 0}, {"anchor_interval": 5, "keep_recent": 0}])
def test_an_impossible_interval_is_refused_before_the_run_begins(model, memory, wrong):
    with pytest.raises(ConfigurationError, match="= 0: expected 1 or more"):
        learner_on(model, memory, **wrong)
    assert open_log(memory, create=True).steps.head() == -1
