"""A learner that dies anywhere is resumed: nothing published is lost or changed, and two never write one log."""

from __future__ import annotations

import copy
import logging
import threading

import pytest
import torch
from disks import Killed, Killer, MemoryDisk
from peft import LoraConfig, get_peft_model

import hilosync as hilo
from hilosync.errors import (
    ConfigurationError,
    Fenced,
    LogNotFound,
    LogUnavailable,
    PlanMismatch,
    RunMismatch,
    TornState,
)
from hilosync.log import Faults, open_log
from hilosync.optim import schedules
from hilosync.plan import bind
from hilosync.runtime import publisher
from hilosync.runtime.snapshots import write_snapshot
from hilosync.wire import decode_record

VERSIONS = 7
FILE = "learner.safetensors"


def settings(**changes):
    return {
        "optimizer": hilo.AdamW(lr=1e-2),
        "compressor": hilo.PowerSGD(budget=700),
        "schedule": schedules.linear(1e-2, VERSIONS),
    } | changes


def begin(model, log, **changes) -> hilo.Learner:
    return hilo.Learner(model, log=log, seed=7, **settings(**changes))


def resume(model, log, **changes) -> hilo.Learner:
    return hilo.Learner.resume(model, log=log, **settings(**changes))


def records(log) -> list[bytes]:
    return [log.steps.read(version) for version in range(1, log.steps.head() + 1)]


def digests(log) -> list[bytes]:
    return [decode_record(record).digest for record in records(log)]


def drive(learner, model, backward, to: int = VERSIONS) -> hilo.Learner:
    while learner.version < to:
        backward(model)
        learner.step()
    return learner


@pytest.fixture
def undisturbed(model, memory, backward) -> list[bytes]:
    """The digests of a run that nothing befell."""
    fresh = copy.deepcopy(model)
    return digests(drive(begin(fresh, f"{memory}-undisturbed"), fresh, backward).log)


@pytest.mark.parametrize("dies_at", range(VERSIONS))
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(model, another_model, memory, backward, undisturbed, dies_at):
    disk = MemoryDisk()
    drive(begin(model, memory, checkpoint=disk), model, backward, to=dies_at)
    learner = resume(another_model, memory, checkpoint=disk)
    assert learner.resumed.residual == "exact" and learner.resumed.checkpoint == learner.version == dies_at
    assert torch.equal(bind(another_model).read(), bind(model).read())
    drive(learner, another_model, backward)
    assert digests(learner.log) == undisturbed
    replica = hilo.Replica.join(memory)
    assert replica.advance() == VERSIONS and replica.digest == learner.digest


@pytest.mark.parametrize(
    "point",
    [
        "before apply",
        "after apply",
        "before checkpoint write",
        "before rename",
        "after rename",
        "after checkpoint write",
        "before append",
        "after append",
    ],
)
def test_wherever_a_learner_is_killed_its_checkpoint_loses_nothing(
    model, another_model, memory, backward, undisturbed, tmp_path, monkeypatch, point
):
    from hilosync.runtime import checkpoint, disk

    learner = begin(model, memory, checkpoint=tmp_path / "kept")
    killer = Killer(point, passage=3)
    with monkeypatch.context() as patched:
        for module in (publisher, checkpoint, disk):
            patched.setattr(module, "reach", killer)
        with pytest.raises(Killed):
            drive(learner, model, backward)
    published = records(learner.log)
    learner = resume(another_model, memory, checkpoint=tmp_path / "kept")
    assert learner.resumed.residual == "exact"
    assert learner.resumed.completed == (point in ("after rename", "after checkpoint write", "before append"))
    drive(learner, another_model, backward)
    assert records(learner.log)[: len(published)] == published
    assert digests(learner.log) == undisturbed
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == [FILE]


def test_a_learner_can_die_again_and_again(model, memory, backward, undisturbed):
    disk = MemoryDisk()
    begin(model, memory, checkpoint=disk)
    epochs = []
    for version in range(1, VERSIONS + 1):
        fresh = copy.deepcopy(model)
        learner = drive(resume(fresh, memory, checkpoint=disk), fresh, backward, to=version)
        epochs.append(decode_record(learner.log.steps.read(version)).epoch)
    assert digests(learner.log) == undisturbed
    assert [epoch >> 32 for epoch in epochs] == list(range(1, VERSIONS + 1))


