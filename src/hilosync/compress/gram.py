"""Gram matrices of long and flat matrices on the CPU, of a sum of two that is nowhere stored.

A LoRA gradient has one side of 16 to 128 and one of thousands. Its Gram matrix is bound by multiplications,
so they are made in integers, which a vector register holds twice as many of: panels of 128 columns are
rounded to 12 bits below their largest magnitude (block floating point), a 4×16 tile of the result stays in
registers over a panel, and only tiles that meet the upper triangle are computed. Sums over a panel are exact;
rounding adds white noise of less than a thousandth of a panel's energy, and to the spectrum alone: what is
sent along a direction is computed from the gradient itself.

LLVM does not find that tile in loops over scalars, so it is written in LLVM's vectors (eight words, which a
machine without such registers splits). While a panel is multiplied, the next one is fetched. This is the
encoder's side, whose rounding is free.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.compress.vectors import (
    FREE_ORDER,
    INDEX,
    LANES,
    VECTOR,
    WORD,
    everywhere,
    load,
    mask,
    pointer,
    store,
    transpose,
)

__all__ = ["gram", "reference_gram"]

_ROWS, _COLUMNS = 4, 16

_HALF = 64
"""Columns of half a panel. A word of an integer panel holds a column of the first half and one of the second."""

_BITS = 12
"""Of a magnitude: 128 products of two such, less a 4096th, stay below 2^31."""

_RUN, _LINE = 512, 64
"""Bytes of half a panel's row, and of a line of cache, which is fetched at once."""

_SMALLEST_EXPONENT = -110
"""Panels below 2^this count for nothing; a block of such panels is scaled before it comes here."""

_WORDS = ir.VectorType(INDEX, LANES)
_PAIRS, _PRODUCTS = ir.VectorType(ir.IntType(16), 2 * LANES), ir.VectorType(INDEX, 2 * LANES)

_intrinsic: Any = intrinsic
_jit: Any = numba.njit(error_model="numpy", nogil=True)
_vectorized: Any = numba.njit(error_model="numpy", nogil=True, fastmath=set(FREE_ORDER))
_kernel: Any = numba.njit(error_model="numpy", nogil=True, cache=True)


def _same(value: int) -> ir.Constant:
    return ir.Constant(_WORDS, [value] * LANES)


def _larger(build: Any, a: Any, b: Any) -> Any:
    return build.select(build.icmp_signed(">", a, b), a, b)


def _fetch(build: Any, address: Any) -> None:
    """Asks for a line of memory, which may lie beyond the end."""
    byte = ir.IntType(8)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), INDEX, INDEX, INDEX])
    function = cgutils.get_or_insert_function(build.module, kind, "llvm.prefetch.p0")
    read, second_cache, data = (INDEX(value) for value in (0, 2, 1))
    build.call(function, [build.inttoptr(address, byte.as_pointer()), read, second_cache, data])


def _products(build: Any, left: Any, right: Any) -> Any:
    """Per word, the sum of both products of 16-bit halves: one instruction on x86."""
    nothing = ir.Constant(_PRODUCTS, ir.Undefined)
    products = build.mul(build.sext(left, _PRODUCTS), build.sext(right, _PRODUCTS))
    halves = [build.shuffle_vector(products, nothing, mask(list(range(h, 2 * LANES, 2)))) for h in (0, 1)]
    return build.add(*halves)


