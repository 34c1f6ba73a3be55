import math

import numba
import numpy as np
import pytest
import torch

from hilosync.arithmetic import guards, kernels, portable, specification
from hilosync.arithmetic.guards import check_arithmetic
from hilosync.errors import UnsafeArithmetic


def test_this_machine_is_canonical():
    check_arithmetic()


def test_flush_to_zero_is_detected_and_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        with pytest.raises(UnsafeArithmetic, match="subnormal"):
            check_arithmetic()
    finally:
        torch.set_flush_denormal(False)


def test_a_square_root_that_is_not_correctly_rounded_is_named(monkeypatch):
    monkeypatch.setattr(portable, "exact_sqrt", lambda x: torch.nextafter(x.double().sqrt().float(), x))
    with pytest.raises(UnsafeArithmetic, match="fp32 square root of torch"):
        check_arithmetic()


def fused(a, b, c):
    """a · b + c rounded once: fp64 holds the product of two fp32 numbers exactly."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def test_a_fused_multiply_and_add_is_named(monkeypatch):
    known = guards._NUMPY["fp32 multiply, then add"][0]
    monkeypatch.setitem(guards._NUMPY, "fp32 multiply, then add", (known, lambda x: fused(x[0], x[1], x[1])))
    with pytest.raises(UnsafeArithmetic, match="multiply, then add of NumPy"):
        check_arithmetic()


@pytest.mark.parametrize("name", ["adamw", "lion", "sgdm"])
def test_a_kernel_that_fuses_is_named(monkeypatch, name):

    # `fastmath={'contract'}` is what a careless compiler flag would do: only multiply and add fuse.
    loose = numba.njit(error_model="numpy", fastmath={"contract"})(LOOSE[name])
    monkeypatch.setattr(kernels, f"{name}_rows", loose)
    with pytest.raises(UnsafeArithmetic, match="Numba"):
        check_arithmetic()


def loose_adamw(p, m, v, start, columns, first, last, left, right, rank, scale, dense, s):
    for i in range(p.size):
        g = np.float32(0)
        for k in range(rank):
            g = g + left[i // columns * rank + k] * right[k * columns + i % columns]
        g = scale * g
        m[i] = s[2] * m[i] + s[3] * g
        v[i] = s[4] * v[i] + s[5] * (g * g)
        p[i] = s[0] * p[i] - s[1] * (m[i] / (math.sqrt(v[i]) + s[6]))
    return np.uint64(0)


def loose_momentum(p, m, start, columns, first, last, left, right, rank, scale, dense, s):
    for i in range(p.size):
        m[i] = s[2] * m[i] + s[3] * p[i]
    return np.uint64(0)


LOOSE = {"adamw": loose_adamw, "lion": loose_momentum, "sgdm": loose_momentum}


def test_torch_square_roots_need_the_detour_or_are_exact():
    x = torch.from_numpy(np.random.default_rng(0).random(1 << 16, np.float32))
    expected = np.sqrt(x.numpy())
    assert np.array_equal(portable.exact_sqrt(x).numpy(), expected)
    # Sensitivity: the specification must be able to tell a root that is off by one ulp.
    off = np.nextafter(expected, np.float32(2))
    zeros = np.zeros_like(expected)
    s = np.array([1, 0.1, 0, 1, 1, 0, 1e-8], np.float32)
    p, _, _ = specification.adamw(zeros, zeros, x.numpy(), zeros + 1, s)
    assert not np.array_equal(p, s[0] * zeros - s[1] * (np.float32(1) / (off + s[6])))
