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
from hilosync.compress.coefficients import quantize_coefficients
from hilosync.compress.entropy import SymbolReader, SymbolWriter, _joint, _single
from hilosync.compress.quantize import classes_of, grid_exponent, octaves_of, reference_coefficients, smallest_class
from hilosync.compress.rate import Rate, sides
from hilosync.compress.spectra import Spectrum, short_side_first, spectra
from hilosync.compress.symbols import escaped_places, group, ungroup
from hilosync.compress.tables import CLASSES, frequencies, grouping, joint_frequencies, reach, rounding
from hilosync.plan import AdapterPlan, Block

STORED = """
02ab95536dc027810ba3b9123dc7a1f1ea42b853e686dff8ca4feb62884c1d70d2e5e844c3ba424d7ff7ba484ef14061
eb4b413ead7ad806814e2d874fbd4c968edcc29e5e923be41da9c02f13b42463fe7adf5480001aa8da3362e8ced12922
32e628206fb718c4cfc94db5c9a24977cf9024f2cbfbed1a7cac6d17b9a718a0e0314130870e1747ed46e9dffbd2f636
b0ea0680e40fe87b55d765b4353b0504ee448bce4cd74bc0c164ba67c97e0186e42e1af1f3da7ce1740ad1cfdc4f7525
6cfc8141f1a28b5837b4cf7bf9accdad85e75ff23f2d0243d31f1ada6a195b89badace935b5cb4982ab9d721b99a743a
ea543a4660ce3898802c54cd8df3989bb61fed44cba2fe37d03e831354940d8d7400a38405d70bf5624f9cec2ece520a
01852c94929b71aaef0821cfde983ba6400bbbe56a46d71a58748f709836d6aeb43b4bf4d8df46e842e40455c1f1817b
17a5fa522b14050c78d72f7a336d05ca01d9177e82024ab44ddc35ee6dce198ef7ac68e78ac4a68372b45364ba01351d
cda83a6927e656a48746199b81865334e44b7c84726a85b70293d04fcdd9cccda1d98afa7451cff9a1
"""
"""A payload: SparRD().encode(plan, 1.0, gradient, 430) with the fixtures."""

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


@pytest.mark.parametrize("shape", SHAPES)
def test_joint_tables_are_products_of_the_single_ones(shape):
    for class_ in CLASSES[::3]:
        (M, size), R = grouping(class_), reach(class_)
        table = joint_frequencies(shape, class_)
        assert table.sum() == 1 << 24 and table.min() > 0 and len(table) == (2 * M + 1) ** size + 1 <= 10_000
        near = frequencies(shape, class_)[R - M : R + M + 1] / (1 << 24)
        product = near
        for _ in range(size - 1):
            product = np.multiply.outer(product, near)
        expected = np.append(product.ravel(), 1 - near.sum() ** size)
        divergence = (expected * np.log2(np.maximum(expected, 1e-300) / (table / (1 << 24)))).sum()
        assert 0 <= divergence + 1e-9 < 1e-3, (class_, divergence)