@_intrinsic
def _multiply_add(
    context: Any, out: Any, out_row: Any, left: Any, right: Any, row: Any, scale: Any, ahead: Any, ahead_row: Any
) -> Any:
    """out[i, j] ← out[i, j] + scale·Σ_k left[k, i]·right[k, j] for 4 rows i and 16 columns j, over half a panel.

    Addresses and strides are in bytes; words of `left` and `right` hold two numbers. Four runs of memory
    from `ahead` on, `ahead_row` apart, are fetched meanwhile.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        out, out_row, left, right, row, scale, ahead, ahead_row = arguments
        offsets = [WORD(4 * LANES * part) for part in range(_COLUMNS // LANES)]
        sums = [[cgutils.alloca_once_value(build, _same(0)) for _ in offsets] for _ in range(_ROWS)]
        lines = _RUN // _LINE
        steps = _HALF // 4 // lines
        with cgutils.for_range(build, WORD(4)) as runs:
            run = build.add(ahead, build.mul(runs.index, ahead_row))
            with cgutils.for_range(build, WORD(lines)) as loop:
                _fetch(build, build.add(run, build.mul(loop.index, WORD(_LINE))))
                k = build.mul(build.add(build.mul(runs.index, WORD(lines)), loop.index), WORD(steps))
                for step in range(steps):
                    down = build.mul(build.add(k, WORD(step)), row)
                    factors = [load(build, right, build.add(down, offset), _PAIRS) for offset in offsets]
                    for i, row_sums in enumerate(sums):
                        pair = build.load(pointer(build, left, build.add(down, WORD(4 * i)), INDEX))
                        pairs = build.bitcast(everywhere(build, pair), _PAIRS)
                        for total, factor in zip(row_sums, factors, strict=True):
                            build.store(build.add(build.load(total), _products(build, pairs, factor)), total)
        scale = everywhere(build, scale)
        for i, row_sums in enumerate(sums):
            for offset, total in zip(offsets, row_sums, strict=True):
                place = build.add(build.mul(out_row, WORD(i)), offset)
                more = build.fmul(build.sitofp(build.load(total), VECTOR), scale, flags=FREE_ORDER)
                store(build, build.fadd(load(build, out, place), more, flags=FREE_ORDER), out, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, types.float32, *[types.int64] * 2), generate


@_intrinsic
def _add(
    context: Any, gradient: Any, residual: Any, row: Any, factor: Any, out: Any, out_row: Any, rows: Any, parts: Any
) -> Any:
    """out ← residual + factor·gradient for rows of 32·parts numbers; returns the largest |out|, as its bits.

    Of the bits of fp32 numbers without their sign, those of Inf and NaN are the largest.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        gradient, residual, row, factor, out, out_row, rows, parts = arguments
        factor = everywhere(build, factor)
        largest = [cgutils.alloca_once_value(build, _same(0)) for _ in range(4)]
        with cgutils.for_range(build, rows) as down, cgutils.for_range(build, parts) as loop:
            start = build.mul(loop.index, WORD(16 * LANES))
            source, target = (build.add(build.mul(down.index, stride), start) for stride in (row, out_row))
            for part, found in enumerate(largest):
                offset = WORD(4 * LANES * part)
                place = build.add(source, offset)
                scaled = build.fmul(factor, load(build, gradient, place), flags=FREE_ORDER)
                total = build.fadd(load(build, residual, place), scaled, flags=FREE_ORDER)
                store(build, total, out, build.add(target, offset))
                magnitude = build.and_(build.bitcast(total, _WORDS), _same(0x7FFFFFFF))
                build.store(_larger(build, magnitude, build.load(found)), found)
        lanes = build.load(largest[0])
        for found in largest[1:]:
            lanes = _larger(build, lanes, build.load(found))
        top = build.extract_element(lanes, INDEX(0))
        for lane in range(1, LANES):
            top = _larger(build, top, build.extract_element(lanes, INDEX(lane)))
        return top

    return types.int32(*[types.int64] * 3, types.float32, *[types.int64] * 4), generate


@_vectorized
def _round(sums, step, out):
    """out ← both halves of `sums` in units of `step`, a power of two, the second in the upper 16 bits.

    Next to 1.5·2^23 steps, fp32's own rounding leaves the integer in the low bits.
    """
    low, high = sums[: len(out)], sums[len(out) :]
    large = np.float32(12582912.0 * step)
    for j in range(len(out)):
        first, second = np.float32(low[j] + large).view(np.int32), np.float32(high[j] + large).view(np.int32)
        out[j] = (first & np.int32(0xFFFF)) | (second << np.int32(16))


