"""Numba kernels for CPUs: decode, update and state sum in one pass over a block's memory.

A kernel walks rows of a block eight elements at a time: it decodes Ĝ in registers, updates every
buffer, and adds the new words to the block's sum. Rows and blocks are independent, so threads may
take any of them in any order.

Rules that keep the bits: fp32 scalars only, one operation per rounding, nothing fused. The kernels
trust their arguments; `optim.elementwise` checks shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload
from torch import Tensor

from hilosync.arithmetic.compilation import INLINED, inlined, kernel
from hilosync.arithmetic.gradient import DenseBlock, LowRankBlock
from hilosync.arithmetic.lanes import (
    LANES,
    absorb,
    broadcast,
    load,
    load_part,
    no_sums,
    pointer,
    prefetch,
    root,
    signed,
    splat,
    store,
    store_part,
    unpack,
)

__all__ = ["adamw_rows", "gradient_arguments", "lion_rows", "muon_momentum", "sgdm_rows", "sum_rows"]

_AHEAD = 2048
"""Elements to prefetch ahead: the CPU's own prefetcher stops at every page of 1,024."""

_LINE = 2 * LANES
"""Elements in a cache line."""

_ZERO = np.float32(0)


def gradient_arguments(part: LowRankBlock | DenseBlock) -> tuple[Any, ...]:
    """Ĝ of a block as the kernels take it, flat: (values), (L, R, scale) for one component, (L, R, scale, k).

    One component is what most blocks get. Numba compiles each kind apart: beside a general loop the CPU's registers
    would not hold what a loop for one component needs.
    """
    if isinstance(part, DenseBlock):
        return (_flat(part.values),)
    rank, factors = part.left.shape[1], (_flat(part.left), _flat(part.right), np.float32(part.scale))
    return factors if rank == 1 else (*factors, rank)


def _flat(tensor: Tensor) -> np.ndarray:
    """In C order whatever its strides: kernels take no notice of those."""
    return np.ascontiguousarray(tensor.numpy()).reshape(-1)


@inlined
def _load(source, at, count):
    return load(source, at) if count == LANES else load_part(source, at, count)


def _opened(ghat) -> Any:
    """Ĝ of a block with pointers for arrays and its scale in eight lanes."""


def _decode(ghat, row, columns, column, count) -> Any:
    """The first `count` of eight elements of an opened Ĝ."""


def _decode_line(ghat, row, columns, column) -> Any:
    """Sixteen elements of it."""


@overload(_opened, jit_options=INLINED)
def _opened_by_kind(ghat):
    if len(ghat) == 1:
        return lambda ghat: (pointer(ghat[0]),)
    if len(ghat) == 3:
        return lambda ghat: (pointer(ghat[0]), pointer(ghat[1]), splat(ghat[2]))
    return lambda ghat: (pointer(ghat[0]), pointer(ghat[1]), splat(ghat[2]), ghat[3])


@overload(_decode, jit_options=INLINED)
def _decode_by_kind(ghat, row, columns, column, count):
    def dense(ghat, row, columns, column, count):
        return _load(ghat[0], row * columns + column, count)

    def single(ghat, row, columns, column, count):
        left, right, scale = ghat
        return scale * (splat(_ZERO) + broadcast(left, row) * _load(right, column, count))

    def several(ghat, row, columns, column, count):
        left, right, scale, rank = ghat
        g = splat(_ZERO)
        for k in range(rank):
            g = g + broadcast(left, row * rank + k) * _load(right, k * columns + column, count)
        return scale * g

    return {1: dense, 3: single, 4: several}[len(ghat)]


@overload(_decode_line, jit_options=INLINED)
def _decode_line_by_kind(ghat, row, columns, column):
    def apart(ghat, row, columns, column):
        return _decode(ghat, row, columns, column, LANES), _decode(ghat, row, columns, column + LANES, LANES)

    def together(ghat, row, columns, column):
        left, right, scale, rank = ghat
        g, h = splat(_ZERO), splat(_ZERO)
        for k in range(rank):
            factor, at = broadcast(left, row * rank + k), k * columns + column
            g = g + factor * load(right, at)
            h = h + factor * load(right, at + LANES)
        return scale * g, scale * h

    return together if len(ghat) == 4 else apart


@inlined
def _block_sum(sums, first, count):
    """What `count` steps of `absorb` add to the block's sum, if `first` steps of other rows precede them.

    Word l of step t is word i = 4 (first + t) + l of `specification.state_sum` and has weight 2i + 1.
    """
    plain, ramped = sums
    eight = np.uint64(8)
    weight = eight * np.uint64(first + count) + np.uint64(1)
    total = np.uint64(0)
    for word, ramp in zip(unpack(plain), unpack(ramped)):  # noqa: B905, Numba knows no strict
        total += weight * word - eight * ramp
        weight += np.uint64(2)
    return total


