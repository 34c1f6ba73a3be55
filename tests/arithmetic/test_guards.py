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


def loose_adamw(p, m, v, g, s):
    for i in range(p.size):
        m[i] = s[2] * m[i] + s[3] * g[i]
        v[i] = s[4] * v[i] + s[5] * (g[i] * g[i])
        p[i] = s[0] * p[i] - s[1] * (m[i] / (math.sqrt(v[i]) + s[6]))


def loose_lion(p, m, g, s):
    for i in range(p.size):
        p[i] = s[0] * p[i] - s[1] * np.float32(np.sign(s[2] * m[i] + s[3] * g[i]))
        m[i] = s[4] * m[i] + s[5] * g[i]


def loose_sgdm(p, m, g, s):
    for i in range(p.size):
        m[i] = s[2] * m[i] + g[i]
        p[i] = s[0] * p[i] - s[1] * (s[3] * g[i] + s[4] * m[i])


def install_kernel(monkeypatch, name, update, **flags):
    """Puts a kernel of the plain loop `update` in place of HiLo's own; its sums are right."""
    compiled = numba.njit(error_model="numpy", **flags)(update)

    def rows(*arguments):
        *buffers, _, columns, _, _, ghat, s = arguments
        if len(ghat) == 1:
            g = ghat[0]
        else:
            left, right, scale, rank = (*ghat, 1)[:4]
            g = specification.low_rank(left.reshape(-1, rank), right.reshape(rank, -1), scale).reshape(-1)
        compiled(*buffers, g, s)
        return int(specification.state_sum([buffer.reshape(-1, columns) for buffer in buffers]))

    monkeypatch.setattr(kernels, f"{name}_rows", rows)


@pytest.mark.parametrize("update", [loose_adamw, loose_lion, loose_sgdm])
def test_a_kernel_that_fuses_is_named(monkeypatch, update):
    name = update.__name__.removeprefix("loose_")
    install_kernel(monkeypatch, name, update)
    check_arithmetic()
    # `fastmath={'contract'}` is what a careless compiler flag would do: only multiply and add fuse.
    install_kernel(monkeypatch, name, update, fastmath={"contract"})
    with pytest.raises(UnsafeArithmetic, match="Numba"):
        check_arithmetic()


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