@pytest.mark.parametrize(("shape", "class_"), [("gauss", 0), ("laplace", 7), ("basis", 13), ("laplace", -3)])
@pytest.mark.parametrize(("tables", "models"), [(frequencies, _single), (joint_frequencies, _joint)])
def test_the_range_coder_uses_exactly_the_integer_frequencies(shape, class_, tables, models):
    from constriction import stream

    table, quantum = tables(shape, class_), (2**64 - 1) >> 24
    below = np.cumsum(table) - table
    for symbol in range(0, len(table), max(1, len(table) // 100)):
        encoder = stream.queue.RangeEncoder()
        encoder.encode(np.array([symbol], dtype=np.int32), models(shape, class_))
        lower, width = encoder.pos()[1]
        assert (lower, width) == (quantum * int(below[symbol]), quantum * int(table[symbol]))


def test_tables_are_the_same_integers_as_ever():
    for tables, digest in (
        (frequencies, "293a6aab44e434fce95b2bcac13d3b0f"),
        (joint_frequencies, "f895e1712055a387451293ae04e3445f"),
    ):
        everything = b"".join(tables(shape, t).astype("<i8").tobytes() for shape in SHAPES for t in CLASSES)
        assert hashlib.sha256(everything).hexdigest()[:32] == digest


@pytest.mark.parametrize("class_", CLASSES)
def test_groups_come_apart_into_the_integers_that_made_them(class_):
    M, size = grouping(class_)
    symbols = np.arange((2 * M + 1) ** size + 1, dtype=np.int32)
    values = np.empty(size * len(symbols), np.int32)
    assert ungroup(symbols, M, size, values) == 1
    digits = symbols[:-1] // (2 * M + 1) ** np.arange(size)[:, None] % (2 * M + 1) - M
    np.testing.assert_array_equal(values.reshape(size, -1)[:, :-1], digits)
    values[escaped_places(symbols, len(symbols) - 1, size, len(values))[0]] = M + 1
    again = np.empty_like(symbols)
    assert group(values, M, size, again) == 1
    np.testing.assert_array_equal(again, symbols)


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
        writer.grouped(np.array(values, dtype=np.int32), shape, class_)
        writer.integers(np.array(values, dtype=np.int32), shape, class_)
        writer.steps(np.arange(5), 7)
    reader = SymbolReader(writer.finish())
    for shape, class_, values in rows:
        assert reader.grouped(len(values), shape, class_).tolist() == values
        assert reader.integers(len(values), shape, class_).tolist() == values
        assert reader.steps(5, 7).tolist() == list(range(5))
    reader.finish()


def test_coefficients_agree_with_the_reference_but_for_ties(plan, gradient):
    found = spectra(plan, gradient)
    step = float(np.sqrt(found[0].energies[0])) / 50
    choice = Rate(plan, found).choose(step)
    parts, coded = choice.components, quantize_coefficients(gradient, choice)
    assert sum(parts.ranks) == len(parts.classes) > 0
    starts = np.cumsum(parts.ranks) - parts.ranks
    rows = np.split(choice.bases, np.cumsum(parts.ranks * [sides(block)[0] for block in plan.blocks])[:-1])
    for b, (block, matrix, spectrum) in enumerate(zip(plan.blocks, plan.views(gradient), found, strict=True)):
        (r, n), of_block = sides(block), slice(starts[b], starts[b] + parts.ranks[b])
        classes, basis = parts.classes[of_block], rows[b].reshape(-1, r)
        expected = classes_of(octaves_of(spectrum.energies, n), step)
        np.testing.assert_array_equal(classes, expected[expected >= smallest_class(r, n)])
        exponents = np.array([grid_exponent(t, n) for t in classes.tolist()])
        U = spectrum.basis[:, : len(exponents)].T.numpy() * np.exp2(exponents)[:, None]
        np.testing.assert_array_equal(basis, np.rint(U))
        V = np.array([integers_of(coded, parts, c, n) for c in range(of_block.start, of_block.stop)]).reshape(-1, n)
        different = reference_coefficients(short_side_first(matrix), basis, classes, step) != V
        assert V.shape == (len(classes), n) and different.sum() <= 2e-3 * V.size


def integers_of(coded, parts, c, n):
    """Integers of one component, as a decoder reads them."""
    M, size = grouping(int(parts.classes[c]))
    end = int(coded.counts[: c + 1].sum())
    symbols = coded.symbols[end - coded.counts[c] : end].astype(np.int32)
    values = np.empty(n, np.int32)
    if ungroup(symbols, M, size, values):
        values[escaped_places(symbols, grouping(int(parts.classes[c])).escape, size, n)] = coded.escaped[c]
    return values


def test_a_spike_beyond_every_table_comes_back():
    plan = AdapterPlan((Block("a", 4, 1000), Block("b", 900, 4)))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(3))
    gradient[17] = gradient[4000 + 33] = 300.0
    payload, _ = SparRD().encode(plan, 1.0, gradient, 4000)
    for view, block in zip(plan.views(gradient), SparRD().decode(plan, payload), strict=True):
        assert (materialize(block) - view).abs().max() < 5


def test_a_rate_of_leading_parts_says_which_blocks_need_the_rest(plan, gradient):
    whole = spectra(plan, gradient)
    cut = [Spectrum(spectrum.energies[:3], spectrum.basis[:, :3]) for spectrum in whole]
    step = float(np.sqrt(whole[0].energies[0])) / 50
    counts = Rate(plan, whole).choose(step).components.ranks.tolist()
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
    assert hashlib.sha256(content).hexdigest()[:32] == "5bd48dea2ad9c0b49865d6e51d6b3caf"
