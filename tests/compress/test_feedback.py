"""Error feedback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hilosync.arithmetic.gradient import DenseBlock, LowRankBlock
from hilosync.compress import Warmup, correct, default_decay, encode_corrected, get_compressor, project_out, retain
from hilosync.compress.feedback import reference_residual
from hilosync.errors import NonFinite


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


def some_residual(plan, seed=3):
    return torch.randn(plan.size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
def test_the_residual_agrees_with_the_equation(plan, gradient, decay):
    decoded, dense = some_decoded(plan)
    before = some_residual(plan)
    residual = before.clone()
    sent, left = retain(plan, correct(plan, gradient, residual), decoded, decay)
    torch.testing.assert_close(residual, reference_residual(gradient, before, dense, decay), atol=1e-5, rtol=1e-5)
    for view, energy in zip(plan.views(gradient), sent, strict=True):
        assert energy == pytest.approx(view.square().sum().item(), rel=1e-5)
    for view, energy in zip(plan.views(residual), left, strict=True):
        assert energy == pytest.approx(view.square().sum().item(), rel=1e-5)


def test_clipping_bounds_the_gradient_and_not_the_residual(plan, gradient):
    before = some_residual(plan)
    norm = gradient.norm().item()
    clipped = correct(plan, gradient, before, clip=0.25)
    torch.testing.assert_close(clipped.stored(), before + gradient * (0.25 / norm))
    decoded, dense = some_decoded(plan)
    residual = before.clone()
    retain(plan, correct(plan, gradient, residual, clip=0.25), decoded, 0.9)
    expected = reference_residual(gradient * (0.25 / norm), before, dense, 0.9)
    torch.testing.assert_close(residual, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(correct(plan, gradient, before, clip=2 * norm).stored(), before + gradient)
    assert torch.equal(correct(plan, torch.zeros_like(gradient), before, clip=0.25).stored(), before)


def nothing_decoded(plan, flat):
    return tuple(LowRankBlock(view[:, :0], view[:0]) for view in plan.views(flat))


def test_a_cap_bounds_the_norm_of_what_is_kept_in_units_of_the_gradient(plan, gradient):
    decoded, _ = some_decoded(plan)
    residual = torch.zeros(plan.size)
    _, energies = retain(plan, correct(plan, gradient, residual), decoded, cap=0.1)
    allowed = 0.1 * gradient.norm().item()
    assert torch.linalg.vector_norm(residual).item() == pytest.approx(allowed, rel=1e-4)
    assert energies.sum() == pytest.approx(allowed**2, rel=1e-4)


@pytest.mark.parametrize("name", ["spar", "spar_rd", "powersgd", "dense"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e37, -1e37])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_no_record_may_carry_is_refused_by_the_tensors_name(name, bad, clip, plan, gradient):
    spoiled = gradient.clone()
    spoiled[plan.offsets[2]] = bad
    compressor, residual = get_compressor(name), torch.ones(plan.size)
    with pytest.raises(NonFinite, match=rf"the gradient of {plan.blocks[2].name} holds"):
        corrected = correct(plan, spoiled, residual, clip)
        encode_corrected(compressor, plan, compressor.init(plan), corrected, 10**6)
    assert torch.equal(residual, torch.ones(plan.size))


@pytest.mark.parametrize("name", ["spar", "spar_rd", "powersgd", "dense"])
def test_a_sum_beyond_the_limit_is_refused_before_the_residual_changes(name, plan):
    compressor, residual = get_compressor(name), torch.zeros(plan.size)
    residual[-1] = 0.75 * 2.0**120
    before = residual.clone()
    with pytest.raises(NonFinite, match=f"the sum of gradient and residual of {plan.blocks[-1].name}"):
        corrected = correct(plan, residual.clone(), residual)
        encode_corrected(compressor, plan, compressor.init(plan), corrected, 10**6)
    assert torch.equal(residual, before)
    assert not correct(plan, -before, residual).stored().any()


@pytest.mark.parametrize("name", ["spar", "spar_rd", "powersgd", "warmup"])
def test_a_sum_that_is_not_stored_gives_the_payload_of_the_stored_one(name, plan, gradient):
    compressor = Warmup("spar", {"budget": "rank 1"}, steps=0) if name == "warmup" else get_compressor(name)
    residual = 0.3 * gradient.roll(5)
    kept = residual.clone()
    corrected = correct(plan, gradient, residual, clip=0.5)
    payload, _ = encode_corrected(compressor, plan, compressor.init(plan), corrected, plan.one_rank_bytes())
    stored, _ = compressor.encode(plan, compressor.init(plan), corrected.stored(), plan.one_rank_bytes())
    assert torch.equal(residual, kept)
    left = []
    for found in (payload, stored):
        residual = kept.clone()
        _, energies = retain(plan, correct(plan, gradient, residual, clip=0.5), compressor.decode(plan, found))
        left.append(energies.sum())
    assert len(payload) == pytest.approx(len(stored), rel=0.01) and left[0] == pytest.approx(left[1], rel=0.01)


def test_energies_of_tiny_and_huge_gradients_do_not_vanish_or_overflow(plan, gradient):
    expected = gradient[: plan.offsets[1]].double().square().sum().item()
    for scale in (1e-30, 1e30):
        corrected = correct(plan, gradient * scale, torch.zeros(plan.size))
        sent, left = retain(plan, corrected, nothing_decoded(plan, gradient))
        assert sent[0] == pytest.approx(expected * scale**2, rel=1e-3)
        assert left[0] == pytest.approx(expected * scale**2, rel=1e-3)


def test_threads_change_nothing_but_the_time(plan, gradient):
    decoded, _ = some_decoded(plan)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            residual = torch.ones(plan.size)
            found.append((residual, *retain(plan, correct(plan, gradient, residual), decoded)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][2], found[1][2])


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
