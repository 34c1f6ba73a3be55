"""Learner and replica machines: equal bits, and nothing applied or served that is not the learner's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_run import PLAN, genesis_of, gradient

from hilosync.compress import PowerSGD
from hilosync.errors import (
    BudgetTooSmall,
    ChainBroken,
    ConfigurationError,
    Diverged,
    HiLoError,
    MalformedRecord,
    NonFinite,
    PlanMismatch,
    RunMismatch,
)
from hilosync.optim import AdamW
from hilosync.protocol import LearnerMachine, ReplicaMachine, Run
from hilosync.wire import PlanLayout, Setup, TensorLayout, decode_record, encode_record


def same_bits(a, b) -> bool:
    pairs = [(a.params, b.params), *((a.slots[name], b.slots[name]) for name in a.slots)]
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in pairs)


def test_a_replica_holds_the_learners_bits_at_every_version(learner, replica, rng):
    assert replica.digest == learner.digest and same_bits(replica.state, learner.state)
    for version in range(1, 9):
        proposal = learner.propose(gradient(rng))
        assert replica.receive(proposal.data).new
        learner.accept(version)
        assert replica.version == learner.version == version
        assert replica.digest == learner.digest
        assert same_bits(replica.state, learner.state)


def test_every_record_is_within_the_budget_header_included(records, learner):
    assert learner.run.record_limit == 400
    assert all(len(record) <= 400 for record in records)


def test_the_residual_is_what_the_payload_left_out(learner, rng):
    first, second = gradient(rng), gradient(rng)
    proposal = learner.propose(first)
    learner.accept(1)
    decoded = learner.run.compressor.decode(PLAN, decode_record(proposal.data).payload)
    dense = torch.cat([(block.left @ block.right * block.scale).reshape(-1) for block in decoded])
    torch.testing.assert_close(learner.residual, first - dense, rtol=0, atol=1e-6)
    before = learner.residual.clone()
    proposal = learner.propose(second)
    decoded = learner.run.compressor.decode(PLAN, decode_record(proposal.data).payload)
    dense = torch.cat([(block.left @ block.right * block.scale).reshape(-1) for block in decoded])
    torch.testing.assert_close(learner.residual, second + before - dense, rtol=0, atol=1e-5)
    assert proposal.residual_ratio == pytest.approx(float(learner.residual.norm() / second.norm()), rel=1e-5)


def test_without_feedback_the_residual_stays_zero(genesis, rng):
    learner = LearnerMachine(Run.of(genesis), decay=0.0)
    learner.propose(gradient(rng))
    assert not learner.residual.any()


def test_the_gradient_is_clipped_before_feedback(genesis, rng):
    huge = 1e6 * gradient(rng)
    clipped = LearnerMachine(Run.of(genesis), clip=1.0)
    clipped.propose(huge.clone())
    direct = LearnerMachine(Run.of(genesis))
    direct.propose(huge / huge.norm())
    assert float(clipped.residual.norm()) <= 1.0
    torch.testing.assert_close(clipped.residual, direct.residual, rtol=1e-3, atol=1e-4)


def test_a_duplicate_changes_nothing(replica, records):
    replica.receive(records[0])
    replica.receive(records[1])
    before = replica.state.clone()
    for old in (records[0], records[1]):
        assert not replica.receive(old).new
    assert replica.version == 2 and same_bits(replica.state, before)


def test_a_gap_is_refused_and_the_missing_record_then_accepted(replica, records):
    replica.receive(records[0])
    with pytest.raises(ChainBroken, match="expected record 2, got 3"):
        replica.receive(records[2])
    assert replica.version == 1
    assert replica.receive(records[1]).new and replica.receive(records[2]).new


def test_a_record_of_another_history_is_refused(genesis, replica, records, rng):
    other = LearnerMachine(Run.of(genesis))
    forked = []
    for version in (1, 2):
        forked.append(other.propose(gradient(rng)).data)
        other.accept(version)
    replica.receive(records[0])
    with pytest.raises(ChainBroken, match="the log was rewritten"):
        replica.receive(forked[1])
    assert replica.receive(records[1]).new


def test_records_of_another_run_plan_or_configuration_are_refused(records, genesis):
    other_run = ReplicaMachine(Run.of(genesis_of(run="ff" * 16)))
    with pytest.raises(RunMismatch, match="belongs to run 00000000"):
        other_run.receive(records[0])
    other_seed = ReplicaMachine(Run.of(genesis_of(seed=4)))
    with pytest.raises(RunMismatch, match="configuration"):
        other_seed.receive(records[0])
    fewer = PlanLayout(tuple(TensorLayout(b.name, b.rows, b.columns, b.fan_in) for b in PLAN.blocks[:2]))
    with pytest.raises((PlanMismatch, MalformedRecord)):
        ReplicaMachine(Run.of(genesis_of(plan=fewer))).receive(records[0])


def test_a_record_from_before_a_takeover_is_refused(genesis, records, rng):
    replica = ReplicaMachine(Run.of(genesis))
    second = LearnerMachine(Run.of(genesis), epoch=2)
    replica.receive(second.propose(gradient(rng)).data)
    second.accept(1)
    stale = replace(decode_record(second.propose(gradient(rng)).data), epoch=1)
    with pytest.raises(ChainBroken, match="epoch 1 after epoch 2"):
        replica.receive(encode_record(stale))


def test_every_flipped_byte_is_refused_and_nothing_is_applied(replica, records):
    before = replica.state.clone()
    for position in range(len(records[0])):
        damaged = bytearray(records[0])
        damaged[position] ^= 0x40
        with pytest.raises(MalformedRecord):
            replica.receive(bytes(damaged))
    assert replica.version == 0 and same_bits(replica.state, before)
    assert replica.receive(records[0]).new


class OtherConstant(AdamW):
    """AdamW whose β₂ is another one than the record says, from its third step on."""

    steps = 0

    def step(self, plan, state, gradient, scalars):
        type(self).steps += 1
        if self.steps >= 3:
            scalars = scalars.copy()
            scalars[0, self.scalar_names.index("beta2")] = np.float32(0.998)
        return super().step(plan, state, gradient, scalars)


def test_a_changed_constant_is_named_by_version_and_tensor_and_never_served(genesis, records):
    OtherConstant.steps = 0
    replica = ReplicaMachine(replace(Run.of(genesis), optimizer=OtherConstant()))
    replica.receive(records[0])
    replica.receive(records[1])
    with pytest.raises(Diverged) as caught:
        replica.receive(records[2])
    assert caught.value.version == 3
    assert caught.value.tensors[0] == "a.lora_A"
    assert "version 3 diverged in a.lora_A" in str(caught.value)
    assert replica.version == 2
    with pytest.raises(Diverged):
        replica.receive(records[3])


def test_a_wrong_bit_in_one_moment_is_found_at_the_next_version(genesis, records):
    replica = ReplicaMachine(Run.of(genesis))
    replica.receive(records[0])
    bits = replica.state.slots["v"].view(torch.int32)
    bits[PLAN.offsets[1] + 5] ^= 1 << 12
    with pytest.raises(Diverged) as caught:
        replica.receive(records[1])
    assert caught.value.tensors == ("a.lora_B",)


def test_a_gradient_that_is_not_finite_changes_nothing(learner, rng):
    learner.propose(gradient(rng))
    learner.accept(1)
    before, digest, residual = learner.state.clone(), learner.digest, learner.residual.clone()
    bad = gradient(rng)
    bad[PLAN.offsets[2]] = float("nan")
    with pytest.raises(NonFinite, match=r"b\.lora_A"):
        learner.propose(bad)
    assert learner.version == 1 and learner.pending is None and learner.digest == digest
    assert same_bits(learner.state, before) and torch.equal(learner.residual, residual)


class FailingOptimizer(AdamW):
    failing = False

    def scalars(self, version, learning_rates=None):
        if type(self).failing:
            raise ValueError("no scalars")
        return super().scalars(version, learning_rates)


class FailingCompressor:
    """PowerSGD, whose encoder has a state, that fails or writes nonsense when it is told to."""

    failing = ""

    def __init__(self):
        self.inner = PowerSGD()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode(self, plan, state, gradient, budget):
        payload, state = self.inner.encode(plan, state, gradient, budget)
        if self.failing == "encode":
            raise ValueError("no payload")
        return {"size": payload + bytes(10**4), "decode": payload[:-1]}.get(self.failing, payload), state


@pytest.mark.parametrize("failure", ["two rates", "nan rate", "scalars", "encode", "size", "decode", "1e37"])
def test_a_step_that_fails_changes_nothing_and_the_next_is_as_if_it_had_not_been(failure, genesis, rng):
    run = Run.of(genesis_of(compressor=Setup("powersgd", PowerSGD().settings())))
    compressor = FailingCompressor()
    learner = LearnerMachine(replace(run, optimizer=FailingOptimizer(), compressor=compressor))
    untouched = LearnerMachine(run)
    steps = [gradient(rng) for _ in range(3)]
    for machine in (learner, untouched):
        machine.propose(steps[0])
        machine.accept(1)
    state, encoder = learner.state.clone(), [start.clone() for start in learner.encoder]
    residual, digest = learner.residual.clone(), learner.digest
    rates = {"two rates": (1e-3, 1e-3), "nan rate": (float("nan"),)}.get(failure)
    bad = steps[1].clone()
    if failure == "1e37":
        bad[3] = 1e37
    FailingOptimizer.failing, compressor.failing = failure == "scalars", failure
    try:
        with pytest.raises((ValueError, HiLoError)):
            learner.propose(bad, rates)
    finally:
        FailingOptimizer.failing, compressor.failing = False, ""
    assert learner.pending is None and learner.version == 1 and learner.digest == digest
    assert same_bits(learner.state, state) and torch.equal(learner.residual, residual)
    assert all(torch.equal(a, b) for a, b in zip(learner.encoder, encoder, strict=True))
    for version, step in enumerate(steps[1:], start=2):
        assert learner.propose(step).data == untouched.propose(step).data
        learner.accept(version)
        untouched.accept(version)
        assert torch.equal(learner.residual, untouched.residual)


@pytest.mark.parametrize(
    "settings",
    [
        {"decay": -0.1},
        {"decay": 1.5},
        {"decay": float("nan")},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"residual_cap": -1.0},
        {"residual_cap": float("nan")},
    ],
)
def test_settings_of_the_feedback_out_of_range_are_refused(settings, genesis):
    with pytest.raises(ConfigurationError, match="expected a"):
        LearnerMachine(Run.of(genesis), **settings)


def test_rates_for_another_number_of_groups_are_refused_before_the_first_step(genesis):
    with pytest.raises(ConfigurationError, match="one per group of the plan"):
        LearnerMachine(replace(Run.of(genesis), optimizer=AdamW(lr=(1e-3, 1e-4))))


def test_a_second_proposal_waits_for_the_first(learner, rng):
    learner.propose(gradient(rng))
    with pytest.raises(ConfigurationError, match="version 1 is proposed"):
        learner.propose(gradient(rng))
    with pytest.raises(ConfigurationError, match="not the pending proposal"):
        learner.accept(2)
    learner.accept(1)
    assert learner.propose(gradient(rng)).version == 2


def test_a_budget_below_the_smallest_payload_says_what_would_do(genesis):
    with pytest.raises(BudgetTooSmall, match=r"set a budget of (\d+) bytes or more") as caught:
        LearnerMachine(Run.of(genesis_of(budget=200)))
    enough = int(str(caught.value).split("set a budget of ")[1].split()[0])
    LearnerMachine(Run.of(genesis_of(budget=enough)))
    with pytest.raises(BudgetTooSmall):
        LearnerMachine(Run.of(genesis_of(budget=enough - 1)))


def test_two_runs_of_one_seed_have_one_digest_wherever_their_logs_are(rng):
    steps = [gradient(rng) for _ in range(3)]
    digests = []
    for run_id in ("11" * 16, "22" * 16):
        learner = LearnerMachine(Run.of(genesis_of(run=run_id)))
        for version, step in enumerate(steps, start=1):
            learner.propose(step.clone())
            learner.accept(version)
        digests.append(learner.digest)
    assert digests[0] == digests[1]