def test_of_unsaved_steps_the_residual_keeps_what_was_not_shipped_and_says_so(model, another_model, memory, backward):
    disk = MemoryDisk()
    learner = drive(begin(model, memory, checkpoint=disk, checkpoint_interval=3), model, backward, to=5)
    before = records(learner.log)
    learner = resume(another_model, memory, checkpoint=disk, checkpoint_interval=3)
    assert (learner.resumed.checkpoint, learner.resumed.version) == (3, 5)
    assert learner.resumed.residual == "projected"
    assert "of the residual, what steps after 3 would have added is lost" in learner.resumed.summary
    residual = learner._machine.residual
    assert residual.any()
    shipped = learner.run.compressor.decode(learner.plan, decode_record(before[-1]).payload)
    for view, block in zip(learner.plan.views(residual), shipped, strict=True):
        torch.testing.assert_close(block.left.T @ view, torch.zeros(block.left.shape[1], view.shape[1]))
    assert torch.equal(bind(another_model).read(), bind(model).read())
    drive(learner, another_model, backward)
    assert records(learner.log)[:5] == before


def test_without_a_checkpoint_the_log_suffices_and_the_residual_is_lost(model, another_model, memory, backward):
    learner = drive(begin(model, memory), model, backward, to=4)
    digest, epoch = learner.digest, decode_record(learner.log.steps.read(4)).epoch
    learner = resume(another_model, memory)
    assert learner.digest == digest and learner.version == 4
    assert learner.resumed.residual == "zero" and "starts from zero" in learner.resumed.summary
    assert not learner._machine.residual.any() and learner.extra is None
    drive(learner, another_model, backward)
    assert decode_record(learner.log.steps.read(5)).epoch >> 32 == (epoch >> 32) + 1
    assert hilo.Replica.join(memory).advance() == VERSIONS


def test_a_snapshot_carries_a_learner_whose_records_are_gone(model, another_model, memory, backward):
    learner = drive(begin(model, memory), model, backward, to=6)
    write_snapshot(learner.log, learner.run, learner._machine.state, 6)
    learner.log.steps.forget(before=5)
    learner = resume(another_model, memory)
    assert learner.version == 6 and learner.resumed.residual == "zero"
    assert learner.resumed.recoveries[0].cause == "truncated"
    assert drive(learner, another_model, backward).version == VERSIONS


def test_the_users_state_and_torchs_generator_come_back(model, another_model, memory, backward):
    disk = MemoryDisk()
    learner = begin(model, memory, checkpoint=disk, extra={"examples": 0})
    for version in range(1, 4):
        torch.rand(5)
        learner.extra = {"examples": 32 * version}
        drive(learner, model, backward, to=version)
    expected = torch.rand(5)
    torch.manual_seed(1)
    learner = resume(another_model, memory, checkpoint=disk)
    assert learner.extra == {"examples": 96}
    assert torch.equal(torch.rand(5), expected)
    with pytest.raises(ConfigurationError, match="JSON"):
        learner.extra = {"examples": float("nan")}


def test_another_configuration_is_refused_with_both_values(model, another_model, memory, backward):
    drive(begin(model, memory), model, backward, to=2)
    for changes, message in (
        ({"optimizer": hilo.Lion()}, r'begun with optimizer \{"name":"adamw".*this learner has \{"name":"lion"'),
        ({"compressor": hilo.Spar(budget=700)}, '"powersgd".*this learner has .*"spar"'),
        ({"compressor": hilo.PowerSGD(budget=900)}, "begun with budget of bytes per record 700, this learner has 900"),
    ):
        with pytest.raises(RunMismatch, match=message):
            resume(another_model, memory, **changes)
    with pytest.raises(PlanMismatch, match="param groups"):
        resume(another_model, memory, param_group=lambda name: int("lora_A" in name), optimizer=hilo.AdamW((1e-2, 0)))
    smaller = get_peft_model(another_model.unload(), LoraConfig(r=2, target_modules=["layers.0", "layers.1"]))
    with pytest.raises(PlanMismatch):
        resume(smaller, memory)


