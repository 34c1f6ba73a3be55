"""A product of two small matrices on the CPU, whose sums stay in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper
from hilosync.compress.vectors import FLOAT, FREE_ORDER, LANES, VECTOR, WORD, everywhere, load, pointer, store

__all__ = ["TILE_COLUMNS", "TILE_ROWS", "WIDTH", "multiply", "multiply_tiles"]

WIDTH = 64
"""Columns of a product are a multiple of this."""

TILE_ROWS, TILE_COLUMNS = 4, 16
"""Of a tile whose rows and columns are about as many."""

_intrinsic: Any = intrinsic


def _tile(rows: int, vectors: int) -> Any:
    """A kernel out ← left·right for so many rows and 8-column vectors; about eight sums hide the latency of each."""

    @_intrinsic
    def product(
        context: Any, left: Any, left_row: Any, right: Any, right_row: Any, depth: Any, out: Any, out_row: Any
    ) -> Any:
        def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
            left, left_row, right, right_row, depth, out, out_row = arguments
            nothing = ir.Constant(VECTOR, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(build, nothing) for _ in range(vectors)] for _ in range(rows)]
            for row_sums in sums:
                for total in row_sums:
                    build.store(nothing, total)
            with cgutils.for_range(build, depth) as loop:
                down, along = build.mul(loop.index, right_row), build.mul(loop.index, WORD(4))
                others = [load(build, right, build.add(down, WORD(4 * LANES * part))) for part in range(vectors)]
                for i, row_sums in enumerate(sums):
                    place = build.add(build.mul(left_row, WORD(i)), along)
                    factor = everywhere(build, build.load(pointer(build, left, place, FLOAT)))
                    for total, other in zip(row_sums, others, strict=True):
                        more = build.fmul(factor, other, flags=FREE_ORDER)
                        build.store(build.fadd(build.load(total), more, flags=FREE_ORDER), total)
            for i, row_sums in enumerate(sums):
                for part, total in enumerate(row_sums):
                    place = build.add(build.mul(out_row, WORD(i)), WORD(4 * LANES * part))
                    store(build, build.load(total), out, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return product


_four_rows, _two_rows, _one_row = _tile(TILE_ROWS, TILE_COLUMNS // LANES), _tile(2, 4), _tile(1, 8)


@helper
def multiply_tiles(left, left_row, right, right_row, rows, depth, columns, out, out_row):
    """`multiply` for rows and columns that are multiples of `TILE_ROWS` and `TILE_COLUMNS`."""
    for i in range(0, rows, TILE_ROWS):
        for j in range(0, 4 * columns, 4 * TILE_COLUMNS):
            _four_rows(left + i * left_row, left_row, right + j, right_row, depth, out + i * out_row + j, out_row)


@helper
def multiply(left, left_row, right, right_row, rows, depth, columns, out, out_row):
    """out ← left·right, of shape (rows, columns), fp32, sums in any order.

    Args:
        left: address of a (rows, depth) matrix.
        left_row: bytes from one row to the next; elements of a row follow each other.
        right, right_row: likewise, a (depth, columns) matrix.
        rows, depth: of any size.
        columns: a multiple of `WIDTH`.
        out, out_row: where the product goes.
    """
    for start in range(0, 4 * columns, 4 * WIDTH):
        i = 0
        while i + 4 <= rows:
            for j in range(start, start + 256, 64):
                _four_rows(left + i * left_row, left_row, right + j, right_row, depth, out + i * out_row + j, out_row)
            i += 4
        if i + 2 <= rows:
            for j in range(start, start + 256, 128):
                _two_rows(left + i * left_row, left_row, right + j, right_row, depth, out + i * out_row + j, out_row)
            i += 2
        if i < rows:
            _one_row(left + i * left_row, left_row, right + start, right_row, depth, out + i * out_row + start, out_row)
