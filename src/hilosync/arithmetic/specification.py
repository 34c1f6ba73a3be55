"""The arithmetic of HiLo as NumPy text: what every other backend must equal bit for bit.

This module imports NumPy and nothing else, so it can be run on any machine that has it. Every
operation below is one IEEE 754 operation rounded to nearest even in the precision of its operands
(fp32 unless said otherwise). NumPy fuses nothing and `np.sqrt` is correctly rounded, so the text is
executable as it stands; a backend may reorder what is independent and nothing else.

Scalars arrive as fp32 words: `s` is one row of a record's scalars, in the order stated.
"""

from __future__ import annotations

import numpy as np

__all__ = ["adamw", "low_rank", "state_sum", "weights"]

WEIGHT = 0x9E3779B1
"""Odd multiplier of the position weights: ⌊2³²/φ⌋, as in Fibonacci hashing."""

BUFFER_MASKS = (0x00000000, 0x7FEB352C, 0x846CA68A, 0x31848BAA, 0x68E31DA4, 0xB5297A4C, 0x1B56C4E8, 0x2C1B3C6C)
"""Even words that tell the parameters (first) from the slots (in the order of their names)."""


def low_rank(left: np.ndarray, right: np.ndarray, scale: np.float32) -> np.ndarray:
    """Ĝ = scale · Σ_k L[:, k] R[k, :], the sum from 0 over ascending k, each product rounded to fp32."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for k in range(left.shape[1]):
        total = total + left[:, k : k + 1] * right[k : k + 1, :]
    return np.float32(scale) * total


def adamw(p: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, ...]:
    """AdamW (Loshchilov and Hutter 2019) with the bias corrections folded into α̂ and ε̂.

    ``s`` = (1 − α·λ, α̂, β₁, 1 − β₁, β₂, 1 − β₂, ε̂) with α̂ = α √(1 − β₂ᵗ) / (1 − β₁ᵗ) and
    ε̂ = ε √(1 − β₂ᵗ), so that α̂ m / (√v + ε̂) is the usual α m̂ / (√v̂ + ε).
    """
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    p = decay * p - step_size * (m / (np.sqrt(v) + epsilon))
    return p, m, v


def weights(count: int, buffer: int) -> np.ndarray:
    """Odd 32-bit weights of the positions 0 … count − 1 of a block, as uint64.

    w(i) = ((2i + 1) · WEIGHT mod 2³²) xor mask. Within a buffer all weights of a block of up to 2³¹
    elements differ, and at one position all buffers differ: exchanging two unequal words
    there always changes the sum, since (a − b)(wᵢ − wⱼ) is below 2⁶⁴ and not 0.
    """
    position = np.arange(count, dtype=np.uint64)
    odd = (np.uint64(2) * position + np.uint64(1)) * np.uint64(WEIGHT) & np.uint64(0xFFFFFFFF)
    return odd ^ np.uint64(BUFFER_MASKS[buffer])


def state_sum(buffers: list[np.ndarray]) -> np.uint64:
    """Σ over buffers and positions of bits · weight mod 2⁶⁴, for one block's flat fp32 buffers."""
    total = 0
    for index, buffer in enumerate(buffers):
        bits = buffer.view(np.uint32).astype(np.uint64)
        total += int(np.sum(bits * weights(buffer.size, index), dtype=np.uint64))
    return np.uint64(total % 2**64)
