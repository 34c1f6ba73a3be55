"""An encoder's state outlives its process: what a learner's checkpoint holds."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from hilosync.compress import get_compressor
from hilosync.errors import ConfigurationError
from hilosync.plan import AdapterPlan

COMPRESSORS = {
    "dense": ("dense", None),
    "powersgd": ("powersgd", None),
    "spar": ("spar", None),
    "spar_rd": ("spar_rd", None),
    "topk": ("topk", None),
    "warmup": ("warmup", {"compressor": "powersgd", "settings": {"budget": None}, "steps": 2}),
}


def gradients(plan, gradient, count):
    """A gradient that drifts, so that encoders have something to carry over."""
    generator = torch.Generator().manual_seed(11)
    noise = torch.randn(count, plan.size, generator=generator) * gradient.std()
    return [gradient + 0.2 * noise[: index + 1].sum(dim=0) for index in range(count)]


@pytest.mark.parametrize("case", COMPRESSORS)
def test_a_saved_and_restored_encoder_goes_on_with_the_same_payload_bytes(case, plan, gradient):
    name, settings = COMPRESSORS[case]
    compressor = get_compressor(name, settings)
    budget = max(2 * plan.one_rank_bytes(), compressor.smallest_payload(plan))
    steps = gradients(plan, gradient, 6)
    state = compressor.init(plan)
    for step in steps[:3]:
        _, state = compressor.encode(plan, state, step, budget)
    restored = get_compressor(name, settings).load_state(plan, load(save(compressor.save_state(state))))
    for step in steps[3:]:
        payload, state = compressor.encode(plan, state, step, budget)
        again, restored = compressor.encode(plan, restored, step, budget)
        assert again == payload


@pytest.mark.parametrize("case", COMPRESSORS)
def test_the_state_before_the_first_step_can_be_saved(case, plan, gradient):
    name, settings = COMPRESSORS[case]
    compressor = get_compressor(name, settings)
    restored = compressor.load_state(plan, load(save(compressor.save_state(compressor.init(plan)))))
    budget = max(2 * plan.one_rank_bytes(), compressor.smallest_payload(plan))
    first, _ = compressor.encode(plan, compressor.init(plan), gradient, budget)
    assert compressor.encode(plan, restored, gradient, budget)[0] == first


@pytest.mark.parametrize("case", COMPRESSORS)
def test_a_state_that_does_not_fit_is_refused(case, plan, gradient):
    name, settings = COMPRESSORS[case]
    compressor = get_compressor(name, settings)
    budget = max(2 * plan.one_rank_bytes(), compressor.smallest_payload(plan))
    saved = compressor.save_state(compressor.encode(plan, compressor.init(plan), gradient, budget)[1])
    with pytest.raises(ConfigurationError, match="'nosuch'"):
        compressor.load_state(plan, saved | {"nosuch": torch.zeros(1)})
    for key, tensor in saved.items():
        with pytest.raises(ConfigurationError, match=key.removeprefix("inner.")):
            compressor.load_state(plan, {other: saved[other] for other in saved if other != key})
        for wrong in (tensor[None], tensor.int(), torch.full_like(tensor, float("nan"))):
            if wrong.numel():
                with pytest.raises(ConfigurationError, match=key.removeprefix("inner.")):
                    compressor.load_state(plan, saved | {key: wrong})


def test_the_starts_of_another_plan_are_refused(plan, gradient):
    compressor = get_compressor("powersgd")
    _, state = compressor.encode(plan, compressor.init(plan), gradient, plan.one_rank_bytes())
    turned = AdapterPlan(plan.blocks[::-1])
    with pytest.raises(ConfigurationError, match="start"):
        compressor.load_state(turned, compressor.save_state(state))
