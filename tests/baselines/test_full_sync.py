"""Full synchronization: the whole adapter through the same log, wire and digests."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import hilosync as hilo
from hilosync.baselines import begin_learner
from hilosync.errors import UnknownName
from hilosync.plan import bind


def model() -> nn.Module:
    torch.manual_seed(2)
    return get_peft_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), LoraConfig(r=4, target_modules=["0", "1"]))


def begin(target, log: str, sync: str = "full", **options) -> hilo.Learner:
    return begin_learner(
        target, sync=sync, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Dense(), log=log, seed=4, **options
    )


def backward(target, scale: float = 1.0) -> None:
    (scale * (target(torch.ones(3, 8)) - 1.0).square().sum()).backward()


def test_a_replica_holds_the_bf16_adapter_of_an_exact_step():
    target = model()
    learner = begin(target, "memory:full-sync-exact")
    replica = hilo.Replica.join("memory:full-sync-exact")
    masters = torch.nn.Parameter(learner.params)
    reference = torch.optim.AdamW([masters], lr=1e-2, weight_decay=0.0, foreach=False)
    for version in range(1, 7):
        backward(target)
        masters.grad = torch.cat([p.grad.reshape(-1) for p in bind(target).parameters])
        reference.step()
        report = learner.step()
        assert replica.advance() == version and replica.digest == learner.digest
        assert report.record_bytes >= learner.plan.adapter_bytes
        torch.testing.assert_close(replica.params, masters.detach(), rtol=2**-8, atol=1e-6)
        assert torch.equal(replica.params, replica.params.to(torch.bfloat16).float())
        assert torch.equal(bind(target).read(), replica.params)
    torch.testing.assert_close(learner._own_state.params, masters.detach(), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_clipped_to_its_norm():
    twins = [model(), model()]
    learners = [begin(twin, f"memory:full-sync-clip-{i}", max_grad_norm=0.5) for i, twin in enumerate(twins)]
    for twin, learner, scale in zip(twins, learners, (1.0, 1000.0), strict=True):
        backward(twin, scale)
        learner.step()
    torch.testing.assert_close(
        learners[0]._own_state.slots["m"], learners[1]._own_state.slots["m"], rtol=1e-4, atol=1e-8
    )
    assert float(learners[0]._own_state.slots["m"].norm()) == pytest.approx(0.05, rel=1e-4)


def test_an_unknown_way_to_synchronize_is_named():
    with pytest.raises(UnknownName, match="hilo"):
        begin(model(), "memory:full-sync-unknown", sync="half")
