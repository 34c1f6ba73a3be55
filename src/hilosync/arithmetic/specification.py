"""The arithmetic of HiLo as NumPy text: what every other backend must equal bit for bit.

This module imports NumPy and nothing else, so it can be run on any machine that has it. Every
operation below is one IEEE 754 operation rounded to nearest even in the precision of its operands
(fp32 unless said otherwise). NumPy fuses nothing and `np.sqrt` is correctly rounded, so the text is
executable as it stands; a backend may reorder what is independent and nothing else.

Scalars arrive as fp32 words: `s` is one row of a record's scalars, in the order stated.
"""

from __future__ import annotations

import numpy as np

__all__ = ["BUFFER_WEIGHT", "WEIGHT", "adamw", "buffer_weight", "low_rank", "state_sum", "weights"]

WEIGHT = 0x9E3779B1
"""Odd multiplier of the position weights: ⌊2³²/φ⌋, as in Fibonacci hashing."""

BUFFER_WEIGHT = 0x9E3779B97F4A7C15
"""Odd multiplier of the buffer weights: ⌊2⁶⁴/φ⌋."""


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


def weights(count: int) -> np.ndarray:
    """Weights w(i) = (2i + 1) · WEIGHT mod 2³² of the positions 0 … count − 1 of a block, as uint64.

    They are odd, and all different for up to 2³¹ elements.
    """
    odd = np.uint64(2) * np.arange(count, dtype=np.uint64) + np.uint64(1)
    return odd * np.uint64(WEIGHT) & np.uint64(0xFFFFFFFF)


def buffer_weight(buffer: int) -> int:
    """c(s) = 1 + 2s · BUFFER_WEIGHT mod 2⁶⁴, odd: tells the parameters (s = 0) from the slots."""
    return (1 + 2 * buffer * BUFFER_WEIGHT) % 2**64


def state_sum(buffers: list[np.ndarray]) -> np.uint64:
    """Σ_s c(s) Σ_i w(i) bits(s, i) mod 2⁶⁴ of one block; `buffers` are flat fp32: parameters, slots by name.

    Any order of summation gives the same word. One changed word always changes the sum, since the
    weights are odd. So does an exchange of two unequal words a, b between two positions of a buffer,
    as (a − b)(wᵢ − wⱼ) is below 2⁶⁴ and not 0, or between two buffers at one position.
    """
    total = 0
    for index, buffer in enumerate(buffers):
        bits = buffer.view(np.uint32).astype(np.uint64)
        total += buffer_weight(index) * int(np.sum(bits * weights(buffer.size), dtype=np.uint64))
    return np.uint64(total % 2**64)
