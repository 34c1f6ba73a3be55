"""The rate–distortion coder: tables, quantizer, search, and what replicas read."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilosync.arithmetic.decode import materialize
from hilosync.compress import Spar, SparRD, coefficients
from hilosync.compress.coefficients import quantize_coefficients
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.entropy import SymbolReader, SymbolWriter, _joint, _single
from hilosync.compress.payload import Kind, seal
from hilosync.compress.quantize import (
    basis_classes,
    classes_of,
    grid_exponents,
    octaves_of,
    reference_coefficients,
    reference_rounded,
    rounding_offset,
    smallest_class,
)
from hilosync.compress.rate import Rate, sides
from hilosync.compress.spectra import Spectrum, short_side_first, spectra
from hilosync.compress.symbols import escaped_places, group, group_coefficients, ungroup
from hilosync.compress.tables import (
    CLASSES,
    COEFFICIENT_SHAPES,
    frequencies,
    grouping,
    joint_frequencies,
    reach,
    rounding,
)
from hilosync.errors import MalformedPayload
from hilosync.plan import AdapterPlan, Block

STORED = """
02193be0ec4af2881eab0f0b3d891069ebe677006d6031e3b4aaded7884689425b6a856de8b38f46704fa6c11caf6de0
6bff2a3d79fc6a6f4a8cc673df3528a1580f4b44d41caeb9829a19ecf9c0ea3ce4e5a60fe0d3c97230307e3e2b586e9c
f2c3d0e44848625ea2b3df6a8fbc48d7e5aefce85c2c737f9d87753e23e475795eb6996f86de0df6163bb19152b99d8e
2f7177a7a0a0b3af390d89f8c4752ddb4e3654f6269f6f366588e2cbb4894410a31e6f631703b7a2c5fa8a220cbe5aba
c7a978a453109aefef720f8496eac5b7e7e0361b8da3b5225623bb97df844930fa82a62ab2154faf2ae64c6ed0ed32ae
94903b55cf1ace3fdd41f4e311a5f0cd80b28356d3a41921250f719b8ab42060588f3f9433a973534311de740a95485f
541f2e96c7b9cc4b33a809b275ed0c8a1ecd98ccbeaa9b5f4efa692ec156e9fe158b283ce82828bf21f0498231e15b71
0603e7faa2fa2e2a42068da694bac92128870d57ca8555aefd595317168dc66323cccbe72ac610976f956d4c98e4d31c
44aa84cf74de8027fa6444a9f7d11afe95a8d50972b460349017f91fd90b8a0f404f1451aecb9ab05d089b6eb6
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
        (M, size, even), R = grouping(shape, class_), reach(class_)
        table = joint_frequencies(shape, class_)
        assert table.sum() == 1 << 24 and table.min() > 0 and len(table) <= 10_000
        near = frequencies(shape, class_)[R - M : R + M + 1] / (1 << 24)
        product, integers = near, np.arange(-M, M + 1)
        sums = integers
        for _ in range(size - 1):
            product, sums = np.multiply.outer(product, near), np.add.outer(sums, integers)
        if even:
            product = product[sums % 2 == 0] / product[sums % 2 == 0].sum() * near.sum() ** size
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
        (frequencies, "f1bb5833ba39cc4a73ee19ba9dbcbfb0"),
        (joint_frequencies, "317aeac60a8704763a81828f3e03791b"),
    ):
        everything = b"".join(tables(shape, t).astype("<i8").tobytes() for shape in SHAPES for t in CLASSES)
        assert hashlib.sha256(everything).hexdigest()[:32] == digest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("class_", CLASSES)
