"""K = M·Mᵀ of wide blocks, whose rows are long: inner products of rows, of a sum that is nowhere stored.

Spans of 1024 columns of E + factor·G are rounded to integers (`integers`), each row with a unit of its own, and the
products of three rows with three stay in registers over a span. Only tiles that meet the lower triangle are
computed. Between tiles of a span the rows of the next one are rounded, of the same block or of the next, after they
were fetched some tiles before: rows a power of two apart would drive each other out of the cache in a larger number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper
from hilosync.compress.integers import PAIRS, fetch, products, round_run, same
from hilosync.compress.vectors import FLOAT, FREE_ORDER, LANES, VECTOR, WORD, everywhere, load, mask, pointer, store

__all__ = ["wide_grams"]

_SPAN = 1024
"""Columns that are rounded together: as many products as a lane's sum can hold."""

_ROW = 2 * _SPAN
"""Bytes of a row of a span, of 16-bit integers."""

_TILE = 3
"""Rows and columns of a tile: its nine sums and what they are made of take most of sixteen registers."""

_STRIP = 12
"""Rows that stay in the innermost cache while all others pass."""

_STEP, _LINE = 16, 64
"""Columns that are multiplied at once, and bytes of a line of cache, which is fetched meanwhile."""

_LEAD = 8
"""Tiles between fetching a row and rounding it."""

_MARGIN = 3
"""Rows and columns that tiles touch beyond the last."""

_FOUR = ir.VectorType(FLOAT, 4)

_intrinsic: Any = intrinsic


def _neighbours(build: Any, a: Any, b: Any) -> Any:
    """Sums of neighbouring lanes, of a and b by turns in each half."""
    even, odd = (
        build.shuffle_vector(a, b, mask([o, 2 + o, 8 + o, 10 + o, 4 + o, 6 + o, 12 + o, 14 + o])) for o in (0, 1)
    )
    return build.fadd(even, odd, flags=FREE_ORDER)


