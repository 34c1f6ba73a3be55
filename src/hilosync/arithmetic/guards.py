"""Refuses an environment whose arithmetic is not canonical, before it touches a policy.

Subnormals must survive (flush-to-zero and denormals-are-zero off), and every operation that a
transition is made of must give the words that IEEE 754 prescribes. Inputs come from integers, so
they are the same everywhere. NumPy's words are compared with committed hashes; torch's operations
and Numba's kernels with NumPy's words.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from blake3 import blake3

from hilosync.arithmetic import kernels, muon_kernel, portable, specification
from hilosync.arithmetic.gradient import DenseBlock, LowRankBlock
from hilosync.errors import UnsafeArithmetic
from hilosync.plan import Block

__all__ = ["check_arithmetic"]

_ROWS, _COLUMNS = 16, 128
_COUNT = _ROWS * _COLUMNS

_Operands = tuple[np.ndarray, np.ndarray, np.ndarray]


def _operands() -> _Operands:
    """a, b, c: fp32 of both signs and exponents −40 … 40, every 16th a subnormal; shape (2048,)."""
    words = np.random.Philox(key=np.array([0x484C, 0], np.uint64)).random_raw(3 * _COUNT)
    fraction = (words & np.uint64(0x807FFFFF)).astype(np.uint32)
    exponent = (words >> np.uint64(32)).astype(np.uint32) % np.uint32(81) + np.uint32(87)
    bits = (fraction | (exponent << np.uint32(23))).reshape(3, _COUNT)
    bits[2, ::16] &= np.uint32(0x807FFFFF)
    a, b, c = bits.view(np.float32)
    return a, b, c


_NUMPY: dict[str, tuple[str, Callable[[_Operands], np.ndarray]]] = {
    "fp32 multiply": ("c48b216a4bac26ba", lambda x: x[0] * x[1]),
    "fp32 add": ("f86ee324e7789dde", lambda x: x[0] + x[1]),
    "fp32 subtract": ("5c59a4eb2f5fc5a9", lambda x: x[0] - x[1]),
    "fp32 divide": ("c7a75e571b7d5114", lambda x: x[0] / x[1]),
    "fp32 square root": ("1298c64ab5e7d21f", lambda x: np.sqrt(np.abs(x[0]))),
    "fp32 multiply, then add": ("af03c8d5eaaeae20", lambda x: x[0] * x[1] + x[1]),
    "fp32 subnormal scaling": ("fb66f99852169a32", lambda x: x[2] * np.float32(0.75)),
    "fp64 multiply": ("429a73813ab494ff", lambda x: _double(x[0]) / 3 * _double(x[1])),
    "fp64 round to integer": ("ec3fcd237a60a496", lambda x: np.rint(_double(x[0]))),
    "fp64 to fp32": ("c7a75e571b7d5114", lambda x: (_double(x[0]) / _double(x[1])).astype(np.float32)),
    "fp64 matrix product of integers": ("c0d4ef44438b442e", lambda x: _integers(x[0]) @ _integers(x[1]).T),
}

_TORCH: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "fp32 multiply": lambda x: x[0] * x[1],
    "fp32 add": lambda x: x[0] + x[1],
    "fp32 subtract": lambda x: x[0] - x[1],
    "fp32 divide": lambda x: x[0] / x[1],
    "fp32 square root": lambda x: portable.exact_sqrt(x[0].abs()),
    "fp32 multiply, then add": lambda x: x[0] * x[1] + x[1],
    "fp32 subnormal scaling": lambda x: x[2] * 0.75,
    "fp64 multiply": lambda x: torch.div(x[0].double(), torch.full_like(x[0], 3).double()) * x[1].double(),
    "fp64 round to integer": lambda x: x[0].double().round(),
    "fp64 to fp32": lambda x: (x[0].double() / x[1].double()).float(),
    "fp64 matrix product of integers": lambda x: _torch_integers(x[0]) @ _torch_integers(x[1]).T,
}


def _double(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _integers(x: np.ndarray) -> np.ndarray:
    """32 × 64 integers below 2²³ in fp64, whose sums of 64 products are exact."""
    return (x.view(np.uint32) & np.uint32(0x7FFFFF)).astype(np.float64).reshape(32, 64)


def _torch_integers(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & 0x7FFFFF).double().reshape(32, 64)


def check_arithmetic(device: torch.device | str = "cpu") -> None:
    """Checks, in milliseconds, the operations that a replay on this device is made of.

    Raises:
        UnsafeArithmetic: with the name of the operation whose words differ.
    """
    device = torch.device(device)
    operands = _operands()
    expected = {}
    for operation, (known, function) in _NUMPY.items():
        expected[operation] = function(operands)
        if _hash(expected[operation]) != known:
            _refuse("NumPy", operation)
    inputs = [torch.from_numpy(operand.copy()).to(device) for operand in operands]
    for operation, function in _TORCH.items():
        if _hash(function(inputs).cpu().numpy()) != _hash(expected[operation]):
            _refuse(f"torch on {device.type}", operation)
    if device.type == "cpu":
        _check_kernels(operands)


def _hash(words: np.ndarray) -> str:
    return blake3(np.ascontiguousarray(words).tobytes()).hexdigest(8)


def _refuse(library: str, operation: str) -> None:
    hint = "a library built with fast-math or an unusual BLAS is likely"
    if "subnormal" in operation:
        hint = "subnormals are flushed to zero: do not call torch.set_flush_denormal(True)"
    raise UnsafeArithmetic(
        f"{operation} of {library} does not give the words that IEEE 754 prescribes, so this process would "
        f"leave the policy of the others; {hint}"
    )


def _check_kernels(operands: _Operands) -> None:
    """Numba's kernels against the specification, on one block of 16 × 128."""
    p, m, noise = (np.clip(operand, -1e3, 1e3) for operand in operands)
    v = np.abs(noise)
    _check_kernels_with(DenseBlock(torch.from_numpy(noise.reshape(_ROWS, _COLUMNS))), noise, p, m, v)
    for rank in (1, 3):
        left, right = m[: _ROWS * rank].reshape(_ROWS, rank), p[: rank * _COLUMNS].reshape(rank, _COLUMNS)
        part = LowRankBlock(torch.from_numpy(left), torch.from_numpy(right), 0.3)
        _check_kernels_with(part, specification.low_rank(left, right, np.float32(0.3)).reshape(-1), p, m, v)