def test_groups_come_apart_into_the_integers_that_made_them(shape, class_):
    M, size, even = together = grouping(shape, class_)
    every = np.array([*itertools.product(range(-M, M + 1), repeat=size)], np.int32).T[::-1]
    digits = every[:, every.sum(axis=0) % 2 == 0] if even else every
    symbols = np.arange(together.escape + 1, dtype=np.int32)
    values = np.empty(size * len(symbols), np.int32)
    assert ungroup(symbols, *together, values) == 1
    np.testing.assert_array_equal(values.reshape(size, -1)[:, :-1], digits)
    again, values[escaped_places(symbols, together, len(values))[0]] = np.empty_like(symbols), M + 1
    if not even:
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
        writer.bases(np.array(values, dtype=np.int32), class_)
        writer.integers(np.array(values, dtype=np.int32), shape, class_)
        writer.steps(np.arange(5), 7)
    reader = SymbolReader(writer.finish())
    for shape, class_, values in rows:
        assert reader.bases(len(values), class_).tolist() == values
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
        exponents = exponents_of(classes, r, n, len(classes))
        U = spectrum.basis[:, : len(exponents)].T.numpy() * np.exp2(exponents)[:, None]
        np.testing.assert_array_equal(basis, np.rint(U))
        V = np.array([integers_of(coded, parts, c, n) for c in range(of_block.start, of_block.stop)]).reshape(-1, n)
        laplacian = coded.laplacian[of_block]
        different = reference_coefficients(short_side_first(matrix), basis, classes, laplacian, step) != V
        assert V.shape == (len(classes), n) and different.sum() <= 2e-3 * V.size


def test_products_on_another_device_give_the_same_integers_but_for_ties(plan, gradient, monkeypatch):
    """On the CPU, by what a GPU runs."""
    choice = Rate(plan, spectra(plan, gradient)).choose(float(gradient.norm()) / 200)
    here = quantize_coefficients(gradient, choice)

    def elsewhere(G, E, factor, places, columns, ranks, fits, *arguments):
        coefficients._quantize_elsewhere(CorrectedGradient.of(gradient), choice, *arguments)

    monkeypatch.setattr(coefficients, "_quantize", elsewhere)
    there = quantize_coefficients(gradient, choice)
    np.testing.assert_array_equal(there.counts, here.counts)
    np.testing.assert_array_equal(there.laplacian, here.laplacian)
    assert len(here.symbols) > 100 and (there.symbols != here.symbols).mean() < 1e-2


@pytest.mark.parametrize("class_", CLASSES)
@pytest.mark.parametrize("spread", [0.3, 1, 3])
def test_integers_of_groups_with_an_even_sum_agree_with_the_reference(class_, spread):
    generator, scale, n = np.random.default_rng(class_ + 99), 2 ** (class_ / 4), 1003
    together = grouping("gauss", class_)
    # Of any size, and then just within reach, where every integer can become smaller only.
    fitted = (spread * scale * generator.standard_normal((1, n))).astype(np.float32)
    fitted[0, ::5] = together.reach + np.float32(0.3)
    kinds = np.array([[together], [together]], np.int32).transpose(0, 2, 1).copy()
    symbols, apart = np.empty(n, np.int16), np.empty(n, np.int32)
    laplacian, counts, escaped = np.empty(1, np.int32), np.empty(1, np.int64), np.empty(1, np.int64)
    offset = np.array([rounding_offset(class_)], np.float32)
    group_coefficients(fitted, offset, kinds, symbols, laplacian, counts, escaped, apart)
    found, values = symbols[: counts[0]].astype(np.int32), np.empty(n, np.int32)
    ungroup(found, *together, values)
    places = escaped_places(found, together, n)
    assert len(places) == escaped[0] and found.min() >= 0 and found.max() <= together.escape
    values[places] = apart[: escaped[0]]
    expected = reference_rounded(fitted[0].astype(np.float64), together, rounding_offset(class_))
    assert (values != expected).sum() <= 2e-3 * n
    padded = np.pad(values, (0, -n % together.size)).reshape(together.size, -1)
    assert not together.even or not (padded.sum(axis=0) % 2)[found != together.escape].any()


