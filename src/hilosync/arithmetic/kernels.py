"""Numba kernels for CPUs: decode, update and state sum in one pass over a block's memory.

A kernel walks rows of a block eight elements at a time: it decodes Ĝ in registers, updates every
buffer, and adds the new words to the block's sum. Rows and blocks are independent, so threads may
take any of them in any order.

Rules that keep the bits: fp32 scalars only, one operation per rounding, nothing fused. The kernels
trust their arguments; `optim.elementwise` checks shapes.
"""

from __future__ import annotations

import numpy as np

from hilosync.arithmetic.compilation import inlined, kernel
from hilosync.arithmetic.lanes import (
    LANES,
    advance,
    broadcast,
    load,
    pointer,
    position_words,
    prefetch,
    root,
    signed,
    splat,
    store,
    total,
    weigh,
)
from hilosync.arithmetic.specification import WEIGHT, buffer_weight

__all__ = ["adamw_rows", "lion_rows", "muon_momentum", "sgdm_rows", "word_sum"]

_ORIGIN = np.uint64(WEIGHT)
_STRIDE = np.uint64(2 * WEIGHT)
_ADVANCE = np.uint64(2 * WEIGHT * LANES)
_AHEAD = 2048
"""Elements to prefetch ahead: the CPU's own prefetcher stops at every page of 1,024."""

_LOW = np.uint64(0xFFFFFFFF)
_ZERO = np.float32(0)
_NOTHING = np.uint64(0)
_SLOT1 = np.uint64(buffer_weight(1))
_SLOT2 = np.uint64(buffer_weight(2))


@inlined
def _decode_lanes(left, right, rank, scale, dense, row, columns, column):
    """Eight elements of Ĝ; rank −1 stands for a dense block. L, R and the values come as pointers."""
    if rank < 0:
        return load(dense, row * columns + column)
    g = splat(_ZERO)
    if rank > 0:
        g = g + broadcast(left, row * rank) * load(right, column)
        for k in range(1, rank):
            g = g + broadcast(left, row * rank + k) * load(right, k * columns + column)
    return scale * g


@inlined
def _decode(left, right, rank, scale, dense, row, columns, column):
    """One element of Ĝ, as `_decode_lanes`."""
    if rank < 0:
        return dense[row * columns + column]
    g = _ZERO
    for k in range(rank):
        g = g + left[row * rank + k] * right[k * columns + column]
    return scale * g


@inlined
def _weigh(x, position):
    """The word of one fp32 value times its position's weight."""
    word = np.uint64(np.float32(x).view(np.uint32))
    return word * ((_ORIGIN + np.uint64(position) * _STRIDE) & _LOW)


@inlined
def _adamw(p, m, v, g, s):
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    p = decay * p - step_size * (m / (root(v) + epsilon))
    return p, m, v


@kernel
def adamw_rows(p, m, v, start, columns, first, last, left, right, rank, scale, dense, s):
    """AdamW on rows `first` … `last` of the block at `start`; returns their part of the block's sum.

    Args:
        p: parameters, flat fp32; likewise the slots m and v.
        start: where the block begins in them.
        columns: width of the block.
        first: first row.
        last: one past the last row.
        left: L of the block, flat, or empty; likewise `right`, R.
        rank: k of the block, −1 for a dense one.
        scale: fp32.
        dense: values of a dense block, flat, or empty.
        s: the scalars of `specification.adamw`, fp32.
    """
    one = (s[0], s[1], s[2], s[3], s[4], s[5], s[6])
    all8 = (splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4]), splat(s[5]), splat(s[6]))
    scale8 = splat(scale)
    left, right, dense = pointer(left), pointer(right), pointer(dense)
    sum_p, _ = position_words(_NOTHING, _NOTHING)
    sum_m, sum_v = sum_p, sum_p
    end_p, end_m, end_v = _NOTHING, _NOTHING, _NOTHING
    whole = columns - columns % LANES
    for row in range(first, last):
        even, odd = position_words(_ORIGIN + np.uint64(row * columns) * _STRIDE, _STRIDE)
        for column in range(0, whole, LANES):
            at = start + row * columns + column
            prefetch(p, at + _AHEAD)
            prefetch(m, at + _AHEAD)
            prefetch(v, at + _AHEAD)
            g = _decode_lanes(left, right, rank, scale8, dense, row, columns, column)
            pi, mi, vi = _adamw(load(p, at), load(m, at), load(v, at), g, all8)
            store(p, at, pi)
            store(m, at, mi)
            store(v, at, vi)
            sum_p = weigh(sum_p, pi, even, odd)
            sum_m = weigh(sum_m, mi, even, odd)
            sum_v = weigh(sum_v, vi, even, odd)
            even, odd = advance(even, _ADVANCE), advance(odd, _ADVANCE)
        for column in range(whole, columns):
            at = start + row * columns + column
            g = _decode(left, right, rank, scale, dense, row, columns, column)
            p[at], m[at], v[at] = _adamw(p[at], m[at], v[at], g, one)
            end_p += _weigh(p[at], at - start)
            end_m += _weigh(m[at], at - start)
            end_v += _weigh(v[at], at - start)
    return total(sum_p) + end_p + _SLOT1 * (total(sum_m) + end_m) + _SLOT2 * (total(sum_v) + end_v)


@inlined
def _lion(p, m, g, s):
    decay, rate, beta1, rest1, beta2, rest2 = s
    c = beta1 * m + rest1 * g
    p = decay * p - signed(c, rate)
    m = beta2 * m + rest2 * g
    return p, m


