import pytest

from hilosync.bench.shapes import adapter_plan
from hilosync.errors import UnknownName


@pytest.mark.parametrize(
    ("model", "parameters", "megabytes"), [("qwen3-1.7b", 69_730_304, 139.46), ("qwen3-0.6b", 40_370_176, 80.74)]
)
def test_the_plans_have_the_size_of_the_published_adapters(model, parameters, megabytes):
    plan = adapter_plan(model, rank=64)
    assert len(plan.blocks) == 392
    assert plan.size == parameters
    assert plan.adapter_bytes / 1e6 == pytest.approx(megabytes, abs=0.005)


def test_an_unknown_model_is_named():
    with pytest.raises(UnknownName, match=r"qwen3-1\.7b"):
        adapter_plan("gpt-2")
