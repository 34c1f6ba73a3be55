import pytest

from hilosync.bench import replay
from hilosync.errors import ConfigurationError, UnknownName
from hilosync.plan import AdapterPlan, Block

KEYS = {
    "params",
    "floor_ms",
    "replay_ms",
    "ratio_to_floor",
    "torch_fused_ms",
    "torch_foreach_ms",
    "torch_muon_ms",
    "digest_overhead",
    "peak_extra_mb",
}


@pytest.mark.parametrize("optimizer", replay.OPTIMIZERS)
def test_every_optimizer_is_timed_against_its_floor(monkeypatch, optimizer):
    small = AdapterPlan((Block("a", 8, 40), Block("b", 70, 8)))
    monkeypatch.setattr(replay, "adapter_plan", lambda model, rank: small)
    lines: list[str] = []
    result = replay.run_replay(optimizer=optimizer, repeats=2, ranks_per_block=2, progress=lines.append)
    assert set(result) >= KEYS
    assert result["params"] == small.size
    assert result["floor_ms"] > 0 and result["replay_ms"] > 0
    assert (result["torch_muon_ms"] is not None) == (optimizer == "muon")
    assert (result["torch_fused_ms"] is not None) == (optimizer in ("adamw", "sgdm"))
    assert lines


def test_two_threads_are_compared_with_one(monkeypatch):
    small = AdapterPlan((Block("a", 8, 40), Block("b", 70, 8)))
    monkeypatch.setattr(replay, "adapter_plan", lambda model, rank: small)
    result = replay.run_replay(threads=2, repeats=2)
    assert result["speedup"] > 0 and result["floor_speedup"] > 0


def test_muon_of_torch_is_timed_on_one_layer_of_equal_layers(monkeypatch):
    layer = ((8, 40), (70, 8))
    equal = AdapterPlan(tuple(Block(f"{n}.{shape}", *shape) for n in range(3) for shape in layer))
    monkeypatch.setattr(replay, "adapter_plan", lambda model, rank: equal)
    assert replay.run_replay(optimizer="muon", repeats=1)["torch_muon_blocks"] == 2
    unequal = AdapterPlan((*equal.blocks, Block("last", 8, 8)))
    monkeypatch.setattr(replay, "adapter_plan", lambda model, rank: unequal)
    assert replay.run_replay(optimizer="muon", repeats=1)["torch_muon_blocks"] == 7


def test_an_unknown_optimizer_is_named():
    with pytest.raises(UnknownName, match="adamw"):
        replay.run_replay(optimizer="adagrad")


def test_more_ranks_than_the_adapter_has_are_refused():
    with pytest.raises(ConfigurationError, match="at most 64 ranks per block, those of LoRA rank 64, got 65"):
        replay.run_replay(ranks_per_block=65)
