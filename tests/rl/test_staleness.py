"""Rollouts of an earlier policy: what is admitted, and what they weigh."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import msgspec
import pytest
import torch

from hilosync.errors import MalformedRollouts
from hilosync.log import Delivery, Order
from hilosync.rl.loop import Admission
from hilosync.rl.objectives import OnPolicyDistillation
from hilosync.rl.objectives.importance import WEIGHT_LIMIT, prefix_weights
from hilosync.rl.rollouts import RolloutEngine, RolloutSettings
from hilosync.rl.training import Trainer

SETTINGS = RolloutSettings(seed=3, prompts=3, samples=2)


@pytest.fixture
def engine(student, tokenizer, task):
    return RolloutEngine(student, tokenizer, task, SETTINGS)


@pytest.fixture
def trainer(student, teacher, tokenizer, task):
    return Trainer(student, tokenizer, task, SETTINGS, OnPolicyDistillation(), teacher)


def move(student, by: float) -> None:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.requires_grad:
                parameter.add_(by * torch.randn_like(parameter))


def test_a_prefix_weighs_the_product_of_its_tokens_ratios_up_to_the_limit():
    ratios = torch.tensor([[1.5, 1.2, 2.0, 0.1], [0.5, 0.5, 8.0, 1.0]])
    expected = torch.tensor([[1.0, 1.5, 1.8, WEIGHT_LIMIT], [1.0, 0.5, 0.25, WEIGHT_LIMIT]])
    torch.testing.assert_close(prefix_weights(ratios.log()), expected)


def test_the_weights_give_the_mean_under_the_current_policy():
    """Over all continuations of two tokens: Σ β(y)·Σ_t w_t·f_t(y_<t) = Σ π(y)·Σ_t f_t(y_<t)."""
    torch.manual_seed(0)
    new, old = (torch.softmax(0.3 * torch.randn(4, 4), dim=-1) for _ in range(2))
    losses = torch.rand(4, 4)
    corrected = exact = 0.0
    for first, second in itertools.product(range(4), range(4)):
        path = [(0, first), (first, second)]
        ratios = torch.stack([(new[state, token] / old[state, token]).log() for state, token in path])
        value = torch.stack([losses[0, 0], losses[1, first]])
        weights = prefix_weights(ratios[None], limit=1e9)[0]
        corrected += old[0, first] * old[first, second] * (weights * value).sum()
        exact += new[0, first] * new[first, second] * value.sum()
    torch.testing.assert_close(corrected, exact)


def test_fresh_rollouts_weigh_one_and_stale_ones_their_ratio(trainer, engine, student):
    batches = [engine.generate(4, 0), engine.generate(5, 0)]
    fresh = trainer.backward(batches[1:], version=5)
    assert (fresh.staleness_mean, fresh.staleness_max, fresh.ratio_mean) == (0.0, 0, 1.0)
    same = trainer.backward(batches, version=5)
    assert (same.staleness_mean, same.staleness_max) == (0.5, 1)
    assert same.ratio_mean == pytest.approx(1.0, abs=1e-4), "the policy has not moved"
    move(student, 0.05)
    moved = trainer.backward(batches, version=5)
    assert abs(moved.ratio_mean - 1.0) > 1e-3


def test_the_temperature_is_not_mistaken_for_staleness(student, teacher, tokenizer, task):
    settings = RolloutSettings(seed=3, prompts=3, samples=2, temperature=0.6)
    batch = RolloutEngine(student, tokenizer, task, settings).generate(4, 0)
    trainer = Trainer(student, tokenizer, task, settings, OnPolicyDistillation(), teacher)
    assert trainer.backward([batch], version=5).ratio_mean == pytest.approx(1.0, abs=1e-4)


def test_a_stale_loss_is_weighted_and_a_fresh_one_is_not(trainer, engine, student):
    batch = engine.generate(4, 0)
    move(student, 0.05)
    fresh, stale = (trainer.backward([batch], version=version).loss for version in (4, 5))
    assert stale != pytest.approx(fresh, rel=1e-3)


def learner_at(version: int) -> SimpleNamespace:
    return SimpleNamespace(version=version, digest=f"digest {version}".encode())


def test_rollouts_of_the_last_versions_are_admitted_with_the_digest_of_the_version_that_was_served(trainer, engine):
    learner = learner_at(4)
    admission = Admission(trainer, learner, 1)
    admission.note()
    batch = engine.generate(4, 0, worker="w", state_digest=b"digest 4")
    learner.version, learner.digest = 5, b"digest 5"
    admission.note()
    assert admission(Delivery("w", Order(4, 0), batch.encode())) == batch
    newer = msgspec.structs.replace(batch, policy_version=5, state_digest=b"digest 5")
    assert admission(Delivery("w", Order(4, 0), newer.encode())) == newer
    learner.version, learner.digest = 6, b"digest 6"
    admission.note()
    with pytest.raises(MalformedRollouts, match="expected a version from 5 to 6"):
        admission(Delivery("w", Order(4, 0), batch.encode()))


@pytest.mark.parametrize(
    ("change", "order", "message"),
    [
        ({"policy_version": 5, "state_digest": b"digest 4"}, Order(4, 0), "with digest"),
        ({"policy_version": 6}, Order(4, 0), "served version 6"),
        ({"policy_version": 3}, Order(4, 0), "served version 3"),
        ({}, Order(5, 0), "it was asked for"),
        ({}, Order(4, 1), "it was asked for"),
    ],
)
def test_rollouts_of_another_policy_or_order_are_refused(trainer, engine, change, order, message):
    learner = learner_at(4)
    admission = Admission(trainer, learner, 1)
    admission.note()
    learner.version, learner.digest = 5, b"digest 5"
    admission.note()
    batch = msgspec.structs.replace(engine.generate(4, 0, worker="w", state_digest=b"digest 4"), **change)
    with pytest.raises(MalformedRollouts, match=message):
        admission(Delivery("w", order, batch.encode()))


def test_a_learner_that_was_started_again_knows_earlier_digests_from_its_log(trainer, engine):
    batch = engine.generate(4, 0, worker="w", state_digest=b"digest 4")
    content = Delivery("w", Order(4, 0), batch.encode())
    knowing = Admission(trainer, learner_at(5), 1, {4: b"digest 4"})
    knowing.note()
    assert knowing(content) == batch
    ignorant = Admission(trainer, learner_at(5), 1)
    ignorant.note()
    with pytest.raises(MalformedRollouts, match="digest of version 4 is not known"):
        ignorant(content)
