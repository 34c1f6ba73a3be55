"""The rate–distortion coder: tables, quantizer, search, and what replicas read."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilosync.arithmetic.decode import materialize
from hilosync.compress import Spar, SparRD
from hilosync.compress.entropy import CLASSES, SymbolReader, SymbolWriter, _model, frequencies, reach, rounding
from hilosync.compress.quantize import (
    classes_of,
    grid_exponent,
    octaves_of,
    quantize_coefficients,
    reference_coefficients,
    smallest_class,
)
from hilosync.compress.rate import Rate, sides
from hilosync.compress.spectra import Spectrum, project, short_side_first, spectra
from hilosync.plan import AdapterPlan, Block

STORED = """
020e6e2d00e25b8baccd2d213d9528f03f37df8b8da47e6724ba2136d4412d7ae68541ca7d3ae8f538906743a1ac7e41
69ee7a81ed380dbcb18f1ccf79d8fc6108618808fff8dfb6f9c099e18cd0584a5699dc423506cd41fb80772c0b94f7ed
2bfc8479b93e4a4226fe112527b63367c39520eed98b4a28b832bf43d8934d0d3a37230a2aa14514d672d574a891516d
41e6c38b83539aafc64015331947598ded2b7a79138bdf603126911aa00fbd7bbc3e555cd7ec0607b396b514e85ce36b
33750e8842cc0e7b4e6f954328e09bf1bfd6460bf49c4075033bf59dfe542e8bc7370d06af520ddaee22cddd22255120
9438d1950a4906fef4fbbb1ad07099cfdc4dd946b8b5f24079a656a2f29b57f23577d17ab76bf4fabac34c4eef86b2a8
71d237d763db52992d0f19a05e1fd7a31afdc7277ab04e92a84f4b6a53009821571b5dbabc0b8217f154bc76f9242bea
033cbd3d7d88556ed6f5ed2dee69abd3db638c0050903a08a90fb16014af92ee6a4428615aad0d93b0e387c7821f7de9
e5d6dadb4784a60b03ede0e730
"""
"""A payload of the fixtures' plan."""

SHAPES = ("gauss", "laplace", "basis")


def survival(shape, x, s):
    """P(|X| > x) of a variable of scale s."""
    return math.exp(-math.sqrt(2) * x / s) if shape == "laplace" else math.erfc(x / s / math.sqrt(2))


@pytest.mark.parametrize("shape", SHAPES)
def test_integer_tables_agree_with_the_real_distributions(shape):
    for class_ in CLASSES[::3]:
        offset = rounding(shape, class_)[0] / rounding(shape, class_)[1]
        table, M, s = frequencies(shape, class_), reach(class_), 2.0 ** (class_ / 4)
        assert table.sum() == 1 << 24 and table.min() > 0
        tails = [survival(shape, v - offset, s) for v in range(1, M + 2)]
        positive = (np.array(tails[:-1]) - np.array(tails[1:])) / 2
        real = np.concatenate([positive[::-1], [1 - tails[0] + tails[-1]], positive])
        coded = table[:-1] / (1 << 24)
        divergence = (real * np.log2(np.maximum(real, 1e-300) / coded)).sum()
        assert 0 <= divergence + 1e-9 < 2e-3, (class_, divergence)


@pytest.mark.parametrize(("shape", "class_"), [("gauss", 0), ("laplace", 7), ("basis", 13)])
def test_the_range_coder_uses_exactly_the_integer_frequencies(shape, class_):
    from constriction import stream

    table, quantum = frequencies(shape, class_), (2**64 - 1) >> 24
    for symbol in range(len(table)):
        encoder = stream.queue.RangeEncoder()
        encoder.encode(np.array([symbol], dtype=np.int32), _model(shape, class_))
        lower, width = encoder.pos()[1]
        assert (lower, width) == (quantum * int(table[:symbol].sum()), quantum * int(table[symbol]))


def test_tables_are_the_same_integers_as_ever():
    everything = b"".join(frequencies(shape, t).astype("<i8").tobytes() for shape in SHAPES for t in CLASSES)
    assert hashlib.sha256(everything).hexdigest()[:32] == "293a6aab44e434fce95b2bcac13d3b0f"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(SHAPES),
            st.sampled_from(list(CLASSES)),
            st.lists(st.integers(-(2**24) + 2, 2**24 - 2) | st.integers(-9, 9), min_size=1, max_size=30),
        ),
        max_size=6,
    )
)
@settings(max_examples=80, deadline=None)
def test_integers_of_any_size_come_back(rows):
    writer = SymbolWriter()
    for shape, class_, values in rows:
        writer.integers(np.array(values, dtype=np.int32), shape, class_)
        writer.steps(np.arange(5), 7)
    reader = SymbolReader(writer.finish())
    for shape, class_, values in rows:
        out = np.empty((len(values), 2), np.float32)[:, 0]  # any stride
        reader.integers(out, shape, class_)
        assert out.tolist() == values
        assert reader.steps(5, 7).tolist() == list(range(5))
    reader.finish()