@_jit
def _fill_any(G, E, factor, start, length, width, sums):
    """As `_fill`, for any shape."""
    sums[:] = 0
    top, r = np.int32(0), min(G.shape)
    for k in range(length):
        for i in range(r):
            if G.shape[0] > G.shape[1]:
                place, total = k * width + i, E[start + k, i] + factor * G[start + k, i]
            else:
                place = (k // _HALF * width + i) * _HALF + k % _HALF
                total = E[i, start + k] + factor * G[i, start + k]
            sums[place] = total
            top = max(top, np.float32(total).view(np.int32) & np.int32(0x7FFFFFFF))
    return top


@_jit
def _fill(G, E, factor, start, length, width, sums):
    """sums ← a panel of E + factor·G; returns the largest magnitude, as its bits.

    In the order of a tall block; of a wide one, half a panel's rows and then the other half's. Either way
    column k of the first half lies as far from the beginning as column 64 + k from the middle.
    """
    r, n = min(G.shape), max(G.shape)
    tall = G.shape[0] > G.shape[1]
    if length < 2 * _HALF or (tall and r < width):
        return _fill_any(G, E, factor, start, length, width, sums)
    gradient, residual, out = G.ctypes.data, E.ctypes.data, sums.ctypes.data
    if tall:
        begin = 4 * start * r
        return _add(gradient + begin, residual + begin, 0, factor, out, 0, 1, 2 * _HALF * r // 32)
    top = np.int32(0)
    for half in range(2):
        begin = 4 * (start + half * _HALF)
        found = _add(
            gradient + begin, residual + begin, 4 * n, factor, out + 4 * half * _HALF * width, 4 * _HALF, r, _HALF // 32
        )
        top = max(top, found)
    return top


@_jit
def _update(panel, width, scale, K, gradient, residual, row, runs):
    """Adds scale·panelᵀ·panel to the tiles of K that meet its upper triangle, and fetches the next panel."""
    tile = 0
    for j in range(0, width, _COLUMNS):
        for i in range(0, j + _COLUMNS, _ROWS):
            ahead = (residual if tile & 1 else gradient) + (tile >> 1) * 4 % runs * row
            _multiply_add(
                K + 4 * (i * width + j), 4 * width, panel + 4 * i, panel + 4 * j, 4 * width, scale, ahead, row
            )
            tile += 1


@_jit
def _gram(G, E, factor, out, sums, pairs, panel, K):
    r, n = min(G.shape), max(G.shape)
    width = -(-r // _COLUMNS) * _COLUMNS
    tall = G.shape[0] > G.shape[1]
    sums, pairs, panel = sums[: 2 * _HALF * width], pairs[: _HALF * width], panel[: _HALF * width]
    K = K[: width * width].reshape((width, width))
    K[:] = 0
    if r < width:
        sums[:] = 0
    row = _RUN if tall else 4 * n
    for start in range(0, n, 2 * _HALF):
        largest = _fill(G, E, factor, start, min(2 * _HALF, n - start), width, sums)
        # The smallest exponent e with |M| ≤ (2^12 − 1)·2^(e − 12) in this panel.
        exponent = ((largest + (1 << (23 - _BITS))) >> 23) - 126
        if exponent < _SMALLEST_EXPONENT:
            continue
        step = 2.0 ** (exponent - _BITS)
        _round(sums, step, panel if tall else pairs)
        if not tall:
            for i in range(0, width, LANES):
                for k in range(0, _HALF, LANES):
                    transpose(
                        pairs.ctypes.data + 4 * (i * _HALF + k),
                        4 * _HALF,
                        panel.ctypes.data + 4 * (k * width + i),
                        4 * width,
                    )
        beyond = 4 * (start + 2 * _HALF) * (r if tall else 1)
        _update(
            panel.ctypes.data,
            width,
            np.float32(step * step),
            K.ctypes.data,
            G.ctypes.data + beyond,
            E.ctypes.data + beyond,
            row,
            r,
        )
    for i in range(r):
        for j in range(i, r):
            out[i, j] = out[j, i] = K[i, j]


@_kernel
def gram(G, E, factor, offsets, columns, starts, out, traces):
    """M·Mᵀ of some blocks, with M = E + factor·G, the short side first.

    Where M is not finite or M·Mᵀ leaves fp32's range, so does the trace.

    Args:
        G, E: flat, fp32, C order, of one shape.
        factor: an fp32 value.
        offsets: where the blocks begin in G and E, and the end of the last, int64, shape (blocks + 1,).
        columns: of each block, int64, shape (blocks,).
        starts: where the r×r results begin in `out`, int64, shape (blocks,).
        out: flat, fp32.
        traces: of each result afterwards, fp32, shape (blocks,).
    """
    widest = 0
    for b in range(len(columns)):
        size = offsets[b + 1] - offsets[b]
        widest = max(widest, min(columns[b], size // columns[b]) + _COLUMNS)
    sums = np.zeros(2 * _HALF * widest, np.float32)
    pairs, panel = np.zeros(_HALF * widest, np.int32), np.zeros(_HALF * widest, np.int32)
    K = np.zeros(widest * widest, np.float32)
    for b in range(len(columns)):
        run = slice(offsets[b], offsets[b + 1])
        shape = ((offsets[b + 1] - offsets[b]) // columns[b], columns[b])
        r = min(shape)
        result = out[starts[b] : starts[b] + r * r].reshape((r, r))
        _gram(G[run].reshape(shape), E[run].reshape(shape), factor, result, sums, pairs, panel, K)
        traces[b] = np.trace(result)


def reference_gram(G: np.ndarray, E: np.ndarray, factor: float) -> np.ndarray:
    """The same in fp64, without rounding to 12 bits."""
    M = E.astype(np.float64) + factor * G.astype(np.float64)
    M = M if M.shape[0] <= M.shape[1] else M.T
    return M @ M.T