def test_what_cannot_be_resumed_is_named(model, another_model, memory, backward):
    with pytest.raises(LogNotFound, match="no run at"):
        resume(model, memory)
    disk, other = MemoryDisk(), MemoryDisk()
    drive(begin(model, memory, checkpoint=disk), model, backward, to=2)
    drive(begin(another_model, f"{memory}-other", checkpoint=other), another_model, backward, to=2)
    with pytest.raises(RunMismatch, match="holds a checkpoint already"):
        begin(copy.deepcopy(model), f"{memory}-third", checkpoint=disk)
    with pytest.raises(RunMismatch, match=r"belongs to run [0-9a-f]{32}, the log to run [0-9a-f]{32}"):
        resume(model, memory, checkpoint=other)
    disk.files, other.files = other.files, disk.files
    resume(model, memory, checkpoint=other)


def test_a_log_that_lost_records_is_not_gone_on_with_in_silence(model, another_model, tmp_path, backward):
    address, disk = f"file:{tmp_path}/run", MemoryDisk()
    drive(begin(model, address, checkpoint=disk), model, backward, to=4)
    for version in (3, 4):
        (tmp_path / "run" / "steps" / f"{version:020d}").unlink()
    with pytest.raises(RunMismatch, match=r"ahead of its log: it holds version 4, and file:.* ends at version 2"):
        resume(another_model, address, checkpoint=disk)
    assert FILE in disk.files
    assert resume(another_model, address).version == 2


@pytest.mark.parametrize("lost", ["2", "oldest"])
def test_no_other_record_is_written_where_one_was_lost(model, another_model, tmp_path, backward, lost):
    steps = tmp_path / "run" / "steps"
    learner = drive(begin(model, f"file:{tmp_path}/run"), model, backward, to=4)
    if lost == "oldest":
        write_snapshot(learner.log, learner.run, learner._machine.state, 4)
        learner.log.steps.forget(before=3)
        (steps / lost).unlink()
    else:
        (steps / f"{2:020d}").unlink()
    with pytest.raises(LogUnavailable, match=r"record [12] is missing, and record 4 is there, so it has been lost"):
        resume(another_model, f"file:{tmp_path}/run")


def test_a_record_that_does_not_follow_the_log_is_not_appended_to_it(model, another_model, tmp_path, backward):
    address, disk = f"file:{tmp_path}/run", MemoryDisk()
    drive(begin(model, address, checkpoint=disk), model, backward, to=4)
    for version in (3, 4):
        (tmp_path / "run" / "steps" / f"{version:020d}").unlink()
    restored = copy.deepcopy(model)
    other = drive(resume(restored, address), restored, backward, to=3)
    with pytest.raises(RunMismatch, match=r"ahead of its log: it holds version 4, and file:.* ends at version 3"):
        resume(another_model, address, checkpoint=disk)
    assert other.log.steps.head() == 3 and hilo.Replica.join(address).advance() == 3


@pytest.mark.parametrize("position", [3, 100, -1])
def test_a_damaged_checkpoint_counts_as_none(model, another_model, memory, backward, caplog, position):
    disk = MemoryDisk()
    digest = drive(begin(model, memory, checkpoint=disk), model, backward, to=3).digest
    disk.flip(FILE, position)
    with caplog.at_level(logging.WARNING, logger="hilosync"):
        learner = resume(another_model, memory, checkpoint=disk)
    assert learner.digest == digest and learner.resumed.residual == "zero"
    assert f"checkpoint {FILE} on a disk in memory is damaged" in caplog.text
    drive(learner, another_model, backward, to=4)
    assert resume(model, memory, checkpoint=disk).resumed.residual == "exact"


def test_a_full_disk_is_reported_and_does_not_end_the_run(model, another_model, memory, backward, caplog, undisturbed):
    disk = MemoryDisk()
    learner = drive(begin(model, memory, checkpoint=disk), model, backward, to=2)
    disk.full = True
    with caplog.at_level(logging.WARNING, logger="hilosync"):
        drive(learner, model, backward, to=4)
    assert caplog.text.count("was not written, the run goes on: cannot write") == 2
    assert digests(learner.log) == undisturbed[:4]
    assert resume(another_model, memory, checkpoint=disk).resumed.residual == "projected"
    disk.full = False
    drive(learner, model, backward, to=5)
    assert resume(another_model, memory, checkpoint=disk).resumed.residual == "exact"