def test_coefficients_agree_with_the_reference_but_for_ties(plan, gradient):
    found = spectra(plan, gradient)
    step = float(np.sqrt(found[0].energies[0])) / 50
    choices = Rate(plan, found).choose(step)
    assert any(len(choice.classes) for choice in choices)
    for block, matrix, choice, spectrum in zip(plan.blocks, plan.views(gradient), choices, found, strict=True):
        r, n = sides(block)
        expected = classes_of(octaves_of(spectrum.energies, n), step)
        np.testing.assert_array_equal(choice.classes, expected[expected >= smallest_class(r, n)])
        exponents = np.array([grid_exponent(t, n) for t in choice.classes.tolist()])
        U = spectrum.basis[:, : len(exponents)].T.numpy() * np.exp2(exponents)[:, None]
        np.testing.assert_array_equal(choice.basis, np.rint(U))
        V, _ = quantize_coefficients(project(choice.fit, matrix), choice.classes)
        different = reference_coefficients(short_side_first(matrix), choice.basis, choice.classes, step) != V
        assert V.shape == (len(choice.classes), n) and different.sum() <= 2e-3 * V.size


def test_a_rate_of_leading_parts_says_which_blocks_need_the_rest(plan, gradient):
    whole = spectra(plan, gradient)
    cut = [Spectrum(spectrum.energies[:3], spectrum.basis[:, :3]) for spectrum in whole]
    step = float(np.sqrt(whole[0].energies[0])) / 50
    counts = [len(choice.classes) for choice in Rate(plan, whole).choose(step)]
    assert Rate(plan, cut).exhausted(step) == [index for index, k in enumerate(counts) if k >= 3]
    assert Rate(plan, whole).exhausted(step) == []


def test_spar_rd_goes_beyond_the_leading_components_where_a_block_deserves_it():
    plan = AdapterPlan((Block("a", 64, 700), Block("b", 900, 64)))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(6))
    budget = 60_000
    payload, _ = SparRD().encode(plan, 1.0, gradient, budget)
    assert 0.97 * budget <= len(payload) <= budget
    ranks = [block.left.shape[1] for block in SparRD().decode(plan, payload)]
    assert min(ranks) > 40


def test_a_better_basis_grid_goes_with_a_larger_component():
    exponents = [grid_exponent(t, 2048) for t in CLASSES]
    assert exponents == sorted(exponents) and exponents[0] == 2 and exponents[-1] == 9
    for n in (96, 2048, 6144):  # 2^q is σ/Δ = √n·2^(t/4), to within half an octave
        assert all(
            abs(grid_exponent(t, n) - math.log2(n) / 2 - t / 4) <= 0.76
            for t in CLASSES
            if 2 < math.log2(n) / 2 + t / 4 < 9
        )


@pytest.mark.parametrize("ranks", [0.25, 0.5, 1, 3])
def test_spar_rd_uses_its_budget_and_leaves_less_than_spar_does(ranks, plan, gradient):
    budget = int(ranks * plan.one_rank_bytes())
    compressor, state = SparRD(), 1.0
    for _ in range(2):
        payload, state = compressor.encode(plan, state, gradient, budget)
        assert 0.97 * budget <= len(payload) <= budget
    other, _ = Spar().encode(plan, None, gradient, budget)
    energies = [
        sum(
            float((view - materialize(block)).square().sum())
            for view, block in zip(plan.views(gradient), decoded, strict=True)
        )
        for decoded in (compressor.decode(plan, payload), Spar().decode(plan, other))
    ]
    assert energies[0] < 0.6 * energies[1]


def test_a_gradient_is_coded_until_nothing_is_left_when_the_budget_allows(plan, gradient):
    payload, _ = SparRD().encode(plan, 1.0, gradient, 10**7)
    for view, block in zip(plan.views(gradient), SparRD().decode(plan, payload), strict=True):
        torch.testing.assert_close(materialize(block), view, atol=1e-3 * gradient.abs().max().item(), rtol=0)


def test_factors_are_integers_whose_products_sum_to_the_same_bits_in_any_order():
    plan = AdapterPlan((Block("a", 64, 700), Block("b", 900, 64)))
    generator = torch.Generator().manual_seed(5)
    decay = torch.arange(1, 65) ** -1.5
    gradient = torch.cat(
        [
            (torch.randn(64, 64, generator=generator) * decay @ torch.randn(64, 700, generator=generator)).flatten(),
            (torch.randn(900, 64, generator=generator) * decay @ torch.randn(64, 64, generator=generator)).flatten(),
        ]
    )
    for budget in (20_000, 150_000):
        payload, _ = SparRD().encode(plan, 1.0, gradient, budget)
        for block in SparRD().decode(plan, payload):
            assert torch.equal(block.left, block.left.round()) and torch.equal(block.right, block.right.round())
            assert (block.left.abs().double() @ block.right.abs().double()).max() < 2**24
            turned = torch.randperm(block.left.shape[1], generator=generator)
            any_order = (block.left[:, turned] @ block.right[turned]).mul_(block.scale)
            assert torch.equal(materialize(block), any_order)


def test_a_stored_payload_decodes_to_the_same_bits_as_ever(plan):
    stored = SparRD().decode(plan, bytes.fromhex(STORED))
    content = b"".join(materialize(block).numpy().astype("<f4").tobytes() for block in stored)
    assert hashlib.sha256(content).hexdigest()[:32] == "818f5f2940fb94014c444acf25853fd8"
