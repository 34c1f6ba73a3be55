"""The rate–distortion coder: tables, quantizer, search, and what replicas read."""

from __future__ import annotations

import hashlib
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilosync.arithmetic.decode import materialize
from hilosync.compress import Spar, SparRD
from hilosync.compress.entropy import CLASSES, DEAD_ZONE, SymbolReader, SymbolWriter, _model, frequencies, reach
from hilosync.compress.quantize import (
    classes_of,
    grid_exponent,
    quantize_basis,
    quantize_coefficients,
    reference_coefficients,
    smallest_class,
)
from hilosync.compress.spectra import short_side_first, spectra
from hilosync.errors import ConfigurationError
from hilosync.plan import AdapterPlan, Block

STORED = """
0201b6eaaf76bce833e43c293d9519e13046ee9a8da47e6724874036d402b9ac17a6da88e99a1f63d6cf6136a394dd43
f4df39ac03d893d6b7ed91d55a22f237734701a4a701d85d5ea1d9e3814304922a04558ac06dd23426fa73358bcac52b
73fcbb50865384f4330042857c3a19cee6ce336bc9192ca9f4c85ad3aba1c41ed09a8070233cbbe7b439aa402471af9f
3232baceb40b43110c836eebdfd40d6d7122f26c5629ea994d856d438b502904e3364636d41bc6d03180fc97b24994a0
7ac3682b57157462c4efb1951876c28f4572689f9f17e225ee35d63b0e1c87c4d5ebad530b95c148ca29b30156fd7264
b30cec14526fbdd9a531783f32b8165ad9805051d1495589c8cde2f1928d31aa43fca53193b5d855a091e0f9de3bc6b3
732e97596712e2ca4d93f474409787eb8bf95f8a5d0b279f230c4f5b634bdddf1a0d40082e296cee6b935e5d93a1bb66
12dbddfdc64d0af2e42b692ac66844030e8990e1cc9a52d781381c1b9dd57adef1
"""
"""A payload of the fixtures' plan."""

SHAPES = ("gauss", "laplace", "basis")


def survival(shape, x, s):
    """P(|X| > x) of a variable of scale s."""
    return math.exp(-math.sqrt(2) * x / s) if shape == "laplace" else math.erfc(x / s / math.sqrt(2))


@pytest.mark.parametrize("shape", SHAPES)
def test_integer_tables_agree_with_the_real_distributions(shape):
    offset = DEAD_ZONE[shape][0] / DEAD_ZONE[shape][1]
    for class_ in CLASSES[::3]:
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
    assert hashlib.sha256(everything).hexdigest()[:32] == "3a0250b5f4b8c1480e6fe4496bf0b94c"


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
        assert reader.integers(len(values), shape, class_).tolist() == values
        assert reader.steps(5, 7).tolist() == list(range(5))
    reader.finish()


def test_coefficients_agree_with_the_reference_but_for_ties(plan, gradient):
    for matrix, spectrum in zip(plan.views(gradient), spectra(plan, gradient), strict=True):
        matrix = short_side_first(matrix)
        step = float(np.sqrt(spectrum.energies[0])) / 50
        classes = classes_of(spectrum.energies, matrix.shape[1], step)
        classes = classes[classes >= smallest_class(*matrix.shape)]
        U = quantize_basis(spectrum.basis, classes, matrix.shape[1])
        V, _ = quantize_coefficients(matrix, U, classes, step)
        different = reference_coefficients(matrix, U, classes, step) != V
        assert different.mean() < 2e-3


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
    assert hashlib.sha256(content).hexdigest()[:32] == "13edf6034c24f89dcb5433e385060849"


def test_without_the_range_coder_one_line_says_what_to_install(plan, gradient, monkeypatch):
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(ConfigurationError, match="pip install"):
        SparRD().encode(plan, 1.0, gradient, 10**6)
