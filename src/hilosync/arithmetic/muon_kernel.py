"""Muon on one block once its momentum is up to date: Newton–Schulz, update and state sum in a single Numba call."""

from __future__ import annotations

import numpy as np

from hilosync.arithmetic.compilation import kernel
from hilosync.arithmetic.kernels import sum_rows
from hilosync.arithmetic.newton_schulz import grid_bits, iterate, long_grid, multiply, padded, symmetric_gram
from hilosync.plan import Block

__all__ = ["muon_block", "scratch_sizes"]

_PANEL = 64


def scratch_sizes(blocks: tuple[Block, ...]) -> tuple[int, int]:
    """Elements of the largest u (fp32) and q (fp64) that `muon_block` needs for any of the blocks."""
    pads = [padded(max(block.rows, block.columns)) * padded(min(block.rows, block.columns)) for block in blocks]
    return max(block.size for block in blocks), max(pads)


@kernel
def muon_block(p, m, start, rows, columns, s, ratio, u, q):
    """Muon on the block at `start`; returns the block's state sum.

    Args:
        p: parameters, flat fp32; likewise the slot m.
        start: where the block begins in them.
        rows: of the block; likewise `columns`.
        s: the scalars of `specification.muon_momentum`, fp32.
        ratio: of the step to the learning rate for this shape, fp32.
        u: what is orthogonalized, flat fp32, at least rows · columns.
        q: scratch, fp64, at least padded(long side) · padded(short side).
    """
    u = u[: rows * columns]
    long, short = max(rows, columns), min(rows, columns)
    side, deep = padded(short), padded(long)
    bits = grid_bits(long)
    q = q[: deep * side]
    long_grid(u, rows, columns, bits, q, side)
    gram = np.empty(side * side)
    symmetric_gram(q, deep, side, gram)
    product, factor = iterate(gram, short, side, bits)

    decay, rate = s[0], s[1] * ratio
    tile = np.empty(_PANEL * side)
    for first in range(0, deep, _PANEL):
        count = min(_PANEL, deep - first)
        multiply(q, first, count, product, side, tile)
        here = min(count, long - first)
        if rows > columns:
            for i in range(here):
                at = start + (first + i) * columns
                for j in range(short):
                    p[at + j] = decay * p[at + j] - rate * np.float32(factor * tile[i * side + j])
        else:
            for j in range(short):
                at = start + j * columns + first
                for i in range(here):
                    p[at + i] = decay * p[at + i] - rate * np.float32(factor * tile[i * side + j])
    return sum_rows(p, m, start, columns, 0, rows)
