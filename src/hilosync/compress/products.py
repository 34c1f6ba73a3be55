"""Products of a block with a few vectors on the CPU, in one visit of its memory: its projections.

A block is given as the gradient G and the residual E that add up to it, M = E + factor·G; their sum is made
where it is needed, in the innermost cache. Long sums are reordered: this is the encoder's side, whose rounding
is free. Those of E are not, since E and G may cancel. Squares are summed in fp32 over some thousand elements
and in fp64 beyond; where they leave fp32's range, the caller sees a sum that is not a plausible one and looks
again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np

from hilosync.arithmetic.compilation import kernel
from hilosync.compress.tiles import TILE_COLUMNS, TILE_ROWS, WIDTH, multiply, multiply_tiles

__all__ = ["energy", "low_rank_factors", "project"]

_RUN = 2048
"""Elements that stay in the innermost cache while they are worked on."""

_FEW_OF_WIDE, _FEW_OF_TALL = 4, 8
"""Components up to which tiles are not worth it."""

_ROWS = 64
"""Rows of a tall block that are multiplied together."""

_SPAN, _STRIDE = 1024, 1040
"""Columns of a wide block that are multiplied together, and numbers from row to row of them: not a power of two,
since the innermost cache holds few lines so far apart."""

_fast: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})
_kernel: Any = partial(kernel, fastmath={"reassoc", "contract", "nsz"})


@_fast
def _add(G, E, factor, out):
    for j in range(len(out)):
        out[j] = E[j] + factor * G[j]


@_fast
def _project_rows(P, G, E, factor, V):
    rows = np.empty((4, _RUN), np.float32)
    for start in range(0, G.shape[1], _RUN):
        end = min(start + _RUN, G.shape[1])
        V[:, start:end] = 0
        for i in range(0, len(G), 4):
            count = min(4, len(G) - i)
            for row in range(count):
                _add(G[i + row, start:end], E[i + row, start:end], factor, rows[row, : end - start])
            m0, m1, m2, m3 = rows
            for c in range(len(P)):
                v = V[c, start:end]
                if count == 4:
                    p0, p1, p2, p3 = P[c, i], P[c, i + 1], P[c, i + 2], P[c, i + 3]
                    for j in range(len(v)):
                        v[j] += p0 * m0[j] + p1 * m1[j] + p2 * m2[j] + p3 * m3[j]
                else:
                    for row in range(count):
                        for j in range(len(v)):
                            v[j] += P[c, i + row] * rows[row, j]


@_fast
def _project_columns(P, G, E, factor, V):
    row = np.empty(G.shape[1], np.float32)
    whole = len(P) // 4 * 4
    for i in range(len(G)):
        _add(G[i], E[i], factor, row)
        for c in range(0, whole, 4):
            v0 = v1 = v2 = v3 = np.float32(0)
            for j in range(len(row)):
                v0 += P[c, j] * row[j]
                v1 += P[c + 1, j] * row[j]
                v2 += P[c + 2, j] * row[j]
                v3 += P[c + 3, j] * row[j]
            V[i, c], V[i, c + 1], V[i, c + 2], V[i, c + 3] = v0, v1, v2, v3
        for c in range(whole, len(P)):
            total = np.float32(0)
            for j in range(len(row)):
                total += P[c, j] * row[j]
            V[i, c] = total


@_fast
def _project_rows_by_tiles(P, G, E, factor, V):
    (k, r), n = P.shape, V.shape[1]
    sums, end = np.empty((r, _STRIDE), np.float32), np.empty((k, _SPAN), np.float32)
    left, right, out, last = P.ctypes.data, sums.ctypes.data, V.ctypes.data, end.ctypes.data
    for start in range(0, n, _SPAN):
        count = min(_SPAN, n - start)
        for i in range(r):
            _add(G[i, start : start + count], E[i, start : start + count], factor, sums[i, :count])
        if count % WIDTH:
            width = (count // WIDTH + 1) * WIDTH
            sums[:, count:width] = 0
            multiply(left, 4 * r, right, 4 * _STRIDE, k, r, width, last, 4 * _SPAN)
            V[:, start:] = end[:, :count]
        else:
            multiply(left, 4 * r, right, 4 * _STRIDE, k, r, count, out + 4 * start, 4 * n)


@_fast
def _project_columns_by_tiles(P, G, E, factor, V):
    (k, r), n = P.shape, len(G)
    width = (k + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS
    right, out, sums = (
        np.zeros((r, width), np.float32),
        np.empty((_ROWS, width), np.float32),
        np.zeros((_ROWS, r), np.float32),
    )
    right[:, :k] = P.T
    for start in range(0, n, _ROWS):
        # Not before the loop: an array is freed after its last use, and to use its address is none.
        places = sums.ctypes.data, 4 * r, right.ctypes.data, 4 * width
        count = min(_ROWS, n - start)
        _add(
            G[start : start + count].reshape(-1), E[start : start + count].reshape(-1), factor, sums[:count].reshape(-1)
        )
        multiply_tiles(*places, (count + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS, r, width, out.ctypes.data, 4 * width)
        for c in range(k):
            for i in range(count):
                V[c, start + i] = out[i, c]


@_fast
def _project_wide(P, G, E, factor, V):
    if len(P) > _FEW_OF_WIDE:
        _project_rows_by_tiles(P, G, E, factor, V)
    else:
        _project_rows(P, G, E, factor, V)


@_kernel
def project(P, G, E, factor):
    """V = P·M with the short side of M first, fp32, shape (k, n).

    Args:
        P: fp32, C order, shape (k, r) for a small k.
        G, E: blocks of one shape, fp32, C order, shape (r, n) or (n, r) with r ≤ n.
        factor: an fp32 value.
    """
    V = np.empty((len(P), max(G.shape)), np.float32)
    if G.shape[0] <= G.shape[1]:
        _project_wide(P, G, E, factor, V)
    elif len(P) > _FEW_OF_TALL:
        _project_columns_by_tiles(P, G, E, factor, V)
    else:
        _project_columns(P, G, E, factor, V.T)
    return V


@_kernel
def low_rank_factors(bases, ranks, G, E, factor, offsets, columns, out):
    """The factors U·Uᵀ·M = left·right of some blocks, one after another: U and UᵀM, or for a tall block MU and Uᵀ.

    Args:
        bases: Uᵀ (k×r) of one block after another, flat, fp32.
        ranks: k of each block, int64, shape (blocks,).
        G, E: flat, fp32, C order, of one shape; M = E + factor·G.
        factor: an fp32 value.
        offsets: where the blocks begin in G and E, and the end of the last, int64, shape (blocks + 1,).
        columns: of each block, int64, shape (blocks,).
        out: per block its left factor (rows×k) and its right one (k×columns), flat, fp32.
    """
    basis = start = 0
    for b in range(len(columns)):
        k = ranks[b]
        run = slice(offsets[b], offsets[b + 1])
        shape = ((offsets[b + 1] - offsets[b]) // columns[b], columns[b])
        if k:
            P = bases[basis : basis + k * min(shape)].reshape((k, min(shape)))
            middle = start + shape[0] * k
            left = out[start:middle].reshape((shape[0], k))
            right = out[middle : middle + k * shape[1]].reshape((k, shape[1]))
            blocks = G[run].reshape(shape), E[run].reshape(shape)
            if shape[0] > shape[1]:
                _project_columns(P, *blocks, factor, left)
                right[:] = P
            else:
                left[:] = P.T
                _project_wide(P, *blocks, factor, right)
        basis += k * min(shape)
        start += k * (shape[0] + shape[1])


@_fast
def _sum_of_squares(values):
    total = np.float32(0)
    for j in range(len(values)):
        total += values[j] * values[j]
    return total


@_kernel
def energy(values):
    """‖values‖² of a flat fp32 array."""
    total = 0.0
    for start in range(0, len(values), _RUN):
        total += _sum_of_squares(values[start : start + _RUN])
    return total