def test_a_step_that_fails_half_way_stops_the_learner_until_it_is_resumed(
    model, another_model, memory, backward, monkeypatch, undisturbed
):
    disk = MemoryDisk()
    learner = drive(begin(model, memory, checkpoint=disk), model, backward, to=2)
    honest = hilo.AdamW.step

    def torn(self, plan, state, gradient, scalars):
        state.params[: plan.size // 2] += 1.0
        raise MemoryError("no memory for the other half")

    backward(model)
    with monkeypatch.context() as patched:
        patched.setattr(hilo.AdamW, "step", torn)
        with pytest.raises(MemoryError):
            learner.step()
    assert hilo.AdamW.step is honest
    backward(model)
    for use in (learner.step, learner.flush, lambda: learner.params, lambda: learner.slot("m")):
        with pytest.raises(TornState, match=r"nothing was published; resume the run, whose newest version is 2"):
            use()
    assert learner.version == 2 == learner.log.steps.head()
    learner = drive(resume(another_model, memory, checkpoint=disk), another_model, backward)
    assert digests(learner.log) == undisturbed


def test_a_learner_that_is_resumed_elsewhere_is_fenced_and_has_changed_nothing(
    model, another_model, memory, backward, undisturbed
):
    disk = MemoryDisk()
    old = drive(begin(model, memory, checkpoint=disk), model, backward, to=3)
    served = bind(model).read()
    new = drive(resume(another_model, memory, checkpoint=disk), another_model, backward, to=4)
    published = records(new.log)
    backward(model)
    with pytest.raises(Fenced, match="another learner has written version 4"):
        old.step()
    assert old.version == 3 and torch.equal(bind(model).read(), served)
    for use in (old.step, old.flush, lambda: old.params, lambda: old.publish(torch.zeros(old.plan.size))):
        with pytest.raises(Fenced):
            use()
    assert records(new.log) == published
    # Both kept their checkpoint in one place; the fenced one's is found out and thrown away.
    learner = resume(model, memory, checkpoint=disk)
    assert learner.version == 4 and learner.resumed.residual == "zero"
    assert digests(drive(learner, model, backward).log)[:4] == undisturbed[:4]


@pytest.mark.parametrize("removed", [False, True])
def test_a_learner_that_was_replaced_is_told_so_before_it_steps(model, another_model, memory, backward, removed):
    old = drive(begin(model, memory), model, backward, to=1)
    old.check_unfenced()
    new = drive(resume(another_model, memory), another_model, backward, to=4)
    if removed:
        new.log.steps.forget(before=4)
    for call in (old.check_unfenced, old.step):
        with pytest.raises(Fenced, match="another learner has written version 2"):
            call()
    new.check_unfenced()
    assert old.version == 1 and new.log.steps.head() == 4


def test_of_learners_resumed_from_one_head_with_equal_data_one_appends(model, memory, backward):
    drive(begin(model, memory), model, backward, to=2)
    models = [copy.deepcopy(model) for _ in range(4)]
    racers = [resume(fresh, memory) for fresh in models]
    for fresh in models:
        backward(fresh)
    assert len({racer._machine.epoch for racer in racers}) == len(racers)
    ends: list[object] = []
    line = threading.Barrier(len(racers))

    def race(racer):
        line.wait(timeout=60)
        try:
            ends.append(racer.step().version)
        except Fenced as error:
            ends.append(error)

    threads = [threading.Thread(target=race, args=(racer,)) for racer in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sum(end == 3 for end in ends) == 1 and sum(isinstance(end, Fenced) for end in ends) == 3
    assert open_log(memory).steps.head() == 3
    assert sorted(racer.version for racer in racers) == [2, 2, 2, 3]
    assert hilo.Replica.join(memory).advance() == 3


def test_a_record_whose_acknowledgement_was_lost_is_not_written_twice(
    model, another_model, memory, backward, undisturbed
):
    disk, faults = MemoryDisk(), Faults(seed=1)
    learner = begin(model, faults.wrap(open_log(memory, create=True)), checkpoint=disk)
    drive(learner, model, backward, to=2)
    faults.lose_acknowledgement = 1.0
    backward(model)
    with pytest.raises(LogUnavailable):
        learner.step()
    faults.lose_acknowledgement = 0.0
    learner = resume(another_model, memory, checkpoint=disk)
    assert learner.version == 3 and not learner.resumed.completed and learner.resumed.residual == "exact"
    assert digests(drive(learner, another_model, backward).log) == undisturbed
