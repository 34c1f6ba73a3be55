"""Products of long and flat matrices on the CPU: Gram matrices, projections, low-rank corrections.

A LoRA gradient has one side of 16 to 128 and one of thousands. General BLAS packs both factors
for products that touch each element a few dozen times, and computes a symmetric result nearly whole:
about half of a core's peak. Here a 4×16 tile of the result stays in registers over the whole sum.

LLVM does not find that tile in loops over scalars, so it is written in LLVM's vectors (eight fp32,
which a machine without such registers splits). Multiply and add may fuse and sums are reordered: this
is the encoder's side, whose rounding is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["gram", "project", "subtract_product"]

_FREE_ORDER = ("reassoc", "contract", "nsz")
"""What LLVM may do to sums; NaN and Inf keep their meaning."""

_ROWS, _COLUMNS, _LANES = 4, 16, 8
_PANEL = 128
"""Length of the part of the long side whose transpose stays in the innermost cache: 128 × 64 × 4 bytes."""

_FLOAT, _WORD, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, _LANES)

_intrinsic: Any = intrinsic
_jit: Any = numba.njit(error_model="numpy", nogil=True)
_vectorized: Any = numba.njit(error_model="numpy", nogil=True, fastmath=set(_FREE_ORDER))
_kernel: Any = numba.njit(error_model="numpy", nogil=True, fastmath=set(_FREE_ORDER), cache=True)


def _pointer(build: Any, base: Any, offset: Any, type_: Any) -> Any:
    return build.inttoptr(build.add(base, offset), type_.as_pointer())


def _load(build: Any, base: Any, offset: Any) -> Any:
    value = build.load(_pointer(build, base, offset, _VECTOR))
    value.align = 4
    return value


def _store(build: Any, value: Any, base: Any, offset: Any) -> None:
    build.store(value, _pointer(build, base, offset, _VECTOR)).align = 4


def _everywhere(build: Any, value: Any) -> Any:
    """A vector that holds one value in all lanes."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    return build.shuffle_vector(build.insert_element(nothing, value, _INDEX(0)), nothing, _mask([0] * _LANES))


def _mask(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INDEX, len(lanes)), lanes)


