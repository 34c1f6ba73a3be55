import pytest

from hilosync.bench import replay
from hilosync.errors import UnknownName
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


def test_an_unknown_optimizer_is_named():
    with pytest.raises(UnknownName, match="adamw"):
        replay.run_replay(optimizer="adagrad")
