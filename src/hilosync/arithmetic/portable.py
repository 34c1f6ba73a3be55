"""The transitions as torch operations: equal bits on any device that rounds as IEEE 754 asks.

Each line is a sequence of single operations, every one rounded by itself. `add(alpha=)`, `addcmul`,
`addcdiv` and `lerp` are absent because they fuse or not depending on the device and SIMD level.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["adamw", "exact_sqrt"]


def exact_sqrt(x: Tensor) -> Tensor:
    """The correctly rounded fp32 square root; `torch.sqrt` is off by one ulp on many CPUs.

    fp64 has more than 2·24 + 2 bits, so rounding twice equals rounding once.
    """
    return x.double().sqrt().float()


def adamw(p: Tensor, m: Tensor, v: Tensor, g: Tensor, s: list[float]) -> tuple[Tensor, ...]:
    """`specification.adamw`; `s` holds fp32 values."""
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m = m * beta1 + g * rest1
    v = v * beta2 + (g * g) * rest2
    p = p * decay - torch.div(m, exact_sqrt(v) + epsilon) * step_size
    return p, m, v