@_intrinsic
def _multiply_add(
    context: Any,
    out: Any,
    out_row: Any,
    left: Any,
    right: Any,
    left_units: Any,
    right_units: Any,
    steps: Any,
    ahead: Any,
) -> Any:
    """out[j, i] ← out[j, i] + units of i and j·Σ_k left[i, k]·right[j, k] for 3 rows i and 3 rows j.

    Addresses and strides are in bytes; k runs over `steps` · 16 columns. As many lines of cache are fetched
    from `ahead` on.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        out, out_row, left, right, left_units, right_units, steps, ahead = arguments
        sums = [[cgutils.alloca_once_value(build, same(0)) for _ in range(_TILE)] for _ in range(_TILE)]
        with cgutils.for_range(build, steps) as loop:
            place = build.mul(loop.index, WORD(4 * LANES))
            fetch(build, build.add(ahead, build.mul(loop.index, WORD(_LINE // 2))))
            others = [load(build, right, build.add(place, WORD(_ROW * j)), PAIRS) for j in range(_TILE)]
            for i in range(_TILE):
                factor = load(build, left, build.add(place, WORD(_ROW * i)), PAIRS)
                for column, other in zip(sums, others, strict=True):
                    build.store(build.add(build.load(column[i]), products(build, factor, other)), column[i])
        units, nothing = load(build, left_units, WORD(0), _FOUR), ir.Constant(VECTOR, [0.0] * LANES)
        for j, column in enumerate(sums):
            a, b, c = (build.sitofp(build.load(total), VECTOR) for total in column)
            lanes = _neighbours(build, _neighbours(build, a, b), _neighbours(build, c, nothing))
            unit = everywhere(build, build.load(pointer(build, right_units, WORD(4 * j), FLOAT)))
            lanes = build.fmul(lanes, unit, flags=FREE_ORDER)
            halves = [build.shuffle_vector(lanes, lanes, mask([*range(h, h + 4)])) for h in (0, 4)]
            more = build.fmul(build.fadd(*halves, flags=FREE_ORDER), units, flags=FREE_ORDER)
            place = build.mul(out_row, WORD(j))
            store(build, build.fadd(load(build, out, place, _FOUR), more, flags=FREE_ORDER), out, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


@helper
def _padded(count):
    """Columns of a span of so many, with zeros behind them up to whole steps of both halves."""
    return -(-count // (2 * _STEP)) * 2 * _STEP


@helper
def _round_row(G, E, addresses, factor, begin, count, unit, sums, words):
    """words ← a row's span as integers; returns their unit. `addresses` are those of G, E and `sums`."""
    gradient, residual, run = addresses
    if count == _SPAN:
        return round_run(gradient + 4 * begin, residual + 4 * begin, _SPAN // 2, factor, unit, words)
    sums[count:] = 0
    for k in range(count):
        sums[k] = E[begin + k] + factor * G[begin + k]
    return round_run(run, run, _padded(count) // 2, np.float32(0), unit, words)


@helper
def wide_grams(G, E, factor, offsets, columns, starts, out):
    """M·Mᵀ of the wide blocks among these; arguments are those of `gram`."""
    count, widest = len(columns), 0
    rows = np.empty(count + 1, np.int64)
    for b in range(count):
        rows[b] = (offsets[b + 1] - offsets[b]) // columns[b]
        if rows[b] <= columns[b]:
            widest = max(widest, rows[b])
    rows[count] = 0
    sums, K = np.empty(_SPAN, np.float32), np.zeros((widest + _MARGIN, widest + _MARGIN), np.float32)
    spans = np.zeros((2, widest + _MARGIN, _SPAN // 2), np.int32)
    units = np.zeros((2, widest + _MARGIN), np.float32)
    # The unit of the row above, or of the same row's last span, is likely to suit.
    b, r, n, start, now, guess = -1, 0, 0, 0, 0, np.float32(0)
    while b < count:
        # Once a span: to ask an array for its address takes as long as a tile. Not before the loop: an array is freed
        # after its last use, and to use its address is none.
        gradient, residual, result, stride = G.ctypes.data, E.ctypes.data, K.ctypes.data, 4 * K.shape[1]
        addresses = gradient, residual, sums.ctypes.data
        words, unit = (spans[0].ctypes.data, spans[1].ctypes.data), (units[0].ctypes.data, units[1].ctypes.data)
        # A span beyond the last column belongs to the next wide block.
        next_b, ahead = b, start + _SPAN
        if ahead >= n:
            next_b, ahead = b + 1, 0
            while next_b < count and rows[next_b] > columns[next_b]:
                next_b += 1
        then, next_r, next_n = 1 - now, rows[next_b], columns[next_b] if next_b < count else 0
        soon, next_length = (offsets[next_b] + ahead if next_b < count else 0), min(_SPAN, next_n - ahead)
        tile, rounded, steps = 0, 0, _padded(min(_SPAN, n - start)) // _STEP
        for strip in range(0, r, _STRIP):
            end = min(strip + _STRIP, r)
            for i in range(0, end, _TILE):
                for j in range(max(strip, i), end, _TILE):
                    line = 4 * (soon + min(tile >> 2, max(next_r - 1, 0)) * next_n + ((tile >> 1) & 1) * _SPAN // 2)
                    _multiply_add(
                        result + stride * j + 4 * i,
                        stride,
                        words[now] + _ROW * i,
                        words[now] + _ROW * j,
                        unit[now] + 4 * i,
                        unit[now] + 4 * j,
                        steps,
                        (residual if tile & 1 else gradient) + line,
                    )
                    tile += 1
                    if rounded < next_r and tile >= 4 * rounded + _LEAD:
                        guess = units[now, rounded] if next_b == b else guess
                        begin, place = soon + rounded * next_n, words[then] + _ROW * rounded
                        guess = _round_row(G, E, addresses, factor, begin, next_length, guess, sums, place)
                        units[then, rounded] = guess
                        rounded += 1
        for row in range(rounded, next_r):
            guess = units[now, row] if next_b == b else guess
            begin, place = soon + row * next_n, words[then] + _ROW * row
            guess = _round_row(G, E, addresses, factor, begin, next_length, guess, sums, place)
            units[then, row] = guess
        # Rows beyond the last count for nothing, whatever a larger block has left there.
        units[then, next_r : next_r + _MARGIN] = 0
        if next_b != b:
            if r:
                square = out[starts[b] : starts[b] + r * r].reshape((r, r))
                for i in range(r):
                    for j in range(i, r):
                        square[i, j] = square[j, i] = K[j, i]
            K[:] = 0
        b, r, n, start, now = next_b, next_r, next_n, ahead, then
