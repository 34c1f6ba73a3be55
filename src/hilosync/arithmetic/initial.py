"""Initial parameters derived from a seed: version 0 costs no bytes.

`torch.randn` and `torch.rand` give other values on other devices and SIMD levels, so the values
come from the raw words of a counter generator (Philox4x64-10, Salmon et al. 2011), whose stream
NumPy guarantees, and from operations that are exact but for one rounding.
"""

from __future__ import annotations

import numpy as np
import torch

from hilosync.plan import AdapterPlan

__all__ = ["initial_parameters"]


def initial_parameters(plan: AdapterPlan, seed: int) -> torch.Tensor:
    """Parameters at version 0: uniform in ±plan.initial_bound(block), zero where the bound is zero.

    Block b draws from Philox with key (seed, b). Each 64-bit word gives two elements, its low half
    first. The top 24 bits u of a half give (2u + 1 − 2²⁴) · fp32(bound · 2⁻²⁴): an odd integer that
    fp32 holds exactly, times one fp32 constant, rounded once.

    Args:
        plan: the tensors.
        seed: 0 ≤ seed < 2⁶⁴.

    Returns:
        flat fp32, shape (plan.size,), on the CPU.
    """
    flat = np.zeros(plan.size, np.float32)
    for index, (start, block) in enumerate(zip(plan.offsets, plan.blocks, strict=False)):
        bound = plan.initial_bound(block)
        if bound == 0:
            continue
        generator = np.random.Philox(key=np.array([seed, index], np.uint64))
        words = generator.random_raw((block.size + 1) // 2)
        halves = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)], axis=1).reshape(-1)
        odd = 2 * (halves[: block.size] >> np.uint64(8)).astype(np.int32) + (1 - (1 << 24))
        flat[start : start + block.size] = odd.astype(np.float32) * np.float32(bound * 2.0**-24)
    return torch.from_numpy(flat)
