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

__all__ = ["energy", "low_rank_factors", "project"]

_RUN = 2048
"""Elements that stay in the innermost cache while they are worked on."""

_helper: Any = numba.njit(error_model="numpy", nogil=True)
_fast: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})
_in_order: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"contract"})
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


@_kernel
def project(P, G, E, factor):
    """V = P·M with the short side of M first, fp32, shape (k, n).

    Args:
        P: fp32, C order, shape (k, r) for a small k.
        G, E: blocks of one shape, fp32, C order, shape (r, n) or (n, r) with r ≤ n.
        factor: an fp32 value.
    """
    V = np.empty((len(P), max(G.shape)), np.float32)
    if G.shape[0] > G.shape[1]:
        _project_columns(P, G, E, factor, V.T)
    else:
        _project_rows(P, G, E, factor, V)
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
                _project_rows(P, *blocks, factor, right)
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
