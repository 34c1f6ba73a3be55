"""Generating with the adapter in the weights: the same policy, the same base weights afterwards."""

from __future__ import annotations

import copy

import pytest
import torch

from hilosync.rl.merging import merged
from hilosync.rl.policy import attach_adapter
from hilosync.rl.prefix import shared_prompt_logits
from hilosync.rl.rollouts import RolloutEngine, RolloutSettings
from hilosync.rl.tokens import TokenBatch, completion_logits

PROMPTS = [[3, 14, 4, 9], [3, 14, 4, 15, 13, 20, 5], [3, 19, 6]]


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor(PROMPTS[1:2])).logits


def test_a_merged_policy_is_pefts_policy(student):
    expected = logits_of(student)
    with student.disable_adapter():
        assert (logits_of(student) - expected).abs().max() > 0.1, "the adapter should matter for this test"
    torch.testing.assert_close(logits_of(merged(student)), expected, atol=2e-5, rtol=1e-5)


def test_merging_runs_no_lora_layer_and_shares_what_has_no_adapter(student):
    twin = merged(student)
    assert not any("lora" in name for name, _ in twin.named_modules())
    assert twin.get_input_embeddings().weight is student.get_base_model().get_input_embeddings().weight
    assert twin.device == student.device and not twin.training


def test_merging_many_versions_leaves_no_trace_of_the_earlier_ones(student):
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    first = logits_of(merged(student))
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    kept = [parameter.detach().clone() for parameter in parameters]
    for _ in range(20):
        with torch.no_grad():
            for parameter in parameters:
                parameter.normal_()
        assert not torch.equal(logits_of(merged(student)), first)
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    assert torch.equal(logits_of(merged(student)), first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())


def test_weights_that_would_lose_small_updates_are_not_merged(model):
    coarse = attach_adapter(copy.deepcopy(model).to(torch.bfloat16), rank=4, alpha=4)
    assert merged(coarse) is coarse
    assert merged(model) is model


def test_the_engine_generates_with_the_adapter_as_it_is_now(student, tokenizer, task):
    engine = RolloutEngine(student, tokenizer, task, RolloutSettings(seed=3, prompts=4, samples=2))
    before = engine.generate(0, 0)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "lora_B" in name:
                parameter.mul_(3.0)
    assert engine.generate(0, 0).log_probs != before.log_probs


@pytest.mark.parametrize("length", [1, 4])
def test_prompts_read_once_give_the_logits_and_the_gradient_of_whole_rows(student, length):
    completions = [[20, 26, 15, 1], [20, 26], [20], [15, 26, 20], [26], [20, 15, 1]]
    batch = TokenBatch.join(
        [prompt for prompt in PROMPTS for _ in range(2)], [completion[:length] for completion in completions], 0
    )
    found = []
    for logits in (completion_logits(student, batch), shared_prompt_logits(student, batch, 2)):
        student.zero_grad(set_to_none=True)
        logits[batch.mask].log_softmax(-1).square().sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in student.parameters() if p.requires_grad])
        found.append((logits.detach()[batch.mask], gradient))
    (expected, slow), (fast, quick) = found
    torch.testing.assert_close(fast, expected, atol=2e-5, rtol=1e-5)
    assert (quick - slow).norm() < 1e-4 * slow.norm()