def _check_kernels_with(
    part: LowRankBlock | DenseBlock, g: np.ndarray, p: np.ndarray, m: np.ndarray, v: np.ndarray
) -> None:
    """The same with a gradient whose values are `g`."""
    ghat = kernels.gradient_arguments(part)
    s = np.array([0.999, 0.01, 0.9, 0.1, 0.99, 0.01, 1e-8], np.float32)
    rows = (0, _COLUMNS, 0, _ROWS, ghat)

    def kernel_of_muon(buffers: list[np.ndarray]) -> int:
        u_size, q_size = muon_kernel.scratch_sizes((Block("self-test", _ROWS, _COLUMNS),))
        u, q = np.empty(u_size, np.float32), np.empty(q_size, np.float64)
        kernels.muon_momentum(buffers[1], u, 0, _ROWS, _COLUMNS, ghat, s[:6])
        return muon_kernel.muon_block(*buffers, 0, _ROWS, _COLUMNS, s[:6], np.float32(1), u, q)

    cases: dict[str, tuple[list[np.ndarray], tuple[np.ndarray, ...], Callable[[list[np.ndarray]], int]]] = {
        "AdamW": ([p, m, v], specification.adamw(p, m, v, g, s), lambda b: kernels.adamw_rows(*b, *rows, s)),
        "Lion": ([p, m], specification.lion(p, m, g, s[:6]), lambda b: kernels.lion_rows(*b, *rows, s[:6])),
        "SGD with momentum": (
            [p, m],
            specification.sgdm(p, m, g, s[:5]),
            lambda b: kernels.sgdm_rows(*b, *rows, s[:5]),
        ),
        "Muon": ([p, m], _muon(p, m, g, s[:6]), kernel_of_muon),
    }
    for name, (before, after, kernel) in cases.items():
        buffers = [buffer.copy() for buffer in before]
        sums = kernel(buffers)
        same = all(a.tobytes() == b.tobytes() for a, b in zip(buffers, after, strict=True))
        if not same or sums % 2**64 != specification.state_sum([b.reshape(_ROWS, _COLUMNS) for b in buffers]):
            _refuse("Numba", name)


def _muon(p: np.ndarray, m: np.ndarray, g: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, ...]:
    m, u = specification.muon_momentum(m, g, s)
    o = specification.orthogonalize(u.reshape(_ROWS, _COLUMNS)).reshape(-1)
    return specification.muon_apply(p, o, s, np.float32(1)), m
