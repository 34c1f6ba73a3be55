"""Error feedback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hilosync.arithmetic.gradient import DenseBlock, LowRankBlock
from hilosync.compress import accumulate, default_decay, get_compressor, project_out, retain
from hilosync.compress.feedback import reference_residual
from hilosync.errors import NonFinite

NAMES = ["dense", "powersgd", "spar", "spar_rd", "topk", "warmup"]


def some_decoded(plan, seed=0):
    generator = torch.Generator().manual_seed(seed)
    decoded, dense = [], []
    for index, block in enumerate(plan.blocks):
        if index % 3 == 2:
            values = torch.randn(block.rows, block.columns, generator=generator)
            decoded.append(DenseBlock(values))
        else:
            left = torch.randn(block.rows, index % 4, generator=generator)
            right = torch.randn(index % 4, block.columns, generator=generator)
            decoded.append(LowRankBlock(left, right, 0.5))
            values = 0.5 * (left @ right)
        dense.append(values.flatten())
    return tuple(decoded), torch.cat(dense)


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_the_residual_agrees_with_the_equation(plan, gradient, decay):
    decoded, dense = some_decoded(plan)
    before = torch.randn(plan.size, generator=torch.Generator().manual_seed(3))
    residual = before.clone()
    sent = accumulate(plan, gradient, residual)
    left = retain(plan, residual, decoded, decay)
    torch.testing.assert_close(residual, reference_residual(gradient, before, dense, decay), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(sent.sum(), gradient.square().sum().item(), rtol=1e-5)
    np.testing.assert_allclose(left.sum(), residual.square().sum().item(), rtol=1e-5)


def test_clipping_bounds_the_gradient_and_not_the_residual(plan, gradient):
    before = torch.randn(plan.size, generator=torch.Generator().manual_seed(3))
    residual = before.clone()
    energies = accumulate(plan, gradient, residual, clip=0.25)
    norm = float(np.sqrt(energies.sum()))
    assert norm > 0.25
    torch.testing.assert_close(residual, before + gradient * (0.25 / norm))


def test_a_cap_bounds_the_norm_of_what_is_kept(plan, gradient):
    decoded, _ = some_decoded(plan)
    residual = gradient.clone()
    energies = retain(plan, residual, decoded, cap=0.1)
    assert torch.linalg.vector_norm(residual).item() == pytest.approx(0.1, rel=1e-4)
    assert energies.sum() == pytest.approx(0.01, rel=1e-4)


def test_a_gradient_that_is_not_finite_leaves_the_residual_unchanged(plan, gradient):
    spoiled = gradient.clone()
    spoiled[plan.offsets[2]] = float("nan")
    residual = torch.ones(plan.size)
    with pytest.raises(NonFinite, match=plan.blocks[2].name):
        accumulate(plan, spoiled, residual)
    assert torch.equal(residual, torch.ones(plan.size))


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_no_record_may_carry_never_enters_the_residual(name, plan, gradient):
    settings = {"compressor": "spar", "settings": {"budget": None}, "steps": 1} if name == "warmup" else None
    compressor = get_compressor(name, settings)
    residual = torch.full((plan.size,), 0.5)
    before = residual.clone()
    spoiled = gradient.clone()
    spoiled[3] = 1e37
    for clip in (None, 1.0):
        with pytest.raises(NonFinite, match=rf"{plan.blocks[0].name} holds a value beyond"):
            accumulate(plan, spoiled, residual, clip)
        assert torch.equal(residual, before)
    accumulate(plan, gradient, residual)
    payload, _ = compressor.encode(plan, compressor.init(plan), residual, 10**6)
    retain(plan, residual, compressor.decode(plan, payload))
    assert torch.isfinite(residual).all()


def test_a_sum_beyond_the_limit_is_refused_before_the_residual_changes(plan):
    residual = torch.zeros(plan.size)
    residual[-1] = 0.75 * 2.0**120
    before = residual.clone()
    with pytest.raises(NonFinite, match=f"the sum of gradient and residual of {plan.blocks[-1].name}"):
        accumulate(plan, residual.clone(), residual)
    assert torch.equal(residual, before)
    accumulate(plan, -before, residual)
    assert not residual.any()


def test_another_buffer_takes_the_sum_when_the_residual_must_survive(plan, gradient):
    residual = torch.ones(plan.size)
    out = torch.zeros(plan.size)
    accumulate(plan, gradient, residual, out=out)
    assert torch.equal(residual, torch.ones(plan.size)) and torch.equal(out, 1 + gradient)


def test_energies_of_tiny_and_huge_gradients_do_not_vanish_or_overflow(plan, gradient):
    expected = gradient[: plan.offsets[1]].double().square().sum().item()
    for scale in (1e-30, 1e30):
        energies = accumulate(plan, gradient * scale, torch.zeros(plan.size))
        assert energies[0] == pytest.approx(expected * scale**2, rel=1e-3)


def test_default_decay_keeps_everything_for_adamw_and_fades_for_others():
    assert default_decay("adamw") == 1.0
    assert default_decay("sgdm") == default_decay("lion") == default_decay("muon") == 0.95
    assert default_decay("anything else") == 0.95


def test_of_a_step_whose_gradient_is_lost_only_what_it_shipped_leaves_the_residual(plan):
    generator = torch.Generator().manual_seed(9)
    before = torch.randn(plan.size, generator=generator)
    decoded = []
    for index, block in enumerate(plan.blocks):
        if index % 3 == 2:
            values = torch.randn(block.rows, block.columns, generator=generator)
            decoded.append(DenseBlock(values.masked_fill_(values < 0, 0.0)))
            continue
        left = torch.randn(block.rows, index % 4, generator=generator)
        if left.shape[1] > 1:
            left[:, 1] = -2 * left[:, 0]  # one direction twice
        decoded.append(LowRankBlock(left, torch.randn(index % 4, block.columns, generator=generator)))
    after = before.clone()
    project_out(plan, after, tuple(decoded), decay=0.5)
    for old, new, block in zip(plan.views(before), plan.views(after), decoded, strict=True):
        if isinstance(block, DenseBlock):
            torch.testing.assert_close(new, torch.where(block.values != 0, 0.0, 0.5 * old))
            continue
        # As the equation reads: the least-squares fit of E within the span of the left factor is gone.
        fit = block.left @ torch.linalg.pinv(block.left, rtol=1e-5) @ old
        torch.testing.assert_close(new, 0.5 * (old - fit), atol=1e-5, rtol=1e-4)
        assert (block.left.T @ new).abs().sum() <= 1e-3


def test_a_payload_that_shipped_the_whole_residual_leaves_nothing_of_it(plan, gradient):
    residual = gradient.clone()
    dense = get_compressor("dense")
    payload, _ = dense.encode(plan, dense.init(plan), gradient, dense.smallest_payload(plan))
    project_out(plan, residual, dense.decode(plan, payload))
    assert torch.linalg.vector_norm(residual) <= 1e-6 * torch.linalg.vector_norm(gradient)
