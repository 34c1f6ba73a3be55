"""E ← keep·E + factor·G − scale·left·right on the CPU, in one visit of memory, with the energies of G and of the new E.

What few components take away is made in registers, of more of them in the innermost cache. Memory is asked for early:
the CPU's own prefetcher stops at every page. The order of sums is free but for that of E and G, which may cancel.
Squares are summed in fp32 over some thousand elements and in fp64 beyond; where they leave fp32's range, the caller
sees a sum that is not a plausible one and looks again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper, kernel
from hilosync.compress.integers import fetch
from hilosync.compress.tiles import WIDTH, multiply
from hilosync.compress.vectors import FLOAT, INDEX, LANES, VECTOR, WORD, everywhere, load, pointer, store

__all__ = ["replace_residual"]

_RUN = 2048
"""Elements between two additions to sums in fp64; so many products stay in the innermost cache."""

_FEW = 8
"""Components that are multiplied in registers."""

_TOGETHER, _STRIP = 4, 1024
"""Rows, at least, and columns, at most, that are multiplied together."""

_LINE = 2 * LANES
"""Elements in a line of cache."""

_AHEAD = 8192
"""Bytes to prefetch ahead."""

_CONTRACT = ("contract",)

_intrinsic: Any = intrinsic
_in_order: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"contract"})


def _add(build: Any, a: Any, b: Any, c: Any) -> Any:
    return build.fadd(c, build.fmul(a, b, flags=_CONTRACT), flags=_CONTRACT)


def _replace_rows(
    build: Any, k: int, places: Any, rows: Any, lines: Any, ahead: Any, scalars: Any, right_row: Any
) -> list[Any]:
    """The loops of `_replace_lines` for one k; returns both energies, each as two vectors of partial sums."""
    (gradient, residual, left, right), (keep, factor, minus) = places, scalars
    nothing = ir.Constant(VECTOR, [0.0] * LANES)
    sent, kept = ([cgutils.alloca_once_value(build, nothing) for _ in range(2)] for _ in range(2))
    with cgutils.for_range(build, rows) as down:
        row = build.add(left, build.mul(down.index, WORD(4 * k)))
        weights = [
            everywhere(build, build.fmul(minus, build.load(pointer(build, row, WORD(4 * c), FLOAT)))) for c in range(k)
        ]
        start = build.mul(down.index, build.mul(lines, WORD(4 * _LINE)))
        with cgutils.for_range(build, lines) as along:
            column = build.mul(along.index, WORD(4 * _LINE))
            place = build.add(start, column)
            for base in (gradient, residual):
                fetch(build, build.add(base, build.add(place, ahead)))
            for part in range(2):
                here, there = (build.add(offset, WORD(4 * LANES * part)) for offset in (place, column))
                new = load(build, gradient, here)
                total = _add(build, factor, new, build.fmul(keep, load(build, residual, here), flags=_CONTRACT))
                for c, weight in enumerate(weights):
                    other = load(build, right, build.add(there, build.mul(right_row, WORD(c))))
                    total = _add(build, weight, other, total)
                store(build, total, residual, here)
                build.store(_add(build, new, new, build.load(sent[part])), sent[part])
                build.store(_add(build, total, total, build.load(kept[part])), kept[part])
    return [[build.load(part) for part in parts] for parts in (sent, kept)]


@_intrinsic
def _replace_lines(
    context: Any,
    gradient: Any,
    residual: Any,
    rows: Any,
    lines: Any,
    ahead: Any,
    keep: Any,
    factor: Any,
    scale: Any,
    k: Any,
    left: Any,
    right: Any,
    right_row: Any,
    energies: Any,
) -> Any:
    """Replaces rows of `lines` · 16 elements that follow each other without a gap, and adds to both energies.

    `gradient`, `residual`, `left` (k numbers per row), `right` (k rows, `right_row` bytes apart) and `energies`
    (two fp32 numbers) are addresses; k is at most `_FEW`. Memory is asked for `ahead` bytes early.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        gradient, residual, rows, lines, ahead, keep, factor, scale, k, left, right, right_row, energies = arguments
        scalars = everywhere(build, keep), everywhere(build, factor), build.fneg(scale)
        # Each number of components has loops of its own, with that many weights in registers.
        for number in range(_FEW + 1):
            with build.if_then(build.icmp_signed("==", k, WORD(number))):
                places = gradient, residual, left, right
                sums = _replace_rows(build, number, places, rows, lines, ahead, scalars, right_row)
                for index, (first, second) in enumerate(sums):
                    place, lanes = pointer(build, energies, WORD(4 * index), FLOAT), build.fadd(first, second)
                    total = build.load(place)
                    for lane in range(LANES):
                        total = build.fadd(total, build.extract_element(lanes, INDEX(lane)))
                    build.store(total, place)
        return context.get_dummy_value()

    words, floats = [types.int64] * 5, [types.float32] * 3
    return types.void(*words, *floats, *words), generate