@_intrinsic
def _multiply_add(
    context: Any,
    out: Any,
    out_row: Any,
    left: Any,
    left_row: Any,
    left_step: Any,
    right: Any,
    right_step: Any,
    count: Any,
    keep: Any,
) -> Any:
    """out[i, j] ← keep·out[i, j] + Σ_k left[i, k]·right[k, j] for 4 rows i and 16 columns j.

    Addresses and strides are in bytes; the columns of `out` and `right` are adjacent.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        out, out_row, left, left_row, left_step, right, right_step, count, keep = arguments
        zero = ir.Constant(_VECTOR, [0.0] * _LANES)
        offsets = [_WORD(4 * _LANES * part) for part in range(_COLUMNS // _LANES)]
        rows = [build.add(left, build.mul(left_row, _WORD(i))) for i in range(_ROWS)]
        sums = [[cgutils.alloca_once_value(build, zero) for _ in offsets] for _ in rows]
        with cgutils.for_range(build, count) as loop:
            across, down = build.mul(loop.index, left_step), build.mul(loop.index, right_step)
            factors = [_load(build, right, build.add(down, offset)) for offset in offsets]
            for row, row_sums in zip(rows, sums, strict=True):
                value = _everywhere(build, build.load(_pointer(build, row, across, _FLOAT)))
                for total, factor in zip(row_sums, factors, strict=True):
                    product = build.fmul(value, factor, flags=_FREE_ORDER)
                    build.store(build.fadd(build.load(total), product, flags=_FREE_ORDER), total)
        keep = _everywhere(build, keep)
        for i, row_sums in enumerate(sums):
            for offset, total in zip(offsets, row_sums, strict=True):
                place = build.add(build.mul(out_row, _WORD(i)), offset)
                kept = build.fmul(_load(build, out, place), keep, flags=_FREE_ORDER)
                _store(build, build.fadd(kept, build.load(total), flags=_FREE_ORDER), out, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, types.float32), generate


@_intrinsic
def _transpose(context: Any, source: Any, source_row: Any, out: Any, out_row: Any) -> Any:
    """out[j, i] ← source[i, j] for 8 rows and columns, by Eklundh's exchange of halves, quarters, eighths."""

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        source, source_row, out, out_row = arguments
        rows = [_load(build, source, build.mul(source_row, _WORD(i))) for i in range(_LANES)]
        for half in (4, 2, 1):
            low = _mask([j + _LANES - half if j & half else j for j in range(_LANES)])
            high = _mask([j + _LANES if j & half else j + half for j in range(_LANES)])
            for i in range(_LANES):
                if not i & half:
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (build.shuffle_vector(*pair, mask) for mask in (low, high))
        for i, row in enumerate(rows):
            _store(build, row, out, build.mul(out_row, _WORD(i)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@_jit
def _update(panel, row, length, out, width):
    """Adds panelᵀ·panel of a (length, width) panel to the tiles of `out` that meet its upper triangle."""
    for j in range(0, width, _COLUMNS):
        for i in range(0, j + _COLUMNS, _ROWS):
            _multiply_add(
                out + 4 * (i * width + j),
                4 * width,
                panel + 4 * i,
                4,
                row,
                panel + 4 * j,
                row,
                length,
                np.float32(1),
            )


@_jit
def _fill(G, start, length, panel):
    """panel[k, i] ← G[i, start + k] with the short side first; columns beyond it stay as they are."""
    if G.shape[0] > G.shape[1]:
        panel[:length, : G.shape[1]] = G[start : start + length]
        return
    r, n = G.shape
    width = panel.shape[1]
    rows, columns = r // _LANES * _LANES, length // _LANES * _LANES
    for i in range(0, rows, _LANES):
        for k in range(0, columns, _LANES):
            _transpose(
                G.ctypes.data + 4 * (i * n + start + k), 4 * n, panel.ctypes.data + 4 * (k * width + i), 4 * width
            )
    for i in range(r):
        for k in range(columns if i < rows else 0, length):
            panel[k, i] = G[i, start + k]


@_jit
def _add_panels(G, K, panel):
    width = K.shape[0]
    n = max(G.shape)
    as_it_is = G.shape[0] > G.shape[1] == width
    for start in range(0, n, _PANEL):
        length = min(_PANEL, n - start)
        if as_it_is:
            _update(G.ctypes.data + 4 * start * width, 4 * width, length, K.ctypes.data, width)
        else:
            _fill(G, start, length, panel)
            _update(panel.ctypes.data, 4 * width, length, K.ctypes.data, width)


@_kernel
def gram(G, out):
    """out ← G·Gᵀ with the short side of G first.

    Args:
        G: a block, fp32, C order, shape (r, n) or (n, r) with r ≤ n.
        out: fp32, shape (r, r).
    """
    r = out.shape[0]
    width = -(-r // _COLUMNS) * _COLUMNS
    K = np.zeros((width, width), np.float32)
    _add_panels(G, K, np.zeros((_PANEL, width), np.float32))
    for i in range(r):
        for j in range(i, r):
            out[i, j] = out[j, i] = K[i, j]


@_vectorized
def _project_rows(P, G, V):
    for start in range(0, G.shape[1], 1024):
        end = min(start + 1024, G.shape[1])
        whole = G.shape[0] // 4 * 4
        for c in range(len(P)):
            V[c, start:end] = 0
        for i in range(0, whole, 4):
            g0, g1, g2, g3 = G[i, start:end], G[i + 1, start:end], G[i + 2, start:end], G[i + 3, start:end]
            for c in range(len(P)):
                p0, p1, p2, p3, v = P[c, i], P[c, i + 1], P[c, i + 2], P[c, i + 3], V[c, start:end]
                for j in range(end - start):
                    v[j] += p0 * g0[j] + p1 * g1[j] + p2 * g2[j] + p3 * g3[j]
        for i in range(whole, G.shape[0]):
            for c in range(len(P)):
                V[c, start:end] += P[c, i] * G[i, start:end]


@_vectorized
def _project_columns(P, G, V):
    for i in range(len(G)):
        whole = len(P) // 4 * 4
        for c in range(0, whole, 4):
            v0 = v1 = v2 = v3 = np.float32(0)
            for j in range(G.shape[1]):
                v0 += P[c, j] * G[i, j]
                v1 += P[c + 1, j] * G[i, j]
                v2 += P[c + 2, j] * G[i, j]
                v3 += P[c + 3, j] * G[i, j]
            V[c, i], V[c + 1, i], V[c + 2, i], V[c + 3, i] = v0, v1, v2, v3
        for c in range(whole, len(P)):
            total = np.float32(0)
            for j in range(G.shape[1]):
                total += P[c, j] * G[i, j]
            V[c, i] = total


@_kernel
def project(P, G):
    """V = P·G with the short side of G first, fp32, shape (k, n).

    Args:
        P: fp32, C order, shape (k, r) for a small k.
        G: a block, fp32, C order, shape (r, n) or (n, r) with r ≤ n.
    """
    V = np.empty((len(P), max(G.shape)), np.float32)
    if G.shape[0] > G.shape[1]:
        _project_columns(P, G, V)
    else:
        _project_rows(P, G, V)
    return V


@_vectorized
def _energy(row):
    total = np.float32(0)
    for j in range(len(row)):
        total += row[j] * row[j]
    return total


@_kernel
def subtract_product(G, left, right, keep):
    """G ← keep·G − left·right in place; returns ‖G‖² after it.

    Args:
        G: a block, fp32, C order, shape (rows, columns).
        left: fp32, C order, shape (rows, k).
        right: fp32, C order, shape (k, columns).
        keep: an fp32 value.
    """
    (rows, columns), count = G.shape, left.shape[1]
    whole = columns // _COLUMNS * _COLUMNS
    energy = 0.0
    minus = -left
    for start in range(0, rows, _ROWS):
        end = min(start + _ROWS, rows)
        tiled = whole if end - start == _ROWS else 0
        for j in range(0, tiled, _COLUMNS):
            _multiply_add(
                G.ctypes.data + 4 * (start * columns + j),
                4 * columns,
                minus.ctypes.data + 4 * start * count,
                4 * count,
                4,
                right.ctypes.data + 4 * j,
                4 * columns,
                count,
                keep,
            )
        for i in range(start, end):
            for j in range(tiled, columns):
                total = keep * G[i, j]
                for k in range(count):
                    total += minus[i, k] * right[k, j]
                G[i, j] = total
            energy += _energy(G[i])
    return energy
