import numpy as np
import pytest
import torch

from hilosync.arithmetic import portable, specification


def newton_schulz(u: np.ndarray) -> np.ndarray:
    """The iteration as it is usually written, in fp64."""
    x = u.astype(np.float64)
    x = x / np.linalg.norm(x)
    a, b, c = specification.NEWTON_SCHULZ
    for _ in range(specification.NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (9, 1), (5, 40), (64, 300), (300, 64)])
def test_the_gram_form_is_the_usual_iteration(rows, columns):
    u = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    expected = newton_schulz(u) if rows <= columns else newton_schulz(u.T).T
    found = specification.orthogonalize(u)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_steep_spectrum_stays_within_a_part_in_a_hundred():
    left, _, right = np.linalg.svd(np.random.default_rng(0).standard_normal((32, 200)), full_matrices=False)
    u = ((left * np.exp(-np.arange(32) / 2.0)) @ right).astype(np.float32)
    expected = newton_schulz(u)
    assert np.linalg.norm(specification.orthogonalize(u) - expected) < 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1.0, 1e30])
def test_torch_gives_the_bits_of_the_specification_at_any_scale(scale):
    u = (np.random.default_rng(1).standard_normal((7, 33)) * scale).astype(np.float32)
    found = portable.orthogonalize(torch.from_numpy(u)).numpy()
    assert np.array_equal(found.view(np.uint32), specification.orthogonalize(u).view(np.uint32))
    assert np.isfinite(found).all()


def test_products_are_exact_so_their_order_is_free():
    generator = np.random.default_rng(2)
    x, _ = specification.on_grid(generator.standard_normal((16, 999)), 21)
    order = generator.permutation(999)
    gram = x @ x.T
    assert np.array_equal(gram, x[:, order] @ x[:, order].T)
    assert np.array_equal(gram, (x.astype(object) @ x.T.astype(object)).astype(np.float64))
    # Sensitivity: with a few bits more, the sums round and the order shows.
    y, _ = specification.on_grid(generator.standard_normal((16, 999)), 30)
    assert not np.array_equal(y @ y.T, (y.astype(object) @ y.T.astype(object)).astype(np.float64))
