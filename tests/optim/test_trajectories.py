"""200 steps against the optimizers that people know, within float tolerance."""

import pytest
import torch
from lion_pytorch import Lion as ReferenceLion

from hilosync.arithmetic import DenseBlock
from hilosync.optim import SGDM, AdamW, Lion, Muon, init_state
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan((Block("a", 8, 24), Block("b", 40, 8)))
CASES = {
    "adamw": (
        AdamW(lr=3e-3, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1),
    ),
    "lion": (Lion(lr=1e-3, weight_decay=0.1), lambda p: ReferenceLion(p, lr=1e-3, weight_decay=0.1)),
    "sgdm": (SGDM(lr=1e-2), lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)),
    "sgdm, nesterov": (
        SGDM(lr=1e-2, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    ),
    "muon": (Muon(lr=1e-3, weight_decay=0.1), lambda p: torch.optim.Muon(p, lr=1e-3, weight_decay=0.1)),
    "muon, scaled as AdamW": (
        Muon(lr=1e-3, scaling="match_rms_adamw"),
        lambda p: torch.optim.Muon(p, lr=1e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_hundred_steps_agree_with_the_known_optimizer(case):
    optimizer, reference = CASES[case]
    generator = torch.Generator().manual_seed(3)
    state = init_state(PLAN, optimizer, torch.randn(PLAN.size, generator=generator))
    targets = [torch.randn(b.rows, b.columns, generator=generator) for b in PLAN.blocks]
    params = [torch.nn.Parameter(view.clone()) for view in PLAN.views(state.params)]
    known = reference(params)
    start = [param.detach().clone() for param in params]
    for version in range(1, 201):
        noise = [0.3 * torch.randn(b.rows, b.columns, generator=generator) for b in PLAN.blocks]
        # Both see the same gradients, at the reference's parameters, so that errors cannot feed back.
        gradients = [p.detach() - t + n for p, t, n in zip(params, targets, noise, strict=True)]
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        known.step()
        optimizer.step(PLAN, state, tuple(DenseBlock(g) for g in gradients), optimizer.scalars(version))
    # torch's Muon iterates in bf16, whose error is about one part in ten of each step.
    tolerance = 5e-2 if optimizer.name == "muon" else 2e-5
    for param, view, before in zip(params, PLAN.views(state.params), start, strict=True):
        moved = (param.detach() - before).norm()
        assert moved > 1e-2
        assert (param.detach() - view).norm() < tolerance * moved
