"""The kernels for long and flat matrices, against NumPy's products in double precision."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from hilosync.compress.gram import gram, reference_gram
from hilosync.compress.leading import leading_eigenvectors, reference_leading_eigenvectors
from hilosync.compress.products import low_rank_factors, project
from hilosync.compress.residual import replace_residual
from hilosync.compress.tiles import multiply

SHAPES = [(1, 1), (1, 40), (3, 50), (16, 200), (20, 70), (8, 256), (64, 300), (65, 131), (64, 1100), (128, 256)]
SHAPES += [(n, r) for r, n in SHAPES if r != n]

FACTOR = np.float32(0.7)


def block(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def short_first(M):
    return M if M.shape[0] <= M.shape[1] else M.T


def summed(G, E):
    return E.astype(np.float64) + float(FACTOR) * G.astype(np.float64)


def extent(shapes):
    """Where blocks of these shapes begin and end, and their columns."""
    return np.cumsum([0, *(rows * columns for rows, columns in shapes)]), np.array([s[1] for s in shapes])


def grams(shapes, G, E, factor=FACTOR):
    sizes = np.array([min(shape) ** 2 for shape in shapes])
    starts = np.cumsum(sizes) - sizes
    out, traces = np.full(sizes.sum(), np.nan, np.float32), np.full(len(shapes), np.nan, np.float32)
    gram(G, E, factor, *extent(shapes), starts, out, traces)
    return [part.reshape(min(s), -1) for part, s in zip(np.split(out, starts[1:]), shapes, strict=True)], traces


def test_gram_matrices_agree_with_the_product():
    Gs, Es = [block(shape, 1) for shape in SHAPES], [block(shape, 2) for shape in SHAPES]
    flat = [np.concatenate([part.ravel() for part in parts]) for parts in (Gs, Es)]
    found, traces = grams(SHAPES, *flat)
    for G, E, K, trace in zip(Gs, Es, found, traces, strict=True):
        expected = reference_gram(G, E, float(FACTOR))
        np.testing.assert_allclose(K, expected, atol=1e-3 * expected.max())
        assert np.array_equal(K, K.T) and trace == pytest.approx(np.trace(expected), rel=1e-3)


@pytest.mark.parametrize("shape", [(64, 512), (512, 64), (64, 200), (16, 16)])
def test_rounding_to_twelve_bits_is_white_noise_far_below_a_panel_s_energy(shape):
    """Also where a few columns hold most of the energy, as in real gradients."""
    G = block(shape)
    short_first(G)[:, ::10] *= 30
    found, _ = grams([shape], G.ravel(), np.zeros(G.size, np.float32), np.float32(1))
    expected = reference_gram(G, 0 * G, 1.0)
    assert np.abs(np.linalg.eigvalsh(found[0] - expected)).max() < 5e-4 * np.linalg.eigvalsh(expected).max()
    assert np.trace(found[0]) == pytest.approx(np.trace(expected), rel=1e-3)


@pytest.mark.parametrize("shape", [(64, 256), (256, 64), (5, 7), (64, 300)])
@pytest.mark.parametrize("exponent", [-60, 0, 40])
def test_gram_matrices_scale_exactly_with_powers_of_two(shape, exponent):
    G = block(shape)
    (K,), _ = grams([shape], G.ravel(), G.ravel())
    (scaled,), _ = grams([shape], np.ldexp(G, exponent).ravel(), np.ldexp(G, exponent).ravel())
    np.testing.assert_array_equal(scaled, np.ldexp(K, 2 * exponent))


def test_the_largest_numbers_that_a_panel_may_round_to_do_not_overflow():
    for shape in ((64, 128), (128, 64)):
        for value in (1.0, 2 - 2.0**-11, 2 - 2.0**-12, 2 - 2.0**-13, 2 - 2.0**-20):
            G = np.full(shape, value, np.float32)
            (K,), _ = grams([shape], G.ravel(), 0 * G.ravel(), np.float32(1))
            np.testing.assert_allclose(K, 128 * value**2, rtol=1e-3)


@pytest.mark.parametrize("shape", [(64, 256), (256, 64), (5, 7), (64, 300), (300, 64)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**121, -(2.0**121)])
def test_a_number_that_no_gradient_may_hold_shows_in_the_trace(shape, bad):
    for place in (0, -1):
        for holder in (0, 1):
            pair = [block(shape, seed).ravel() for seed in (1, 2)]
            pair[holder][place] = bad
            _, (trace,) = grams([shape], *pair)
            assert not trace <= 1e38


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 33])
def test_projections_agree_with_the_product(shape, count):
    G, E, P = block(shape, 1), block(shape, 2), block((count, min(shape)), seed=3)
    np.testing.assert_allclose(project(P, G, E, FACTOR), P.astype(np.float64) @ short_first(summed(G, E)), atol=2e-4)


def test_low_rank_factors_of_all_blocks_are_bases_and_projections():
    ranks = np.arange(len(SHAPES)) % 4
    Gs, Es = [block(shape, 1) for shape in SHAPES], [block(shape, 2) for shape in SHAPES]
    bases = [block((k, min(shape)), seed=3) for k, shape in zip(ranks, SHAPES, strict=True)]
    G, E, P = (np.concatenate([part.ravel() for part in parts]) for parts in (Gs, Es, bases))
    out = np.full(sum(k * sum(shape) for k, shape in zip(ranks, SHAPES, strict=True)), np.nan, np.float32)
    low_rank_factors(P, ranks, G, E, FACTOR, *extent(SHAPES), out)
    start = 0
    for shape, k, U, M in zip(SHAPES, ranks, bases, map(summed, Gs, Es), strict=True):
        left = out[start : start + shape[0] * k].reshape(shape[0], k)
        right = out[start + shape[0] * k : start + sum(shape) * k].reshape(k, shape[1])
        wide = shape[0] <= shape[1]
        np.testing.assert_allclose(left, U.T if wide else M @ U.T, atol=2e-4)
        np.testing.assert_allclose(right, U @ M if wide else U, atol=2e-4)
        start += sum(shape) * k


@pytest.mark.parametrize("keep", [1.0, 0.9, 0.0])
def test_residuals_after_low_rank_corrections_agree_with_the_equation(keep):
    # From −1 to 12: none, as many as registers take, and more.
    ranks = np.arange(len(SHAPES)) * 5 % 14 - 1
    Gs, Es = [block(shape, 1) for shape in SHAPES], [block(shape, 2) for shape in SHAPES]
    lefts = [block((shape[0], max(k, 0)), seed=3) for k, shape in zip(ranks, SHAPES, strict=True)]
    rights = [block((max(k, 0), shape[1]), seed=4) for k, shape in zip(ranks, SHAPES, strict=True)]
    scales = block((len(SHAPES),), seed=5)
    G, E, L, R = (np.concatenate([part.ravel() for part in parts]) for parts in (Gs, Es, lefts, rights))
    sent, kept = np.full((2, len(SHAPES)), np.nan)
    scalars = FACTOR, np.float32(keep)
    left_starts, right_starts = (np.cumsum([0, *(part.size for part in parts)])[:-1] for parts in (lefts, rights))
    factors = L, left_starts, R, right_starts
    replace_residual(G, E, *scalars, *extent(SHAPES), ranks, scales, *factors, sent, kept)
    offsets, _ = extent(SHAPES)
    for b, shape in enumerate(SHAPES):
        found = E[offsets[b] : offsets[b + 1]].reshape(shape)
        if ranks[b] < 0:
            assert np.array_equal(found, Es[b]) and np.isnan(sent[b]) and np.isnan(kept[b])
            continue
        product = scales[b] * (lefts[b].astype(np.float64) @ rights[b])
        expected = keep * Es[b].astype(np.float64) + FACTOR * Gs[b].astype(np.float64) - product
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert sent[b] == pytest.approx((Gs[b].astype(np.float64) ** 2).sum(), rel=1e-4)
        assert kept[b] == pytest.approx((expected**2).sum(), rel=1e-4)


def test_nothing_beyond_a_block_is_read_or_written():
    for shape in SHAPES:
        around = np.full((2, np.prod(shape) + 8192), np.nan, np.float32)
        inner = slice(4096, -4096)
        around[:, inner] = block((2, np.prod(shape)))
        G, E = around[:, inner]
        (K,), _ = grams([shape], G, E)
        assert np.isfinite(K).all()
        P = np.ones((2, min(shape)), np.float32)
        assert np.isfinite(project(P, G.reshape(shape), E.reshape(shape), FACTOR)).all()
        one, energies = np.float32(1), np.zeros((2, 1))
        factors = np.ones(2 * shape[0], np.float32), np.ones(2 * shape[1], np.float32)
        ranks, scales = np.array([2]), np.ones(1, np.float32)
        factors = [part for factor in factors for part in (factor, np.zeros(1, np.int64))]
        replace_residual(G, E, one, one, *extent([shape]), ranks, scales, *factors, *energies)
        assert np.isfinite(around[:, inner]).all()
        assert np.isnan(around[:, :4096]).all() and np.isnan(around[:, -4096:]).all()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize(("depth", "columns"), [(1, 64), (5, 128), (64, 192)])
def test_tiled_products_agree_with_the_product(rows, depth, columns):
    left, right, out = block((rows, depth), 1), block((depth, columns), 2), np.full((rows, columns), np.nan, np.float32)
    places = [(array.ctypes.data, array.strides[0]) for array in (left, right, out)]
    tiled(*places[0], *places[1], rows, depth, columns, *places[2])
    np.testing.assert_allclose(out, left.astype(np.float64) @ right, atol=1e-4)


@numba.njit
def tiled(left, left_row, right, right_row, rows, depth, columns, out, out_row):
    multiply(left, left_row, right, right_row, rows, depth, columns, out, out_row)


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize(("count", "r", "m"), [(1, 30, 3), (33, 64, 12), (3, 70, 16), (40, 128, 12)])
def test_leading_eigenvectors_agree_with_lapack(count, r, m, rounds):
    factors = np.random.default_rng(r).normal(size=(count, r, r)) / np.arange(1, r + 1)
    matrices = (factors @ factors.transpose(0, 2, 1)).astype(np.float32)
    start = block((m, r), 5)
    values, vectors = leading_eigenvectors(matrices, start, rounds)
    expected, others = reference_leading_eigenvectors(torch.from_numpy(matrices), torch.from_numpy(start), rounds)
    np.testing.assert_allclose(values, expected, rtol=1e-3)
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(vectors @ vectors.transpose(0, 2, 1), np.eye(m)[None].repeat(count, 0), atol=1e-5)
    energies = np.einsum("bmi,bij,bmj->bm", vectors, matrices.astype(np.float64), vectors)
    np.testing.assert_allclose(values, energies, rtol=1e-4)
    np.testing.assert_allclose(np.abs((vectors[:, :2] * others[:, :2].numpy()).sum(-1)), 1, atol=1e-3)


def test_eigenvectors_that_a_matrix_lacks_are_orthogonal_or_zeros():
    """Of the zero matrix, one of rank 1 and one of rank 3, with a start that holds one direction twice."""
    vectors = block((3, 64), 1)
    matrices = np.stack([0 * vectors.T @ vectors, vectors[:1].T @ vectors[:1], vectors.T @ vectors])
    start = block((8, 64), 2)
    start[1] = start[0]
    values, found = leading_eigenvectors(matrices, start, 3)
    assert np.isfinite(found).all()
    for rank, of_matrix, directions in zip((0, 1, 3), values, found, strict=True):
        assert (of_matrix[rank:] <= 1e-5 * max(of_matrix[0], 0)).all()
        products = directions @ directions.T
        np.testing.assert_allclose(products, np.diag(np.diag(products).round()), atol=1e-5)
        assert np.diag(products)[:rank] == pytest.approx(1, abs=1e-5)
    assert values[1, 0] == pytest.approx(np.square(vectors[0]).sum(), rel=1e-5)