def integers_of(coded, parts, c, n):
    """Integers of one component, as a decoder reads them."""
    together = grouping(COEFFICIENT_SHAPES[coded.laplacian[c]], int(parts.classes[c]))
    end = int(coded.counts[: c + 1].sum())
    symbols = coded.symbols[end - coded.counts[c] : end].astype(np.int32)
    values = np.empty(n, np.int32)
    if ungroup(symbols, *together, values):
        end = int(coded.escaped[: c + 1].sum())
        values[escaped_places(symbols, together, n)] = coded.apart[end - coded.escaped[c] : end]
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
    classes = np.array(CLASSES)
    for n in (96, 2048, 6144):  # 2^q is σ/Δ = √n·2^(t/4), to within half an octave
        exponents = exponents_of(classes, 64, n, 1)
        assert (np.diff(exponents) >= 0).all() and exponents[0] == 2 and exponents[-1] == 9
        octaves = math.log2(n) / 2 + classes / 4
        inside = (octaves > 2) & (octaves < 9)
        assert (np.abs(exponents - octaves)[inside] <= 0.76).all()


def test_a_basis_that_spans_most_of_a_block_has_a_coarser_grid():
    classes = np.array(CLASSES)
    finest = exponents_of(classes, 64, 2048, 1)
    for rank, octaves in ((16, 0), (32, 0.5), (48, 1), (60, 2)):
        coarser = finest - exponents_of(classes, 64, 2048, rank)
        # Rank by rank by √((r − k)/r), …
        assert coarser[(finest > 5) & (finest < 8)].mean() == pytest.approx(octaves, abs=0.3)
    whole = exponents_of(classes, 64, 2048, 64)
    # … down to where vectors of 64 entries are barely apart, and no finer than alone.
    assert (whole >= np.minimum(finest, 4)).all() and (whole <= finest).all()


def exponents_of(classes, r, n, k):
    return grid_exponents(classes, *(np.full(len(classes), size) for size in (r, n, k)))


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


@pytest.mark.parametrize("share", [0.012, 0.02, 0.032])
def test_a_flat_spectrum_uses_its_budget(share):
    """What has not been looked for is then like what has been found, and all of it becomes worth sending at once."""
    plan = AdapterPlan((Block("a", 64, 8192),))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(5))
    payload, _ = SparRD().encode(plan, 1.0, gradient, budget := int(share * plan.adapter_bytes))
    # One component is a fifteenth of the smallest budget.
    assert 0.93 * budget <= len(payload) <= budget


def test_a_crafted_payload_whose_product_leaves_fp32_s_range_is_refused():
    r, n, large, classes = 8, 32, (1 << 24) - 2, np.array([40, -4])
    plan, writer = AdapterPlan((Block("a", r, n),)), SymbolWriter()
    writer.steps(np.array([2]), 1 + r)
    writer.uniform(classes[:1] - CLASSES[0], len(CLASSES))
    writer.steps(classes[:1] - classes[1:], len(CLASSES))
    # The coarser grid of the second component multiplies its integers by up to 2^7.
    of_bases = basis_classes(exponents_of(classes, r, n, 2), np.full(2, r))
    for class_, value in sorted(zip(of_bases.tolist(), (0, large), strict=True)):
        writer.bases(np.full(r, value, np.int32), class_)
    writer.uniform(np.zeros(2, np.int32), 2)
    for t in (-4, 40):
        together = grouping("gauss", t)
        writer.groups(np.full(-(-n // together.size), together.escape, np.int32), "gauss", t)
    for t, value in ((-4, large), (40, 0)):
        writer.integers(np.full(n, value, np.int32), "gauss", t)
    step = np.float32(2.0**86).astype("<f4").tobytes()
    with pytest.raises(MalformedPayload, match="product"):
        SparRD().decode(plan, seal(Kind.SPAR_RD, step, writer.finish()))


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
    assert hashlib.sha256(content).hexdigest()[:32] == "4540b83d5d3c96f45c7d361c4c2657f8"
