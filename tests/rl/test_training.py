from __future__ import annotations

import pytest
import torch

from hilosync.errors import ConfigurationError, MalformedRollouts, UnknownName
from hilosync.rl import training
from hilosync.rl.objectives import OnPolicyDistillation, Scored, open_objective
from hilosync.rl.rollouts import RolloutEngine, RolloutSettings
from hilosync.rl.training import Trainer

SETTINGS = RolloutSettings(seed=3, prompts=3, samples=2)


@pytest.fixture
def trainer(student, teacher, tokenizer, task):
    return Trainer(student, tokenizer, task, SETTINGS, OnPolicyDistillation(), teacher)


@pytest.fixture
def batches(student, tokenizer, task):
    engine = RolloutEngine(student, tokenizer, task, SETTINGS)
    return [engine.generate(4, batch) for batch in (0, 1)]


def gradient(student) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in student.parameters() if p.requires_grad])


def test_reverse_kl_is_the_sum_written_out():
    torch.manual_seed(0)
    logits, teacher_logits = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    scored = Scored(
        tokens=torch.zeros(2, 3, dtype=torch.int64),
        mask=torch.ones(2, 3, dtype=torch.bool),
        logits=logits,
        teacher_logits=teacher_logits,
        behaviour_log_probs=torch.zeros(2, 3),
        log_ratios=torch.zeros(2, 3),
        advantages=torch.zeros(2),
    )
    found = OnPolicyDistillation().token_losses(scored)
    for row in range(2):
        for column in range(3):
            student = torch.distributions.Categorical(logits=logits[row, column])
            teacher = torch.distributions.Categorical(logits=teacher_logits[row, column])
            expected = torch.distributions.kl_divergence(student, teacher)
            torch.testing.assert_close(found[row, column], expected)


def test_the_loss_is_the_mean_over_generated_tokens(trainer, student, teacher, tokenizer, task, batches):
    report = trainer.backward(batches)
    losses = []
    for batch in batches:
        for row, completion in enumerate(batch.completions()):
            prompt = tokenizer.encode(task.prompt(batch.prompts[row // SETTINGS.samples]))
            ids = torch.tensor([prompt + completion])
            with torch.no_grad():
                p, q = (
                    torch.distributions.Categorical(logits=m(input_ids=ids).logits[0, len(prompt) - 1 : -1])
                    for m in (student, teacher)
                )
            losses.append(torch.distributions.kl_divergence(p, q))
    assert report.loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)
    assert report.tokens == len(torch.cat(losses))
    assert (report.completions, report.staleness_max, report.ratio_mean) == (12, 0, 1.0)


def test_the_gradient_does_not_depend_on_who_delivered_first(trainer, student, batches):
    trainer.backward(batches)
    first = gradient(student)
    trainer.backward(batches[::-1])
    assert torch.equal(gradient(student), first)
    assert first.abs().max() > 0


def test_rows_in_groups_give_the_same_gradient(trainer, student, batches, monkeypatch):
    whole = trainer.backward(batches)
    expected = gradient(student)
    monkeypatch.setattr(training, "_LOGITS_AT_ONCE", 3000)
    parts = trainer.backward(batches)
    torch.testing.assert_close(gradient(student), expected, rtol=1e-3, atol=1e-6)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_only_the_adapter_receives_a_gradient(trainer, student, teacher, batches):
    trainer.backward(batches)
    with_gradient = {name for name, p in student.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, _ in student.named_parameters() if "lora_" in name}
    assert all(p.grad is None for p in teacher.parameters())


def test_a_few_steps_bring_the_student_closer_to_the_teacher(trainer, student, tokenizer, task):
    engine = RolloutEngine(student, tokenizer, task, SETTINGS)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for version in range(12):
        losses.append(trainer.backward([engine.generate(version, 0)]).loss)
        optimizer.step()
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_staleness_counts_from_the_oldest_rollouts(trainer, batches):
    assert trainer.backward(batches, version=6).staleness_max == 2


def test_a_batch_counts_once(trainer, batches):
    for wrong in ([], [batches[0], batches[0]]):
        with pytest.raises(MalformedRollouts):
            trainer.backward(wrong)


def test_a_delivery_is_checked_before_it_is_trained_on(trainer, batches):
    assert trainer.accept(batches[0].encode()) == batches[0]
    with pytest.raises(MalformedRollouts):
        trainer.accept(batches[0].encode()[:-3])


def test_a_teacher_that_does_not_fit_is_refused(student, tokenizer, task, teacher):
    with pytest.raises(ConfigurationError, match="needs a teacher"):
        Trainer(student, tokenizer, task, SETTINGS, open_objective("opd"))
    with pytest.raises(UnknownName, match="objective"):
        open_objective("ppo")
