"""Numba kernels for CPUs: decode, update and state sum in one pass over a block's memory.

A kernel walks a block's rows in tiles small enough for the first-level cache: it decodes a tile of Ĝ
into `tile`, updates that part of every buffer and adds to the block's sum. Tiles and blocks are
independent, so threads may take any of them in any order.

Rules that keep the bits: no `fastmath` (it would fuse multiply and add), fp32 scalars only, one
operation per rounding. `error_model="numpy"` only removes the check for division by zero, without
which LLVM cannot vectorize.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from hilosync.arithmetic.specification import BUFFER_MASKS, WEIGHT

__all__ = ["TILE", "adamw_rows"]

TILE = 4096
"""Elements of Ĝ decoded at a time (16 KB)."""

_jit = numba.njit(error_model="numpy", cache=True, nogil=True)

_STRIDE = np.uint64(2 * WEIGHT)
_ORIGIN = np.uint64(WEIGHT)
_LOW = np.uint64(0xFFFFFFFF)
_MASK1 = np.uint64(BUFFER_MASKS[1])
_MASK2 = np.uint64(BUFFER_MASKS[2])


@_jit
def _decode_tile(left, right, scale, dense, row, height, column, width, tile):
    """Ĝ[row : row + height, column : column + width] into the front of `tile`, row by row.

    `dense` is the block's values, or empty for a low-rank block. Ranks are taken four at a time so
    that a partial sum stays in a register; the order over k is that of the specification.
    """
    if dense.size:
        for i in range(height):
            for j in range(width):
                tile[i * width + j] = dense[row + i, column + j]
        return
    rank = left.shape[1]
    zero = np.float32(0)
    for i in range(height):
        out = tile[i * width : (i + 1) * width]
        k = rank % 4
        if k == 0:
            for j in range(width):
                out[j] = zero
        elif k == 1:
            l0, r0 = left[row + i, 0], right[0, column : column + width]
            for j in range(width):
                out[j] = zero + l0 * r0[j]
        elif k == 2:
            l0, r0 = left[row + i, 0], right[0, column : column + width]
            l1, r1 = left[row + i, 1], right[1, column : column + width]
            for j in range(width):
                out[j] = (zero + l0 * r0[j]) + l1 * r1[j]
        else:
            l0, r0 = left[row + i, 0], right[0, column : column + width]
            l1, r1 = left[row + i, 1], right[1, column : column + width]
            l2, r2 = left[row + i, 2], right[2, column : column + width]
            for j in range(width):
                out[j] = ((zero + l0 * r0[j]) + l1 * r1[j]) + l2 * r2[j]
        while k < rank:
            l0, r0 = left[row + i, k], right[k, column : column + width]
            l1, r1 = left[row + i, k + 1], right[k + 1, column : column + width]
            l2, r2 = left[row + i, k + 2], right[k + 2, column : column + width]
            l3, r3 = left[row + i, k + 3], right[k + 3, column : column + width]
            for j in range(width):
                out[j] = (((out[j] + l0 * r0[j]) + l1 * r1[j]) + l2 * r2[j]) + l3 * r3[j]
            k += 4
    count = height * width
    for j in range(count):
        tile[j] = scale * tile[j]


@_jit
def _bits(x):
    return np.uint64(np.float32(x).view(np.uint32))


@_jit
def _adamw_tile(p, m, v, g, position, s):
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s[0], s[1], s[2], s[3], s[4], s[5], s[6]
    origin = _ORIGIN + np.uint64(position) * _STRIDE
    total = np.uint64(0)
    for i in range(p.size):
        gi = g[i]
        mi = beta1 * m[i] + rest1 * gi
        vi = beta2 * v[i] + rest2 * (gi * gi)
        pi = decay * p[i] - step_size * (mi / (math.sqrt(vi) + epsilon))
        p[i], m[i], v[i] = pi, mi, vi
        w = (origin + np.uint64(i) * _STRIDE) & _LOW
        total += _bits(pi) * w + _bits(mi) * (w ^ _MASK1) + _bits(vi) * (w ^ _MASK2)
    return total


@_jit
def adamw_rows(p, m, v, start, columns, first, last, left, right, scale, dense, s, tile):
    """Rows `first` … `last` of the block at `start`; returns their part of the block's sum."""
    width = min(columns, TILE)
    height = max(1, TILE // width)
    total = np.uint64(0)
    for row in range(first, last, height):
        for column in range(0, columns, width):
            h, w = min(height, last - row), min(width, columns - column)
            _decode_tile(left, right, scale, dense, row, h, column, w, tile)
            position = row * columns + column
            a, b = start + position, start + position + h * w
            total += _adamw_tile(p[a:b], m[a:b], v[a:b], tile[: h * w], position, s)
    return total
