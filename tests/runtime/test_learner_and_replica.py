"""`Learner` and `Replica`: the two lines that a training loop changes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from peft import PeftModel

import hilosync as hilo
from hilosync.errors import (
    BudgetTooSmall,
    ConfigurationError,
    Diverged,
    Fenced,
    LogNotFound,
    LogUnavailable,
    MalformedRecord,
    NonFinite,
    PeerSilent,
    PlanMismatch,
    RunMismatch,
    TornState,
    UnsafeArithmetic,
)
from hilosync.log import Faults, open_log
from hilosync.optim import TorchOptimizer, schedules, torch_optimizer
from hilosync.plan import bind


def learner_on(model, log, **options):
    settings = {"optimizer": hilo.AdamW(lr=1e-2), "compressor": hilo.Spar(budget=700), "seed": 7}
    return hilo.Learner(model, log=log, **(settings | options))


def test_replica_and_learner_serve_one_policy(model, another_model, memory, backward):
    learner = learner_on(model, memory)
    replica = hilo.Replica.join(memory)
    losses = []
    for version in range(1, 21):
        losses.append(backward(model))
        report = learner.step()
        assert report.version == version and report.record_bytes <= 700
        assert replica.advance() == version
        assert replica.digest == learner.digest
    assert losses[-1] < 0.8 * losses[0]
    replica.load_into(another_model)
    assert torch.equal(bind(another_model).read(), bind(model).read())
    assert torch.equal(replica.params, learner.params)
    assert torch.equal(replica.slot("v"), learner.slot("v"))
    assert replica.checks == 20 and replica.apply_seconds > 0


def test_a_fresh_adapter_starts_from_the_seed_and_costs_no_bytes(model, another_model, memory):
    learner = learner_on(model, memory)
    assert learner.run.genesis.initial == "seed"
    replica = hilo.Replica.join(memory)
    assert torch.equal(replica.params, learner.params)
    replica.load_into(another_model)
    inputs = torch.ones(2, 12)
    with another_model.disable_adapter():
        base = another_model(inputs)
    assert torch.equal(another_model(inputs), base)


def test_a_trained_adapter_is_stored_once_and_joined(model, another_model, memory, backward):
    binding = bind(model)
    with torch.no_grad():
        for parameter in binding.parameters:
            parameter.add_(0.25)
    before = binding.read()
    learner = learner_on(model, memory)
    assert learner.run.genesis.initial != "seed"
    replica = hilo.Replica.join(memory)
    assert torch.equal(replica.params, before)
    backward(model)
    learner.step()
    replica.advance()
    replica.load_into(another_model)
    assert torch.equal(bind(another_model).read(), binding.read())


def test_serving_copies_are_not_the_replay_buffers(model, another_model, memory, backward):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    backward(model)
    learner.step()
    replica.advance()
    replica.load_into(another_model)
    with torch.no_grad():
        for parameter in bind(another_model).parameters:
            parameter.mul_(99)
        replica.params.zero_()
        replica.slot("m").zero_()
    backward(model)
    learner.step()
    assert replica.advance() == 2 and replica.digest == learner.digest


def test_an_exported_version_is_an_adapter_that_peft_loads(model, another_model, memory, backward, tmp_path):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    backward(model)
    learner.step()
    replica.advance()
    folder = replica.export(tmp_path / "run-v1")
    loaded = PeftModel.from_pretrained(another_model.unload(), folder, is_trainable=True)
    assert torch.equal(bind(loaded).read(), bind(model).read())
    with pytest.raises(ConfigurationError, match="exists already"):
        replica.export(tmp_path / "run-v1")


def test_another_process_sees_the_run_through_a_folder(model, memory, backward, tmp_path):
    learner = learner_on(model, f"file:{tmp_path / 'run'}")
    for _ in range(3):
        backward(model)
        learner.step()
    replica = hilo.Replica.join(str(tmp_path / "run"))
    assert replica.advance(to=2) == 2
    assert replica.advance() == 3
    assert replica.digest == learner.digest


def test_a_run_that_has_not_begun_is_waited_for_and_then_named(memory, model):
    with pytest.raises(LogNotFound, match=memory):
        hilo.Replica.join(memory)
    begin = threading.Timer(0.3, lambda: learner_on(model, memory))
    begin.start()
    assert hilo.Replica.join(memory, wait=30).version == 0
    begin.join()


def test_waiting_for_a_version_ends(memory, model):
    learner_on(model, memory)
    replica = hilo.Replica.join(memory)
    started = time.monotonic()
    with pytest.raises(PeerSilent, match="version 5 did not appear"):
        replica.advance(to=5, wait=0.2)
    assert time.monotonic() - started < 30
    assert replica.advance(wait=0.05) == 0


def test_a_log_that_holds_a_run_is_not_written_over(model, another_model, memory):
    learner_on(model, memory)
    with pytest.raises(RunMismatch, match="holds a run already"):
        learner_on(another_model, memory)


def test_a_refused_run_leaves_the_log_empty(model, memory):
    with pytest.raises(BudgetTooSmall):
        learner_on(model, memory, compressor=hilo.Spar(budget=250))
    with pytest.raises(LogNotFound):
        hilo.Replica.join(memory)
    learner_on(model, memory)


def test_a_lost_acknowledgement_is_retried_with_the_same_bytes(model, memory, backward):
    faults = Faults(seed=1)
    learner = learner_on(model, faults.wrap(open_log(memory, create=True)))
    replica = hilo.Replica.join(memory)
    backward(model)
    learner.step()
    faults.lose_acknowledgement = 1.0
    backward(model)
    with pytest.raises(LogUnavailable):
        learner.step()
    faults.lose_acknowledgement = 0.0
    assert learner.version == 1
    assert learner.step().version == 2  # no new gradient: the same bytes again, and no step besides
    assert learner.log.steps.head() == 2
    backward(model)
    assert learner.step().version == 3
    assert replica.advance() == 3 and replica.digest == learner.digest


def test_a_record_that_never_arrived_is_appended_before_the_next(model, memory, backward):
    faults = Faults(seed=1)
    learner = learner_on(model, faults.wrap(open_log(memory, create=True)))
    replica = hilo.Replica.join(memory)
    faults.fail_before = 1.0
    backward(model)
    with pytest.raises(LogUnavailable):
        learner.step()
    assert replica.advance() == 0
    faults.fail_before = 0.0
    assert learner.flush().version == 1 and learner.flush() is None
    backward(model)
    assert learner.step().version == 2
    assert replica.advance() == 2 and replica.digest == learner.digest


def test_a_second_writer_is_fenced(model, memory, backward):
    learner = learner_on(model, memory)
    backward(model)
    learner.log.steps.append(1, b"another learner's record")
    with pytest.raises(Fenced):
        learner.step()
    assert learner.log.steps.read(1) == b"another learner's record"
    assert learner.version == 0


def test_nan_gradients_publish_nothing(model, memory, backward):
    learner = learner_on(model, memory)
    backward(model)
    bind(model).parameters[3].grad[0, 0] = float("inf")
    with pytest.raises(NonFinite, match=r"layers\.1\.lora_B"):
        learner.step()
    assert learner.log.steps.head() == 0
    for parameter in bind(model).parameters:
        parameter.grad = None
    backward(model)
    assert learner.step().version == 1


def test_a_step_without_a_backward_pass_says_so(model, memory):
    with pytest.raises(ConfigurationError, match="backward"):
        learner_on(model, memory).step()


def test_learning_rates_from_any_schedule_travel_in_the_record(model, memory, backward):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    for lr in (1e-2, 0.0, 5e-3):
        before = learner.params
        backward(model)
        learner.step((lr,))
        assert torch.equal(before, learner.params) == (lr == 0.0)
        replica.advance()
        assert replica.digest == learner.digest


def test_a_model_of_another_shape_is_not_served_into(model, memory):
    from peft import LoraConfig, get_peft_model

    learner_on(model, memory)
    replica = hilo.Replica.join(memory)
    other = get_peft_model(model.unload(), LoraConfig(r=8, target_modules=["layers.0", "layers.1", "layers.2"]))
    with pytest.raises(PlanMismatch, match="4 × 12"):
        replica.load_into(other)


def test_a_damaged_record_is_named_and_the_version_before_it_still_holds(model, memory, backward, tmp_path):
    learner = learner_on(model, f"file:{tmp_path}")
    for _ in range(3):
        backward(model)
        learner.step()
    path = sorted((tmp_path / "steps").iterdir())[2]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    replica = hilo.Replica.join(str(tmp_path))
    with pytest.raises(MalformedRecord, match="record 2 of file:"):
        replica.advance()
    assert replica.version == 1
    assert replica.params.shape == (learner.plan.size,)


def test_a_diverged_replica_serves_and_exports_nothing(model, another_model, memory, backward, tmp_path):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    backward(model)
    learner.step()
    replica.advance()
    replica._machine.state.params[3] += 1.0
    backward(model)
    learner.step()
    with pytest.raises(Diverged, match=r"layers\.0\.lora_A"):
        replica.advance()
    for use in (
        lambda: replica.load_into(another_model),
        lambda: replica.export(tmp_path / "x"),
        lambda: replica.params,
    ):
        with pytest.raises(Diverged):
            use()
    assert not (tmp_path / "x").exists()


def test_param_groups_have_rates_of_their_own_and_workers_need_no_settings(model, memory, backward):
    learner = learner_on(
        model,
        memory,
        optimizer=hilo.AdamW(lr=(1e-2, 0.0)),
        param_group=lambda name: int(name.endswith("lora_A")),
    )
    replica = hilo.Replica.join(memory)
    before = learner.plan.views(learner.params)
    for _ in range(3):
        backward(model)
        learner.step()
    assert replica.advance() == 3 and replica.digest == learner.digest
    for block, old, new in zip(learner.plan.blocks, before, learner.plan.views(replica.params), strict=True):
        assert torch.equal(old, new) == (block.group == 1), block.name


def test_a_torch_scheduler_drives_the_rates(model, memory, backward):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(dummy, T_max=4)
    for _ in range(4):
        before = learner.params
        backward(model)
        learner.step(tuple(scheduler.get_last_lr()))
        dummy.step()
        scheduler.step()
        assert replica.advance() == learner.version and replica.digest == learner.digest
        assert not torch.equal(before, learner.params)
    before = learner.params
    backward(model)
    learner.step(tuple(scheduler.get_last_lr()))  # the cosine has come to zero
    assert torch.equal(before, learner.params)


def test_a_schedule_runs_on_the_learner_alone(model, memory, backward):
    learner = learner_on(model, memory, schedule=schedules.linear(1e-2, steps=3))
    replica = hilo.Replica.join(memory)
    moved = []
    for _ in range(3):
        before = learner.params
        backward(model)
        learner.step()
        assert replica.advance() == learner.version and replica.digest == learner.digest
        moved.append(float((learner.params - before).norm()))
    assert moved[0] > moved[1] > moved[2] == 0.0


def test_the_residual_is_capped_in_units_of_the_gradient(model, another_model, memory, backward):
    free, capped = learner_on(model, memory), learner_on(another_model, f"{memory}-capped", residual_cap=0.1)
    for _ in range(6):
        backward(model)
        free_report = free.step()
        backward(another_model)
        capped_report = capped.step()
        assert capped_report.residual_ratio <= 0.1 * (1 + 1e-5)
    assert free_report.residual_ratio > 0.1
    assert capped_report.gradient_energies.shape == capped_report.residual_energies.shape == (6,)


def test_neither_side_starts_where_subnormals_are_flushed(model, another_model, memory):
    learner_on(model, memory)
    assert torch.set_flush_denormal(True)
    try:
        with pytest.raises(UnsafeArithmetic, match="subnormal"):
            hilo.Replica.join(memory)
        with pytest.raises(UnsafeArithmetic, match="subnormal"):
            learner_on(another_model, f"{memory}-flushed")
    finally:
        torch.set_flush_denormal(False)
    with pytest.raises(LogNotFound):
        hilo.Replica.join(f"{memory}-flushed")


def test_a_replica_on_another_machine_is_told_at_join_where_bits_need_equal_machines(model, memory, monkeypatch):
    learner = learner_on(model, memory, optimizer=TorchOptimizer("RMSprop", lr=1e-3))
    assert hilo.Replica.join(memory).digest == learner.digest
    here = torch_optimizer.machine_fingerprint()
    monkeypatch.setattr(torch_optimizer, "machine_fingerprint", lambda: here | {"torch": "9.9.9"})
    with pytest.raises(RunMismatch, match=r"torch is '9\.9\.9'.*join from a machine like the learner's"):
        hilo.Replica.join(memory)


def test_a_replica_interrupted_in_the_middle_of_a_step_serves_nothing(
    model, another_model, memory, backward, monkeypatch
):
    learner, replica = learner_on(model, memory), hilo.Replica.join(memory)
    backward(model)
    learner.step()
    honest = hilo.AdamW.step

    def interrupted(self, *arguments):
        honest(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(hilo.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replica.advance()
    monkeypatch.setattr(hilo.AdamW, "step", honest)
    for use in (lambda: replica.load_into(another_model), lambda: replica.params, replica.advance):
        with pytest.raises(TornState, match="join the run again"):
            use()
    again = hilo.Replica.join(memory)
    assert again.advance() == 1 and again.digest == learner.digest


def test_a_model_with_another_scaling_is_not_served_into(model, another_model, memory):
    from peft import LoraConfig, get_peft_model

    learner_on(model, memory)
    replica = hilo.Replica.join(memory)
    targets = ["layers.0", "layers.1", "layers.2"]
    louder = get_peft_model(another_model.unload(), LoraConfig(r=4, lora_alpha=64, target_modules=targets))
    with pytest.raises(PlanMismatch, match="lora_alpha=4, the model's 64"):
        replica.load_into(louder)
