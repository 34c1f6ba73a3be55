"""Spar, its spectra and its allocation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilosync.arithmetic.gradient import LowRankBlock
from hilosync.compress.allocate import allocate_ranks, reference_ranks
from hilosync.compress.spar import Spar, reference_spar
from hilosync.compress.spectra import (
    Grams,
    completed,
    gram_matrices,
    leading_spectra,
    reference_spectrum,
    short_side_first,
    spectra,
)
from hilosync.plan import AdapterPlan, Block


def ranks_of(decoded):
    return [block.left.shape[1] for block in decoded]


def dense(block):
    assert isinstance(block, LowRankBlock)
    return block.left.double() @ block.right.double()


def test_spectra_agree_with_the_singular_value_decomposition(plan, gradient):
    for matrix, spectrum in zip(plan.views(gradient), spectra(plan, gradient), strict=True):
        reference = reference_spectrum(matrix)
        np.testing.assert_allclose(spectrum.energies, reference.energies, rtol=1e-3, atol=1e-5 * reference.energies[0])
        overlap = (spectrum.basis[:, :4].T @ reference.basis[:, :4]).abs()
        torch.testing.assert_close(overlap, torch.eye(4), atol=2e-3, rtol=0)


def test_leading_spectra_agree_with_the_whole_ones_on_what_a_budget_buys():
    plan = AdapterPlan((Block("a", 64, 400), Block("b", 500, 64), Block("c", 64, 64), Block("d", 8, 90)))
    generator = torch.Generator().manual_seed(4)
    decay = torch.arange(1, 65) ** -0.7
    gradient = torch.randn(plan.size, generator=generator)
    plan.views(gradient)[0].mul_(decay[:, None])
    plan.views(gradient)[1].mul_(decay)
    grams = gram_matrices(plan, gradient)
    whole = spectra(plan, gradient)
    leading = leading_spectra(grams, 12, 2)
    assert [len(spectrum.energies) for spectrum in leading] == [12, 12, 12, 8]
    for spectrum, other, view in zip(leading, whole, plan.views(gradient), strict=True):
        captured = (spectrum.basis[:, :3].T @ short_side_first(view)).square().sum().item()
        assert captured == pytest.approx(spectrum.energies[:3].sum(), rel=1e-3)
        assert captured >= 0.96 * other.energies[:3].sum()
        assert spectrum.rest == pytest.approx(view.square().sum().item() - spectrum.energies.sum(), rel=2e-3, abs=1e-2)
    again = completed(grams, leading, [1])
    assert [len(spectrum.energies) for spectrum in again] == [12, 64, 12, 8]
    np.testing.assert_array_equal(again[1].energies, whole[1].energies)
    assert again[1].rest == 0


def test_more_rounds_find_more_of_what_stands_out_of_noise():
    plan = AdapterPlan((Block("a", 64, 1000),))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(6))
    plan.views(gradient)[0][:3].mul_(2)
    grams = gram_matrices(plan, gradient)
    largest = spectra(plan, gradient)[0].energies[:12].sum()
    shares = [leading_spectra(grams, 12, rounds)[0].energies.sum() / largest for rounds in (1, 2, 3, 4)]
    assert shares == sorted(shares) and shares[2] > 0.95 and shares[-1] < 1.0001


def test_a_block_that_deserves_more_than_its_leading_components_gets_them():
    plan = AdapterPlan((Block("a", 64, 400), Block("b", 64, 400)))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(2))
    plan.views(gradient)[1].mul_(1e-3)
    spar, budget = Spar(), 40 * 2 * (64 + 400) + 100
    payload, _ = spar.encode(plan, None, gradient, budget)
    assert ranks_of(spar.decode(plan, payload)) == [40, 0]


@pytest.mark.parametrize("exponent", [-140, -120, -60, 0, 60, 110])
def test_spectra_scale_with_the_gradient_from_subnormals_to_huge_values(plan, gradient, exponent):
    scaled = gradient * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
    for a, b in zip(spectra(plan, scaled), spectra(plan, gradient), strict=True):
        tolerance = 1e-4 if exponent > -120 else 0.5  # subnormals hold few bits
        np.testing.assert_allclose(a.energies[0], np.ldexp(b.energies[0], 2 * exponent), rtol=tolerance)


@given(
    st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=6), min_size=1, max_size=6),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_ranks_agree_with_the_one_by_one_reference_and_fit_the_budget(spectrum_lists, data):
    energies = [np.sort(np.array(values))[::-1] for values in spectrum_lists]
    costs = data.draw(st.lists(st.integers(1, 50), min_size=len(energies), max_size=len(energies)))
    budget = data.draw(st.integers(0, 400))
    ranks = allocate_ranks(energies, costs, budget)
    assert ranks == reference_ranks(energies, costs, budget)
    assert sum(rank * cost for rank, cost in zip(ranks, costs, strict=True)) <= budget


def test_spar_is_the_best_approximation_of_its_ranks(plan, gradient):
    spar = Spar()
    payload, _ = spar.encode(plan, None, gradient, plan.one_rank_bytes() * 2)
    for matrix, block in zip(plan.views(gradient), spar.decode(plan, payload), strict=True):
        best = reference_spar(matrix, block.left.shape[1])
        torch.testing.assert_close(dense(block), best, atol=1e-2 * matrix.abs().max().item(), rtol=0)


def test_a_block_with_more_energy_gets_more_ranks_and_one_with_little_gets_none(plan, gradient):
    spar = Spar()
    payload, _ = spar.encode(plan, None, gradient, plan.one_rank_bytes())
    ranks = ranks_of(spar.decode(plan, payload))
    assert ranks[0] > 1
    assert ranks[-1] == 0
    assert [row["rank"] for row in spar.describe(plan, payload)] == ranks


def test_spar_uses_its_budget(plan, gradient):
    budget = plan.one_rank_bytes()
    payload, _ = Spar().encode(plan, None, gradient, budget)
    assert 0.97 * budget <= len(payload) <= budget


def test_blocks_whose_short_side_needs_two_bytes_keep_their_rank():
    plan = AdapterPlan((Block("w", 300, 310),))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(1))
    spar = Spar()
    payload, _ = spar.encode(plan, None, gradient, 10**9)
    assert ranks_of(spar.decode(plan, payload)) == [300]


def test_a_spectrum_of_a_few_rounded_numbers_is_finite():
    """LAPACK's fp32 `eigh` gives NaN for this K, and not for K divided by its trace."""
    K, signs, at = torch.zeros(16, 16), torch.tensor([-1.0, 1, -1, -1, 1]), torch.tensor([6, 8, 9, 12, 14])
    K[1, 1] = 1.818098414181679e18
    K[1, at] = K[at, 1] = signs * 9.0248e11
    K[at[:, None], at] = signs[:, None] * signs * 2**28
    (spectrum,) = completed(Grams([K], np.zeros(1, np.int64)), [None], [0])
    assert np.isfinite(spectrum.energies).all() and torch.isfinite(spectrum.basis).all()
    assert spectrum.energies[0] == pytest.approx(1.818098414181679e18)
