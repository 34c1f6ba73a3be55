"""The arithmetic of HiLo as NumPy text: what every other backend must equal bit for bit.

This module imports NumPy and nothing else, so it can be run on any machine that has it. Every
operation below is one IEEE 754 operation rounded to nearest even in the precision of its operands
(fp32 unless said otherwise). NumPy fuses nothing and `np.sqrt` is correctly rounded, so the text is
executable as it stands; a backend may reorder what is independent and nothing else.

Scalars arrive as fp32 words: `s` is one row of a record's scalars, in the order stated.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "NEWTON_SCHULZ",
    "NEWTON_SCHULZ_STEPS",
    "adamw",
    "exact_product",
    "halving_sum",
    "lion",
    "low_rank",
    "muon_apply",
    "muon_momentum",
    "on_grid",
    "orthogonalize",
    "rotation",
    "sgdm",
    "state_sum",
]

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients (a, b, c) of Muon's quintic, as fp64."""

NEWTON_SCHULZ_STEPS = 5


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


def lion(p: np.ndarray, m: np.ndarray, g: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, ...]:
    """Lion (Chen et al. 2023); ``s`` = (1 − α·λ, α, β₁, 1 − β₁, β₂, 1 − β₂).

    The signed step is chosen, not multiplied, so that the sign of a zero never matters.
    """
    decay, rate, beta1, rest1, beta2, rest2 = s
    c = beta1 * m + rest1 * g
    p = decay * p - np.where(c > 0, rate, np.where(c < 0, -rate, np.float32(0)))
    m = beta2 * m + rest2 * g
    return p, m


def sgdm(p: np.ndarray, m: np.ndarray, g: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, ...]:
    """SGD with momentum μ (Polyak), or Nesterov's form; ``s`` = (1 − α·λ, α, μ, x, y).

    (x, y) = (0, 1) steps along the momentum, (1, μ) along Nesterov's look-ahead.
    """
    decay, rate, momentum, x, y = s
    m = momentum * m + g
    p = decay * p - rate * (x * g + y * m)
    return p, m


def muon_momentum(m: np.ndarray, g: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, ...]:
    """The momentum of Muon and the matrix u that it orthogonalizes; ``s`` = (1 − α·λ, α, μ, 1 − μ, x, y)."""
    _, _, momentum, rest, x, y = s
    m = momentum * m + rest * g
    return m, x * g + y * m


def muon_apply(p: np.ndarray, o: np.ndarray, s: np.ndarray, ratio: np.float32) -> np.ndarray:
    """p ← (1 − α·λ) p − (α · ratio) o, where o is the orthogonalized u and `ratio` depends on its shape."""
    return s[0] * p - (s[1] * ratio) * o


def on_grid(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.int32]:
    """(q, e): fp64 integers |q| ≤ 2^bits with x ≈ q · 2^(e − bits), and max |x| < 2^e."""
    _, exponent = np.frexp(np.abs(x).max())
    return np.rint(x * np.ldexp(1.0, bits - exponent)), exponent


def exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a · b of two s × s matrices, each rounded to a grid so coarse that fp64 adds their products exactly."""
    bits = (53 - (len(a) - 1).bit_length()) // 2
    (a, exponent_a), (b, exponent_b) = on_grid(a, bits), on_grid(b, bits)
    return (a @ b) * np.ldexp(1.0, exponent_a + exponent_b - 2 * bits)


def orthogonalize(u: np.ndarray) -> np.ndarray:
    """Newton–Schulz in Gram form: the fp32 matrix u with its singular values driven towards 1.

    The iteration of Muon (Jordan et al. 2024) is X ← (a + b XXᵀ + c (XXᵀ)²) X. All its factors are
    polynomials of A = XXᵀ, s × s for a short side s, so only A and the factors' product are iterated,
    and X is multiplied once at the end. Every sum of products is exact: operands are integers of so
    few bits that all partial sums stay below 2⁵³. Hence a matrix product gives the same bits in any
    order, blocking, thread count or library, fused or not. All is fp64 but the input, the result and the
    norm ‖x‖, an fp32 square root, as fp64 roots are not correctly rounded everywhere.
    """
    x = u.T if u.shape[0] > u.shape[1] else u
    short, long = x.shape
    bits = (53 - (long - 1).bit_length()) // 2
    x, _ = on_grid(x.astype(np.float64), bits)
    gram = x @ x.T
    energy = halving_sum(np.diagonal(gram))
    energy = np.where(energy > 0, energy, 1.0)
    gram = gram / energy
    a, b, c = NEWTON_SCHULZ
    product = np.eye(short)
    for step in range(NEWTON_SCHULZ_STEPS):
        factor = a * np.eye(short) + (b * gram + c * exact_product(gram, gram))
        product = exact_product(factor, product)
        if step + 1 < NEWTON_SCHULZ_STEPS:
            gram = exact_product(exact_product(factor, gram), factor)
    left = 53 - (short - 1).bit_length() - bits
    product, exponent = on_grid(product, left)
    norm = np.sqrt(energy.astype(np.float32)).astype(np.float64)
    o = ((product @ x) * (np.ldexp(1.0, exponent - left) / norm)).astype(np.float32)
    return o.T if u.shape[0] > u.shape[1] else o


def halving_sum(x: np.ndarray) -> np.ndarray:
    """The sum of a vector by adding its halves until one word is left, padded with zeros to 2ⁿ."""
    x = np.concatenate([x, np.zeros((1 << (x.size - 1).bit_length()) - x.size)])
    while x.size > 1:
        x = x[: x.size // 2] + x[x.size // 2 :]
    return x[0]


def rotation(buffer: int) -> int:
    """Bits by which the words of a buffer are rotated left: 16 for the parameters, 8, 0, 56 … for the slots.

    It takes signs and exponents away from the highest bits, where a sum modulo 2⁶⁴ is weakest, and
    keeps the last bits of the halves of all words of a position apart, for up to four buffers.
    """
    return (16 - 8 * buffer) % 64


def state_sum(buffers: list[np.ndarray]) -> np.uint64:
    """Σᵢ (2i + 1) Σ_b rotl(word(b, i), rotation(b)) mod 2⁶⁴ of one block.

    `buffers` are fp32 matrices of the block's shape: parameters, then the slots by name. Rows are padded
    with zeros to a multiple of eight numbers; each two numbers are one word, the first in its low half.
    Any order of summation gives the same word, and sums of prefix sums give it without a multiplication.

    The weights are odd, so one changed word always changes the sum. So does an exchange of words whose
    difference is no multiple of 2⁶⁴⁻ᵏ, between positions whose distance is no multiple of 2ᵏ.
    """
    rows, columns = buffers[0].shape
    padded = np.zeros((rows, -(-columns // 8) * 8), np.float32)
    words = np.zeros(padded.size // 2, np.uint64)
    for index, buffer in enumerate(buffers):
        padded[:, :columns] = buffer
        bits, left = padded.reshape(-1).view("<u8"), rotation(index)
        words += bits << np.uint64(left) | bits >> np.uint64(-left % 64)
    return np.sum(words * (2 * np.arange(words.size, dtype=np.uint64) + np.uint64(1)), dtype=np.uint64)
