"""The kernels for long and flat matrices, against NumPy's products in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from hilosync.compress.products import gram, project, subtract_product

SHAPES = [(1, 1), (1, 40), (3, 50), (16, 200), (20, 70), (64, 300), (65, 131), (64, 1100)]
SHAPES += [(n, r) for r, n in SHAPES if r != n]


def block(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def short_first(G):
    return (G if G.shape[0] <= G.shape[1] else G.T).astype(np.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_gram_matrices_agree_with_the_product(shape):
    G = block(shape)
    K = np.empty((min(shape), min(shape)), np.float32)
    gram(G, K)
    expected = short_first(G) @ short_first(G).T
    np.testing.assert_allclose(K, expected, atol=1e-5 * expected.max())
    assert np.array_equal(K, K.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_projections_agree_with_the_product(shape, count):
    G, P = block(shape), block((count, min(shape)), seed=1)
    np.testing.assert_allclose(project(P, G), P.astype(np.float64) @ short_first(G), atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("keep", [1.0, 0.9, 0.0])
def test_low_rank_corrections_agree_with_the_product(shape, count, keep):
    G, left, right = block(shape), block((shape[0], count), seed=1), block((count, shape[1]), seed=2)
    expected = np.float32(keep) * G.astype(np.float64) - left.astype(np.float64) @ right
    energy = subtract_product(G, left, right, np.float32(keep))
    np.testing.assert_allclose(G, expected, atol=1e-5)
    assert energy == pytest.approx((expected**2).sum(), rel=1e-4)


def test_nothing_beyond_a_block_is_read_or_written():
    for shape in SHAPES:
        around = np.full(np.prod(shape) + 64, np.nan, np.float32)
        G = around[32:-32].reshape(shape)
        G[:] = block(shape)
        K = np.empty((min(shape), min(shape)), np.float32)
        gram(G, K)
        assert np.isfinite(K).all()
        subtract_product(G, np.ones((shape[0], 2), np.float32), np.ones((2, shape[1]), np.float32), np.float32(1))
        assert np.isfinite(G).all() and np.isnan(around[:32]).all() and np.isnan(around[-32:]).all()