@kernel
def lion_rows(p, m, start, columns, first, last, left, right, rank, scale, dense, s):
    """Lion; arguments as of `adamw_rows`, scalars as of `specification.lion`."""
    one = (s[0], s[1], s[2], s[3], s[4], s[5])
    all8 = (splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4]), splat(s[5]))
    scale8 = splat(scale)
    left, right, dense = pointer(left), pointer(right), pointer(dense)
    sum_p, _ = position_words(_NOTHING, _NOTHING)
    sum_m = sum_p
    end_p, end_m = _NOTHING, _NOTHING
    whole = columns - columns % LANES
    for row in range(first, last):
        even, odd = position_words(_ORIGIN + np.uint64(row * columns) * _STRIDE, _STRIDE)
        for column in range(0, whole, LANES):
            at = start + row * columns + column
            prefetch(p, at + _AHEAD)
            prefetch(m, at + _AHEAD)
            g = _decode_lanes(left, right, rank, scale8, dense, row, columns, column)
            pi, mi = _lion(load(p, at), load(m, at), g, all8)
            store(p, at, pi)
            store(m, at, mi)
            sum_p, sum_m = weigh(sum_p, pi, even, odd), weigh(sum_m, mi, even, odd)
            even, odd = advance(even, _ADVANCE), advance(odd, _ADVANCE)
        for column in range(whole, columns):
            at = start + row * columns + column
            g = _decode(left, right, rank, scale, dense, row, columns, column)
            p[at], m[at] = _lion(p[at], m[at], g, one)
            end_p += _weigh(p[at], at - start)
            end_m += _weigh(m[at], at - start)
    return total(sum_p) + end_p + _SLOT1 * (total(sum_m) + end_m)


@inlined
def _sgdm(p, m, g, s):
    decay, rate, momentum, x, y = s
    m = momentum * m + g
    p = decay * p - rate * (x * g + y * m)
    return p, m


@kernel
def sgdm_rows(p, m, start, columns, first, last, left, right, rank, scale, dense, s):
    """SGD with momentum; arguments as of `adamw_rows`, scalars as of `specification.sgdm`."""
    one = (s[0], s[1], s[2], s[3], s[4])
    all8 = (splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4]))
    scale8 = splat(scale)
    left, right, dense = pointer(left), pointer(right), pointer(dense)
    sum_p, _ = position_words(_NOTHING, _NOTHING)
    sum_m = sum_p
    end_p, end_m = _NOTHING, _NOTHING
    whole = columns - columns % LANES
    for row in range(first, last):
        even, odd = position_words(_ORIGIN + np.uint64(row * columns) * _STRIDE, _STRIDE)
        for column in range(0, whole, LANES):
            at = start + row * columns + column
            prefetch(p, at + _AHEAD)
            prefetch(m, at + _AHEAD)
            g = _decode_lanes(left, right, rank, scale8, dense, row, columns, column)
            pi, mi = _sgdm(load(p, at), load(m, at), g, all8)
            store(p, at, pi)
            store(m, at, mi)
            sum_p, sum_m = weigh(sum_p, pi, even, odd), weigh(sum_m, mi, even, odd)
            even, odd = advance(even, _ADVANCE), advance(odd, _ADVANCE)
        for column in range(whole, columns):
            at = start + row * columns + column
            g = _decode(left, right, rank, scale, dense, row, columns, column)
            p[at], m[at] = _sgdm(p[at], m[at], g, one)
            end_p += _weigh(p[at], at - start)
            end_m += _weigh(m[at], at - start)
    return total(sum_p) + end_p + _SLOT1 * (total(sum_m) + end_m)


@kernel
def muon_momentum(m, u, start, rows, columns, left, right, rank, scale, dense, s):
    """Momentum of Muon on a whole block; u (flat, the block alone) receives what is orthogonalized.

    Other arguments as of `adamw_rows`, scalars as of `specification.muon_momentum`. Returns the word
    sum of m.
    """
    momentum, rest, x, y = s[2], s[3], s[4], s[5]
    momentum8, rest8, x8, y8 = splat(momentum), splat(rest), splat(x), splat(y)
    scale8 = splat(scale)
    left, right, dense = pointer(left), pointer(right), pointer(dense)
    sum_m, _ = position_words(_NOTHING, _NOTHING)
    end_m = _NOTHING
    whole = columns - columns % LANES
    for row in range(rows):
        even, odd = position_words(_ORIGIN + np.uint64(row * columns) * _STRIDE, _STRIDE)
        for column in range(0, whole, LANES):
            at = row * columns + column
            g = _decode_lanes(left, right, rank, scale8, dense, row, columns, column)
            mi = momentum8 * load(m, start + at) + rest8 * g
            store(m, start + at, mi)
            store(u, at, x8 * g + y8 * mi)
            sum_m = weigh(sum_m, mi, even, odd)
            even, odd = advance(even, _ADVANCE), advance(odd, _ADVANCE)
        for column in range(whole, columns):
            at = row * columns + column
            g = _decode(left, right, rank, scale, dense, row, columns, column)
            mi = momentum * m[start + at] + rest * g
            m[start + at] = mi
            u[at] = x * g + y * mi
            end_m += _weigh(mi, at)
    return total(sum_m) + end_m


@kernel
def word_sum(x, start, count):
    """Σ w(i) bits(i) mod 2⁶⁴ of the block of `count` elements at `start`."""
    words, _ = position_words(_NOTHING, _NOTHING)
    even, odd = position_words(_ORIGIN, _STRIDE)
    whole = count - count % LANES
    for i in range(0, whole, LANES):
        words = weigh(words, load(x, start + i), even, odd)
        even, odd = advance(even, _ADVANCE), advance(odd, _ADVANCE)
    end = _NOTHING
    for i in range(whole, count):
        end += _weigh(x[start + i], i)
    return total(words) + end
