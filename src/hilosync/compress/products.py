"""Products of a block with a few vectors on the CPU, in one visit of its memory: projections and low-rank corrections.

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
from hilosync.compress.tiles import WIDTH, multiply

__all__ = ["energy", "low_rank_factors", "project", "replace_residual"]

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


@_in_order
def _remaining(keep, old, factor, new, scale, product):
    return keep * old + factor * new - scale * product


@_fast
def _combine(G, E, factor, keep, scale, product):
    sent, left = np.float32(0), np.float32(0)
    for j in range(len(E)):
        total = _remaining(keep, E[j], factor, G[j], scale, product[j])
        E[j] = total
        sent += G[j] * G[j]
        left += total * total
    return sent, left


@_helper
def _padded(right, memory):
    """The same with zeros as further columns, up to a multiple of `WIDTH`."""
    k, columns = right.shape
    width = (columns + WIDTH - 1) // WIDTH * WIDTH
    out = memory[: k * width].reshape((k, width))
    out[:, :columns] = right
    out[:, columns:] = 0
    return out


@_helper
def _replace(G, E, factor, keep, scale, left, right, memory, product):
    rows, columns = G.shape
    gradient, residual = G.reshape(-1), E.reshape(-1)
    k, squares, kept = left.shape[1], 0.0, 0.0
    if columns % WIDTH:
        right = _padded(right, memory)
    strip = min(right.shape[1], _RUN)
    # Rows that lie in a strip as a whole follow each other without a gap.
    together = strip == columns
    height = len(product) // strip
    for i in range(0, rows, height):
        end = min(i + height, rows)
        for j in range(0, columns, strip):
            width = min(strip, right.shape[1] - j)
            if k:
                place = left.ctypes.data + 4 * k * i, 4 * k, right.ctypes.data + 4 * j, 4 * right.shape[1]
                multiply(*place, end - i, k, width, product.ctypes.data, 4 * strip)
            else:
                product[:] = 0
            step = end - i if together else 1
            for row in range(i, end, step):
                start = row * columns + j
                run = slice(start, start + (step * columns if together else min(strip, columns - j)))
                more, remaining = _combine(
                    gradient[run], residual[run], factor, keep, scale, product[(row - i) * strip :]
                )
                squares += more
                kept += remaining
    return squares, kept


@_kernel
def replace_residual(
    G, E, factor, keep, offsets, columns, ranks, scales, lefts, left_starts, rights, right_starts, sent, kept
):
    """E ← keep·E + factor·G − scale·left·right of some blocks, in place, with the energies of G and of the new E.

    Args:
        G, E: flat, fp32, C order, of one shape.
        factor, keep: fp32 values.
        offsets: where the blocks begin in G and E, and the end of the last, int64, shape (blocks + 1,).
        columns: of each block, int64, shape (blocks,).
        ranks: k of each block, int64, shape (blocks,); blocks of a negative one stay as they are.
        scales: of each block's product, fp32, shape (blocks,).
        lefts: flat, fp32, holds the (rows, k) of each block.
        left_starts: where they begin, int64, shape (blocks,).
        rights, right_starts: likewise, the (k, columns).
        sent: ‖G‖² of each block afterwards, fp64, shape (blocks,).
        kept: the same of E.
    """
    longest = 0
    for b in range(len(columns)):
        longest = max(longest, max(ranks[b], 0) * (columns[b] + WIDTH) if columns[b] % WIDTH else 0)
    memory, product = np.empty(longest, np.float32), np.empty(4 * _RUN, np.float32)
    for b in range(len(columns)):
        k = ranks[b]
        if k < 0:
            continue
        run = slice(offsets[b], offsets[b + 1])
        shape = ((offsets[b + 1] - offsets[b]) // columns[b], columns[b])
        left, right = left_starts[b], right_starts[b]
        factors = (
            lefts[left : left + shape[0] * k].reshape((shape[0], k)),
            rights[right : right + k * shape[1]].reshape((k, shape[1])),
        )
        sent[b], kept[b] = _replace(
            G[run].reshape(shape), E[run].reshape(shape), factor, keep, scales[b], *factors, memory, product
        )


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
