"""K = MᵀM of tall blocks, whose rows are short: sums of outer products of rows, of a sum that is nowhere stored.

Panels of 128 rows of E + factor·G are rounded to integers (`integers`), and a 4×16 tile of the result stays in
registers over a panel. Only tiles that meet the upper triangle are computed. While a panel is multiplied, the
memory behind it is fetched, which is the next panel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper
from hilosync.compress.integers import PAIRS, fetch, products, round_run, same
from hilosync.compress.vectors import FREE_ORDER, INDEX, LANES, VECTOR, WORD, everywhere, load, pointer, store

__all__ = ["tall_grams"]

_ROWS, _COLUMNS = 4, 16

_HALF = 64
"""Rows of half a panel. A word of an integer panel holds a row of the first half and one of the second."""

_RUN, _LINE = 2048, 64
"""Bytes that a tile fetches, and of a line of cache, which is fetched at once."""

_intrinsic: Any = intrinsic


def _tile(rows: int, columns: int) -> Any:
    """A kernel for so many rows and columns of the result."""

    @_intrinsic
    def multiply_add(
        context: Any, out: Any, out_row: Any, left: Any, right: Any, row: Any, scale: Any, ahead: Any
    ) -> Any:
        """out[i, j] ← out[i, j] + scale·Σ_k left[k, i]·right[k, j] over a panel.

        Addresses and strides are in bytes; words of `left` and `right` hold two numbers. 2 KB of memory are
        fetched from `ahead` on meanwhile.
        """

        def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
            out, out_row, left, right, row, scale, ahead = arguments
            offsets = [WORD(4 * LANES * part) for part in range(columns // LANES)]
            sums = [[cgutils.alloca_once_value(build, same(0)) for _ in offsets] for _ in range(rows)]
            with cgutils.for_range(build, WORD(_HALF // 2)) as loop:
                fetch(build, build.add(ahead, build.mul(loop.index, WORD(_LINE))))
                for step in range(2):
                    down = build.mul(build.add(build.mul(loop.index, WORD(2)), WORD(step)), row)
                    factors = [load(build, right, build.add(down, offset), PAIRS) for offset in offsets]
                    for i, row_sums in enumerate(sums):
                        pair = build.load(pointer(build, left, build.add(down, WORD(4 * i)), INDEX))
                        pairs = build.bitcast(everywhere(build, pair), PAIRS)
                        for total, factor in zip(row_sums, factors, strict=True):
                            build.store(build.add(build.load(total), products(build, pairs, factor)), total)
            scale = everywhere(build, scale)
            for i, row_sums in enumerate(sums):
                for offset, total in zip(offsets, row_sums, strict=True):
                    place = build.add(build.mul(out_row, WORD(i)), offset)
                    more = build.fmul(build.sitofp(build.load(total), VECTOR), scale, flags=FREE_ORDER)
                    store(build, build.fadd(load(build, out, place), more, flags=FREE_ORDER), out, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5, types.float32, types.int64), generate

    return multiply_add


_flat, _square = _tile(_ROWS, _COLUMNS), _tile(8, 8)


@helper
def _round_panel(G, E, factor, start, width, unit, sums, panel):
    """panel ← rows of E + factor·G from `start` on as integers, zeros beyond the last; returns their unit."""
    r, length = G.shape[1], min(2 * _HALF, len(G) - start)
    if length == 2 * _HALF and r == width:
        begin = 4 * start * r
        return round_run(G.ctypes.data + begin, E.ctypes.data + begin, _HALF * r, factor, unit, panel.ctypes.data)
    sums[:] = 0
    for k in range(length):
        for i in range(r):
            sums[k * width + i] = E[start + k, i] + factor * G[start + k, i]
    return round_run(sums.ctypes.data, sums.ctypes.data, _HALF * width, np.float32(0), unit, panel.ctypes.data)


@helper
def _update(panel, width, scale, K, gradient, residual, bytes_ahead):
    """Adds scale·panelᵀ·panel to the tiles of K that meet its upper triangle, and fetches the next panel."""
    tile, row = 0, 4 * width
    for j in range(0, width, _COLUMNS):
        # Of the last eight rows the right half alone lies on or above the diagonal.
        for i in range(0, j + _COLUMNS - 8, _ROWS):
            ahead = (residual if tile & 1 else gradient) + min((tile >> 1) * _RUN, bytes_ahead - _RUN)
            _flat(K + i * row + 4 * j, row, panel + 4 * i, panel + 4 * j, row, scale, ahead)
            tile += 1
        last = j + 8
        _square(K + last * row + 4 * last, row, panel + 4 * last, panel + 4 * last, row, scale, gradient)


@helper
def _gram(G, E, factor, out, unit, sums, panel, K):
    """Returns the unit of the last panel, which is likely to suit the next block."""
    n, r = G.shape
    width = -(-r // _COLUMNS) * _COLUMNS
    sums, panel = sums[: 2 * _HALF * width], panel[: _HALF * width]
    K = K[: width * width].reshape((width, width))
    K[:] = 0
    size = 4 * 2 * _HALF * r
    for start in range(0, n, 2 * _HALF):
        unit = _round_panel(G, E, factor, start, width, unit, sums, panel)
        if unit > 0:
            beyond = 4 * start * r + size
            place = K.ctypes.data, G.ctypes.data + beyond, E.ctypes.data + beyond
            _update(panel.ctypes.data, width, unit * unit, *place, size)
    for i in range(r):
        for j in range(i, r):
            out[i, j] = out[j, i] = K[i, j]
    return unit


@helper
def tall_grams(G, E, factor, offsets, columns, starts, out):
    """MᵀM of the tall blocks among these; arguments are those of `gram`."""
    widest = 0
    for b in range(len(columns)):
        if offsets[b + 1] - offsets[b] > columns[b] * columns[b]:
            widest = max(widest, columns[b] + _COLUMNS)
    sums, panel = np.empty(2 * _HALF * widest, np.float32), np.empty(_HALF * widest, np.int32)
    K, unit = np.empty(widest * widest, np.float32), np.float32(0)
    for b in range(len(columns)):
        run, r = slice(offsets[b], offsets[b + 1]), columns[b]
        n = (offsets[b + 1] - offsets[b]) // r
        if n > r:
            square = out[starts[b] : starts[b] + r * r].reshape((r, r))
            unit = _gram(G[run].reshape((n, r)), E[run].reshape((n, r)), factor, square, unit, sums, panel, K)
