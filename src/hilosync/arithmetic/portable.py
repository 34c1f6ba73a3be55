"""The transitions as torch operations: equal bits on any device that rounds as IEEE 754 asks.

Each line is a sequence of single operations, every one rounded by itself. `add(alpha=)`, `addcmul`,
`addcdiv` and `lerp` are absent because they fuse or not depending on the device and SIMD level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hilosync.arithmetic.specification import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS

__all__ = ["adamw", "exact_sqrt", "lion", "muon_apply", "muon_momentum", "orthogonalize", "sgdm"]


def exact_sqrt(x: Tensor) -> Tensor:
    """The correctly rounded fp32 square root; `torch.sqrt` is off by one ulp on many CPUs, fp64's too.

    The root of a 24-bit number is never within 2⁻⁵⁰ of the middle between two fp32 numbers, so an fp64
    root that is off by an ulp (2⁻⁵²) still rounds to the right one.
    """
    return x.double().sqrt().float()


def adamw(p: Tensor, m: Tensor, v: Tensor, g: Tensor, s: list[float]) -> tuple[Tensor, ...]:
    """`specification.adamw`; `s` holds fp32 values."""
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m = m * beta1 + g * rest1
    v = v * beta2 + (g * g) * rest2
    p = p * decay - torch.div(m, exact_sqrt(v) + epsilon) * step_size
    return p, m, v


def lion(p: Tensor, m: Tensor, g: Tensor, s: list[float]) -> tuple[Tensor, ...]:
    """`specification.lion`."""
    decay, rate, beta1, rest1, beta2, rest2 = s
    c = m * beta1 + g * rest1
    signed = torch.zeros_like(c).masked_fill_(c > 0, rate).masked_fill_(c < 0, -rate)
    return p * decay - signed, m * beta2 + g * rest2


def sgdm(p: Tensor, m: Tensor, g: Tensor, s: list[float]) -> tuple[Tensor, ...]:
    """`specification.sgdm`."""
    decay, rate, momentum, x, y = s
    m = m * momentum + g
    return p * decay - (g * x + m * y) * rate, m


def muon_momentum(m: Tensor, g: Tensor, s: list[float]) -> tuple[Tensor, ...]:
    """`specification.muon_momentum`."""
    _, _, momentum, rest, x, y = s
    m = m * momentum + g * rest
    return m, g * x + m * y


def muon_apply(p: Tensor, o: Tensor, s: list[float], ratio: float) -> Tensor:
    """`specification.muon_apply`."""
    rate = torch.tensor(s[1]) * torch.tensor(ratio)
    return p * s[0] - o * rate.item()


def orthogonalize(u: Tensor) -> Tensor:
    """`specification.orthogonalize`: exact sums of products, so any BLAS on any device gives the same bits."""
    x = u.T if u.shape[0] > u.shape[1] else u
    short, long = x.shape
    bits = (53 - (long - 1).bit_length()) // 2
    x, _ = _on_grid(x.double(), bits)
    gram = x @ x.T
    energy = _halving_sum(gram.diagonal())
    energy = torch.where(energy > 0, energy, torch.ones_like(energy))
    gram = gram / energy
    identity = torch.eye(short, dtype=torch.float64, device=u.device)
    product = identity
    a, b, c = NEWTON_SCHULZ
    for step in range(NEWTON_SCHULZ_STEPS):
        factor = identity * a + (gram * b + _exact_product(gram, gram) * c)
        product = _exact_product(factor, product)
        if step + 1 < NEWTON_SCHULZ_STEPS:
            gram = _exact_product(_exact_product(factor, gram), factor)
    left = 53 - (short - 1).bit_length() - bits
    product, exponent = _on_grid(product, left)
    norm = exact_sqrt(energy.float()).double()
    o = ((product @ x) * (_power_of_two(exponent - left) / norm)).float()
    return o.T if u.shape[0] > u.shape[1] else o


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    bits = (53 - (len(a) - 1).bit_length()) // 2
    (a, exponent_a), (b, exponent_b) = _on_grid(a, bits), _on_grid(b, bits)
    return (a @ b) * _power_of_two(exponent_a + exponent_b - 2 * bits)


def _on_grid(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    _, exponent = torch.frexp(x.abs().amax())
    return (x * _power_of_two(bits - exponent)).round_(), exponent


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent as fp64, from its bits: `torch.ldexp` goes through an inexact `pow`."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _halving_sum(x: Tensor) -> Tensor:
    x = torch.nn.functional.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x)))
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]
