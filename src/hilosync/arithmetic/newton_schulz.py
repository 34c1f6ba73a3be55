"""Numba form of Muon's orthogonalization; `specification.orthogonalize` defines it.

All products here sum integers whose partial sums stay below 2⁵³: fp64 holds each partial sum
exactly, so the order in which they are added is free and blocking for the cache changes no bit.

Matrices are padded with zeros to multiples of `PAD`, so that no loop needs a remainder. The integers
x are stored with the long side first, n × s, whichever way the block lies.
"""

from __future__ import annotations

import math

import numpy as np

from hilosync.arithmetic.compilation import helper, inlined
from hilosync.arithmetic.lanes import broadcast, load, pointer, store
from hilosync.arithmetic.specification import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS

__all__ = ["PAD", "grid_bits", "iterate", "long_grid", "multiply", "padded", "symmetric_gram"]

PAD = 8

_A, _B, _C = NEWTON_SCHULZ
_PANEL = 64


@helper
def padded(size: int) -> int:
    """The next multiple of `PAD`."""
    return -(-size // PAD) * PAD


@helper
def _bit_length(n):
    length = 0
    while n:
        length, n = length + 1, n >> 1
    return length


@helper
def grid_bits(terms):
    """Bits of an operand of which `terms` products are summed exactly: ⌊(53 − ⌈log₂ terms⌉) / 2⌋."""
    return (53 - _bit_length(terms - 1)) // 2


@helper
def _exponent(x):
    """The smallest e with max |x| < 2^e; 0 if all are zero. x is flat."""
    largest = np.float64(0)
    for i in range(x.size):
        largest = max(largest, abs(np.float64(x[i])))
    return math.frexp(largest)[1]


@helper
def long_grid(u, rows, columns, bits, q, side):
    """Writes round(u · 2^(bits − e)) into q, flat, as long × side with the long side of u first."""
    scale = math.ldexp(1.0, bits - _exponent(u))
    q[:] = 0.0
    if rows > columns:
        for i in range(rows):
            for j in range(columns):
                q[i * side + j] = np.rint(np.float64(u[i * columns + j]) * scale)
        return
    # Columns in runs of eight: one cache line of u per row, one of q per column.
    for first in range(0, columns, PAD):
        last = min(first + PAD, columns)
        for i in range(rows):
            for j in range(first, last):
                q[j * side + i] = np.rint(np.float64(u[i * columns + j]) * scale)


@inlined
def _tile(a, a_at, a_row, a_step, b, b_at, b_step, count, out, at, out_row):
    """out[r, c] += Σₖ a[r, k] · b[k, c] for four rows and eight columns, sums kept in registers; all are pointers."""
    c00, c01 = load(out, at), load(out, at + 4)
    c10, c11 = load(out, at + out_row), load(out, at + out_row + 4)
    c20, c21 = load(out, at + 2 * out_row), load(out, at + 2 * out_row + 4)
    c30, c31 = load(out, at + 3 * out_row), load(out, at + 3 * out_row + 4)
    for k in range(count):
        b0, b1 = load(b, b_at + k * b_step), load(b, b_at + k * b_step + 4)
        left = a_at + k * a_step
        a0, a1 = broadcast(a, left), broadcast(a, left + a_row)
        a2, a3 = broadcast(a, left + 2 * a_row), broadcast(a, left + 3 * a_row)
        c00, c01 = c00 + a0 * b0, c01 + a0 * b1
        c10, c11 = c10 + a1 * b0, c11 + a1 * b1
        c20, c21 = c20 + a2 * b0, c21 + a2 * b1
        c30, c31 = c30 + a3 * b0, c31 + a3 * b1
    store(out, at, c00)
    store(out, at + 4, c01)
    store(out, at + out_row, c10)
    store(out, at + out_row + 4, c11)
    store(out, at + 2 * out_row, c20)
    store(out, at + 2 * out_row + 4, c21)
    store(out, at + 3 * out_row, c30)
    store(out, at + 3 * out_row + 4, c31)


@helper
def symmetric_gram(q, long, side, gram):
    """gram ← Σₙ q[n, i] · q[n, j], flat side × side, from q, flat long × side."""
    gram[:] = 0.0
    x, out = pointer(q), pointer(gram)
    for first in range(0, long, _PANEL):
        count = min(_PANEL, long - first)
        at = first * side
        for i in range(0, side, 4):
            for j in range(i - i % 8, side, 8):
                _tile(x, at + i, 1, side, x, at + j, side, count, out, i * side + j, side)
    for i in range(side):
        for j in range(i):
            gram[i * side + j] = gram[j * side + i]


@helper
def multiply(a, first, rows, b, side, out):
    """out ← rows `first` … of a (… × side) times b (side × side), all flat; `rows` is a multiple of 4."""
    out[: rows * side] = 0.0
    left, right, result = pointer(a), pointer(b), pointer(out)
    for i in range(0, rows, 4):
        for j in range(0, side, 8):
            _tile(left, (first + i) * side, side, 1, right, j, side, side, result, i * side + j, side)


@helper
def _on_grid(x, bits, q):
    """As `specification.on_grid`."""
    exponent = _exponent(x)
    scale = math.ldexp(1.0, bits - exponent)
    for i in range(x.size):
        q[i] = np.rint(x[i] * scale)
    return exponent


@helper
def _exact_product(a, b, out, side, bits, grid_a, grid_b):
    """out ← a · b as `specification.exact_product`; the last two are scratch."""
    exponent = _on_grid(a, bits, grid_a) + _on_grid(b, bits, grid_b)
    scale = math.ldexp(1.0, exponent - 2 * bits)
    multiply(grid_a, 0, side, grid_b, side, out)
    for i in range(out.size):
        out[i] = out[i] * scale


@helper
def _halving_sum(x):
    words = np.zeros(1 << _bit_length(x.size - 1))
    words[: x.size] = x
    count = words.size // 2
    while count:
        for i in range(count):
            words[i] = words[i] + words[count + i]
        count //= 2
    return words[0]


@helper
def iterate(gram, short, side, bits):
    """From the exact Gram matrix of x to what x is multiplied with.

    Args:
        gram: flat side × side, fp64, zero beyond `short`; overwritten.
        short: the short side of the block.
        side: `padded(short)`.
        bits: of the grid of x.

    Returns:
        (q, factor): integers, flat side × side, and the scalar such that factor · (x · q) is the
        orthogonalized matrix with its long side first.
    """
    energy = _halving_sum(gram[:: side + 1][:short])
    if not energy > 0:
        energy = 1.0
    for i in range(gram.size):
        gram[i] = gram[i] / energy
    square, factor = np.empty(side * side), np.empty(side * side)
    product, updated = np.zeros(side * side), np.empty(side * side)
    grid_a, grid_b = np.empty(side * side), np.empty(side * side)
    for i in range(short):
        product[i * side + i] = 1.0
    inner = grid_bits(short)
    for step in range(NEWTON_SCHULZ_STEPS):
        _exact_product(gram, gram, square, side, inner, grid_a, grid_b)
        for i in range(factor.size):
            factor[i] = _B * gram[i] + _C * square[i]
        for i in range(short):
            factor[i * side + i] = _A + factor[i * side + i]
        _exact_product(factor, product, updated, side, inner, grid_a, grid_b)
        product, updated = updated, product
        if step + 1 < NEWTON_SCHULZ_STEPS:
            _exact_product(factor, gram, square, side, inner, grid_a, grid_b)
            _exact_product(square, factor, gram, side, inner, grid_a, grid_b)
    left = 53 - _bit_length(short - 1) - bits
    exponent = _on_grid(product, left, grid_a)
    # x · productᵀ has the long side first: transpose once here.
    for i in range(side):
        for j in range(side):
            grid_b[j * side + i] = grid_a[i * side + j]
    norm = np.float64(math.sqrt(np.float32(energy)))
    return grid_b, math.ldexp(1.0, exponent - left) / norm
