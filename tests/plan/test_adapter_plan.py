"""The plan: order, fingerprint, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from hilosync.errors import ConfigurationError, PlanError, PlanMismatch
from hilosync.plan import AdapterPlan, Block, bind, write_adapter_directory


class TwoLayers(nn.Module):
    """Twelve numbered linears, so that natural order and alphabetical order differ."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width + 2 * (i % 2)) for i in range(12)])
        self.config = {"model_type": "toy"}


def adapted(width: int = 6, **options: object) -> PeftModel:
    config = LoraConfig(r=4, lora_alpha=8, target_modules=[f"layers.{i}" for i in range(12)], **options)
    return get_peft_model(TwoLayers(width), config)  # type: ignore[arg-type]


def test_blocks_are_in_natural_order_with_their_initial_width():
    plan = bind(adapted()).plan
    names = [block.name for block in plan.blocks]
    assert names[:5] == [
        "layers.0.lora_A",
        "layers.0.lora_B",
        "layers.1.lora_A",
        "layers.1.lora_B",
        "layers.2.lora_A",
    ]
    assert names[-1] == "layers.11.lora_B"
    assert (plan.blocks[0].rows, plan.blocks[0].columns, plan.blocks[0].fan_in) == (4, 6, 6)
    assert (plan.blocks[3].rows, plan.blocks[3].columns, plan.blocks[3].fan_in) == (8, 4, 0)
    assert plan.offsets[:3] == (0, 24, 48)
    assert plan.adapter_bytes == 2 * plan.size


def test_fingerprint_is_stable_and_sees_every_field():
    block = Block("a", 2, 3, fan_in=3)
    plan = AdapterPlan((block, Block("b", 3, 2)))
    assert plan.fingerprint.hex() == "807d4108e5f8f3cfc0638084bc7d9c20"
    others = [
        AdapterPlan((block,)),
        AdapterPlan((Block("b", 3, 2), block)),
        AdapterPlan((block, Block("c", 3, 2))),
        AdapterPlan((block, Block("b", 2, 3))),
        AdapterPlan((block, Block("b", 3, 2, group=1))),
        AdapterPlan((block, Block("b", 3, 2, fan_in=2))),
        AdapterPlan((block, Block("b", 3, 2)), bytes_per_element=4),
    ]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1


def test_views_share_memory_with_the_flat_buffer():
    plan = AdapterPlan((Block("a", 2, 3), Block("b", 1, 2)))
    flat = torch.arange(8.0)
    views = plan.views(flat)
    assert [tuple(view.shape) for view in views] == [(2, 3), (1, 2)]
    views[1][0, 1] = 70.0
    assert flat[7] == 70.0
    with pytest.raises(PlanError, match="8 elements"):
        plan.views(torch.zeros(9))


def test_a_plan_without_tensors_or_with_a_name_twice_is_refused():
    with pytest.raises(PlanError, match="no tensors"):
        AdapterPlan(())
    with pytest.raises(PlanError, match="one name: a"):
        AdapterPlan((Block("a", 1, 1), Block("a", 1, 1)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["layers.3"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
    ],
)
def test_what_engines_cannot_serve_is_refused_with_the_reason(options, reason):
    if "modules_to_save" in options:
        config = LoraConfig(r=2, target_modules=["layers.0"], modules_to_save=["layers.3"])
        model = get_peft_model(TwoLayers(), config)  # type: ignore[arg-type]
    else:
        model = adapted(**options)
    with pytest.raises(PlanError, match=reason):
        bind(model)


def test_two_active_adapters_are_refused():
    model = adapted()
    model.add_adapter("second", LoraConfig(r=4, target_modules=["layers.0"]))
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(PlanError, match="2 adapters are active"):
        bind(model)


def test_a_model_without_an_adapter_is_refused():
    with pytest.raises(PlanError, match="PeftModel"):
        bind(TwoLayers())


def test_a_trainable_tensor_outside_the_adapter_is_refused_by_name():
    model = adapted()
    model.base_model.model.layers[4].base_layer.bias.requires_grad_(True)
    with pytest.raises(PlanError, match=r"layers\.4\.base_layer\.bias is trainable"):
        bind(model)


def test_a_frozen_factor_is_refused_by_the_learner_and_served_by_a_worker():
    model = adapted()
    plan = bind(model).plan
    bind(model).parameters[0].requires_grad_(False)
    with pytest.raises(PlanError, match=r"layers\.0\.lora_A\.default\.weight is frozen"):
        bind(model)
    assert len(bind(model, expected=plan).parameters) == len(plan.blocks)


def test_an_initialization_that_changes_the_base_weights_is_refused():
    with pytest.raises(PlanError, match="changes the base weights"):
        bind(adapted(init_lora_weights="pissa"))


def test_another_plan_is_refused_and_a_differing_tensor_named():
    expected = bind(adapted(width=6)).plan
    with pytest.raises(PlanMismatch, match=r"layers\.0\.lora_A of 4 × 6"):
        bind(adapted(width=8), expected)
    fewer = AdapterPlan(expected.blocks[:-1])
    with pytest.raises(PlanMismatch, match=r"layers\.11\.lora_B"):
        bind(adapted(width=6), fewer)


def test_gradients_are_gathered_in_plan_order_and_missing_ones_are_zero():
    binding = bind(adapted())
    with pytest.raises(ConfigurationError, match="backward"):
        binding.gradients(torch.empty(binding.plan.size))
    binding.parameters[1].grad = torch.full_like(binding.parameters[1], 3.0)
    flat = binding.gradients(torch.full((binding.plan.size,), 9.0))
    start, end = binding.plan.offsets[1:3]
    assert (flat[start:end] == 3).all()
    assert flat[:start].eq(0).all() and flat[end:].eq(0).all()
    binding.clear_gradients()
    assert all(parameter.grad is None for parameter in binding.parameters)


def test_the_model_is_served_a_bf16_copy_of_the_masters(rng):
    binding = bind(adapted())
    masters = torch.from_numpy(rng.standard_normal(binding.plan.size)).float()
    before = masters.clone()
    binding.serve(masters)
    assert torch.equal(binding.read(), masters.to(torch.bfloat16).float())
    assert torch.equal(masters, before)


def test_an_adapter_is_restartable_only_while_it_does_nothing():
    model = adapted()
    assert bind(model).restartable
    with torch.no_grad():
        bind(model).parameters[1][0, 0] = 1e-3
    assert not bind(model).restartable
    assert not bind(adapted(init_lora_weights="gaussian")).restartable


def test_the_adapter_directory_is_one_that_peft_loads(tmp_path, rng):
    binding = bind(adapted())
    masters = torch.from_numpy(rng.standard_normal(binding.plan.size)).float()
    folder = write_adapter_directory(tmp_path / "v1", binding.plan, masters, binding.peft_config, {"hilo_version": "1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1"]
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    loaded = PeftModel.from_pretrained(TwoLayers(), folder, is_trainable=True)  # type: ignore[arg-type]
    assert torch.equal(bind(loaded, binding.plan).read(), masters.to(torch.bfloat16).float())
    with pytest.raises(ConfigurationError, match="exists already"):
        write_adapter_directory(tmp_path / "v1", binding.plan, masters, binding.peft_config, {})