@_in_order
def _replace_rest(G, E, first, scalars, left, right, energies):
    """The columns of a row from `first` on, which fill no line."""
    keep, factor, scale = scalars
    for j in range(first, len(E)):
        product = np.float32(0)
        for c in range(len(left)):
            product += left[c] * right[c, j]
        total = keep * E[j] + factor * G[j] - scale * product
        energies[0] += G[j] * G[j]
        energies[1] += total * total
        E[j] = total


@helper
def _replace_by_few(G, E, scalars, left, right, energies):
    """Replaces a block and returns both energies."""
    rows, columns = G.shape
    k, lines, row = left.shape[1], columns // _LINE, 4 * columns
    gradient, residual, weights, others, sums = (
        G.ctypes.data,
        E.ctypes.data,
        left.ctypes.data,
        right.ctypes.data,
        energies.ctypes.data,
    )
    gapless = lines * _LINE == columns
    height = max(1, _RUN // columns) if gapless else 1
    squares, kept = 0.0, 0.0
    for i in range(0, rows, height):
        energies[:] = 0
        count, start = min(height, rows - i), row * i
        _replace_lines(
            gradient + start,
            residual + start,
            count,
            lines,
            _AHEAD,
            *scalars,
            k,
            weights + 4 * k * i,
            others,
            row,
            sums,
        )
        if not gapless:
            _replace_rest(G[i], E[i], lines * _LINE, scalars, left[i], right, energies)
        squares += energies[0]
        kept += energies[1]
    return squares, kept


@helper
def _pack(right, first, width, out):
    """Columns from `first` on as panels of `WIDTH`, one (k, `WIDTH`) after another; zeros beyond the last."""
    k, end = len(right), 0
    for start in range(first, first + width, WIDTH):
        count = min(WIDTH, first + width - start)
        for c in range(k):
            panel, row = out[end : end + WIDTH], right[c, start : start + count]
            for j in range(count):
                panel[j] = row[j]
            panel[count:] = 0
            end += WIDTH


@helper
def _replace_by_product(G, E, scalars, left, right, memory, product, energies):
    """The same for any number of components."""
    rows, columns = G.shape
    k, row, whole = left.shape[1], 4 * columns, (columns + WIDTH - 1) // WIDTH * WIDTH
    strip = min(whole, _STRIP)
    height = (_RUN if strip == whole else len(product)) // strip
    one = np.ones(1, np.float32)
    squares, kept = 0.0, 0.0
    for j in range(0, columns, strip):
        width = min(strip, columns - j)
        _pack(right, j, width, memory)
        for i in range(0, rows, height):
            # Not before the loop: an array is freed after its last use, and to use its address is none.
            weight, weights, panels, made, sums = (
                one.ctypes.data,
                left.ctypes.data + 4 * k * i,
                memory.ctypes.data,
                product.ctypes.data,
                energies.ctypes.data,
            )
            gradient, residual, count = G.ctypes.data, E.ctypes.data, min(height, rows - i)
            for first in range(0, width, WIDTH):
                panel = panels + 4 * k * first
                multiply(weights, 4 * k, panel, 4 * WIDTH, count, k, WIDTH, made + 4 * first, 4 * strip)
            energies[:] = 0
            # Rows that lie in a strip as a whole follow each other without a gap, as one.
            together = count if strip == columns else 1
            ahead = _AHEAD if strip == columns else row * height
            lines = together * width // _LINE
            for r in range(0, count, together):
                start = row * (i + r) + 4 * j
                _replace_lines(
                    gradient + start,
                    residual + start,
                    1,
                    lines,
                    ahead,
                    *scalars,
                    1,
                    weight,
                    made + 4 * r * strip,
                    0,
                    sums,
                )
                if lines * _LINE < together * width:
                    _replace_rest(G[i + r], E[i + r], j + lines * _LINE, scalars, left[i + r], right, energies)
            squares += energies[0]
            kept += energies[1]
    return squares, kept


@kernel
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
        longest = max(longest, max(ranks[b], 0) * min(columns[b] + WIDTH, _STRIP))
    memory, product, energies = (
        np.empty(longest, np.float32),
        np.empty(_TOGETHER * _STRIP, np.float32),
        np.empty(2, np.float32),
    )
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
        parts = G[run].reshape(shape), E[run].reshape(shape)
        scalars = keep, factor, scales[b]
        if k <= _FEW:
            sent[b], kept[b] = _replace_by_few(*parts, scalars, *factors, energies)
        else:
            sent[b], kept[b] = _replace_by_product(*parts, scalars, *factors, memory, product, energies)