@inlined
def _rows(update, buffers, columns, first, last, ghat, s):
    """Updates rows `first` … `last` of a block and returns their part of the block's sum.

    Args:
        update: gives the new values of all buffers from the old ones, Ĝ and s, all in eight lanes.
        buffers: a tuple of pointers to where the block begins in the parameters and the slots.
        columns: width of the block.
        first: first row.
        last: one past the last row.
        ghat: Ĝ of the block as `gradient_arguments` gives it.
        s: the scalars of `update`, each in eight lanes.
    """
    ghat = _opened(ghat)
    sums = no_sums()
    lines = columns - columns % _LINE
    whole = columns - columns % LANES
    for row in range(first, last):
        start = row * columns
        # Two at a time, so that each cache line is asked for once.
        for column in range(0, lines, _LINE):
            at = start + column
            prefetch(buffers, at + _AHEAD)
            g, h = _decode_line(ghat, row, columns, column)
            new = update(load(buffers, at), g, s)
            store(buffers, at, new)
            sums = absorb(sums, new)
            at += LANES
            new = update(load(buffers, at), h, s)
            store(buffers, at, new)
            sums = absorb(sums, new)
        if lines < whole:
            at = start + lines
            g = _decode(ghat, row, columns, lines, LANES)
            new = update(load(buffers, at), g, s)
            store(buffers, at, new)
            sums = absorb(sums, new)
        if whole < columns:
            at, rest = start + whole, columns - whole
            g = _decode(ghat, row, columns, whole, rest)
            new = update(load_part(buffers, at, rest), g, s)
            sums = absorb(sums, store_part(buffers, at, rest, new))
    steps = _steps(columns)
    return _block_sum(sums, first * steps, (last - first) * steps)


@inlined
def _steps(columns):
    """Steps of `absorb` per row."""
    return (columns + LANES - 1) // LANES


@inlined
def _adamw(buffers, g, s):
    p, m, v = buffers
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    p = decay * p - step_size * (m / (root(v) + epsilon))
    return p, m, v


@kernel
def adamw_rows(p, m, v, start, columns, first, last, ghat, s):
    """AdamW on rows `first` … `last` of the block at `start`; returns their part of the block's sum.

    p, m and v are whole and flat, s has the scalars of `specification.adamw`; the rest is as of `_rows`.
    """
    buffers = pointer(p[start:]), pointer(m[start:]), pointer(v[start:])
    s = splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4]), splat(s[5]), splat(s[6])
    return _rows(_adamw, buffers, columns, first, last, ghat, s)


@inlined
def _lion(buffers, g, s):
    p, m = buffers
    decay, rate, beta1, rest1, beta2, rest2 = s
    c = beta1 * m + rest1 * g
    p = decay * p - signed(c, rate)
    m = beta2 * m + rest2 * g
    return p, m


@kernel
def lion_rows(p, m, start, columns, first, last, ghat, s):
    """Lion; arguments as of `adamw_rows`, scalars as of `specification.lion`."""
    buffers = pointer(p[start:]), pointer(m[start:])
    s = splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4]), splat(s[5])
    return _rows(_lion, buffers, columns, first, last, ghat, s)


@inlined
def _sgdm(buffers, g, s):
    p, m = buffers
    decay, rate, momentum, x, y = s
    m = momentum * m + g
    p = decay * p - rate * (x * g + y * m)
    return p, m


@kernel
def sgdm_rows(p, m, start, columns, first, last, ghat, s):
    """SGD with momentum; arguments as of `adamw_rows`, scalars as of `specification.sgdm`."""
    buffers = pointer(p[start:]), pointer(m[start:])
    s = splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3]), splat(s[4])
    return _rows(_sgdm, buffers, columns, first, last, ghat, s)


@inlined
def _muon_momentum(buffers, g, s):
    m, _ = buffers
    momentum, rest, x, y = s
    m = momentum * m + rest * g
    return m, x * g + y * m


@kernel
def muon_momentum(m, u, start, rows, columns, ghat, s):
    """Momentum of Muon on a whole block; u (flat, the block alone) receives what is orthogonalized.

    Other arguments as of `adamw_rows`, scalars as of `specification.muon_momentum`.
    """
    buffers = pointer(m[start:]), pointer(u)
    s = splat(s[2]), splat(s[3]), splat(s[4]), splat(s[5])
    _rows(_muon_momentum, buffers, columns, 0, rows, ghat, s)


@kernel
def sum_rows(p, m, start, columns, first, last):
    """What rows `first` … `last` of the block at `start` add to its sum, for parameters and one slot."""
    buffers = pointer(p[start:]), pointer(m[start:])
    sums = no_sums()
    whole = columns - columns % LANES
    for row in range(first, last):
        for column in range(0, whole, LANES):
            sums = absorb(sums, load(buffers, row * columns + column))
        if whole < columns:
            sums = absorb(sums, load_part(buffers, row * columns + whole, columns - whole))
    steps = _steps(columns)
    return _block_sum(sums, first * steps, (last - first) * steps)
