"""Block floating point on the CPU: sums of G and E as 12-bit integers, and sums of products of those.

A vector register holds twice as many integers of 16 bits as fp32 numbers, and one x86 instruction multiplies and
adds pairs of them. Numbers are rounded to 11 or 12 bits below the largest magnitude of their run, so a sum of 128
products stays below 2^31. Two numbers share a word: one of the first half of a run and one of the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper
from hilosync.compress.vectors import FLOAT, FREE_ORDER, INDEX, LANES, WORD, everywhere, load, mask, store

__all__ = ["PAIRS", "WORDS", "fetch", "products", "round_run", "same"]

_BITS = 12
"""Of a magnitude: 128 products of two such, less a 4096th, stay below 2^31."""

_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -110, 64
"""Runs below 2^the first count for nothing; a block of such runs is scaled before it comes here."""

_COARSEST = np.float32(2)
"""The coarsest unit that still serves, in finest units of a run."""

WORDS = ir.VectorType(INDEX, LANES)
PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
_PRODUCTS = ir.VectorType(INDEX, 2 * LANES)

_intrinsic: Any = intrinsic


def same(value: int) -> ir.Constant:
    """Words that all have this value."""
    return ir.Constant(WORDS, [value] * LANES)


def _larger(build: Any, a: Any, b: Any) -> Any:
    return build.select(build.icmp_signed(">", a, b), a, b)


def fetch(build: Any, address: Any) -> None:
    """Asks for a line of memory, which may lie beyond the end."""
    byte = ir.IntType(8)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), INDEX, INDEX, INDEX])
    function = cgutils.get_or_insert_function(build.module, kind, "llvm.prefetch.p0")
    read, second_cache, data = (INDEX(value) for value in (0, 2, 1))
    build.call(function, [build.inttoptr(address, byte.as_pointer()), read, second_cache, data])


def products(build: Any, left: Any, right: Any) -> Any:
    """Per word, the sum of both products of 16-bit halves: one instruction on x86."""
    nothing = ir.Constant(_PRODUCTS, ir.Undefined)
    products = build.mul(build.sext(left, _PRODUCTS), build.sext(right, _PRODUCTS))
    halves = [build.shuffle_vector(products, nothing, mask(list(range(h, 2 * LANES, 2)))) for h in (0, 1)]
    return build.add(*halves)


@_intrinsic
def _round(context: Any, gradient: Any, residual: Any, half: Any, factor: Any, unit: Any, out: Any) -> Any:
    """out ← both halves of a run of residual + factor·gradient in units, the second in the upper 16 bits.

    Returns the largest magnitude of a sum, as its bits: of those of fp32 numbers without their sign, those of Inf
    and NaN are the largest. `half` is a multiple of eight numbers; the rest but `factor` and `unit` are addresses.
    """

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        gradient, residual, half, factor, unit, out = arguments
        # Next to 1.5·2^23 units, fp32's own rounding leaves the integer in the low bits.
        large, factor = everywhere(build, build.fmul(unit, FLOAT(12582912.0))), everywhere(build, factor)
        found = [cgutils.alloca_once_value(build, same(0)) for _ in range(2)]
        with cgutils.for_range(build, build.sdiv(half, WORD(LANES))) as loop:
            place, integers = build.mul(loop.index, WORD(4 * LANES)), []
            for offset, largest in zip((place, build.add(place, build.mul(half, WORD(4)))), found, strict=True):
                scaled = build.fmul(factor, load(build, gradient, offset), flags=FREE_ORDER)
                total = build.fadd(load(build, residual, offset), scaled, flags=FREE_ORDER)
                magnitude = build.and_(build.bitcast(total, WORDS), same(0x7FFFFFFF))
                build.store(_larger(build, magnitude, build.load(largest)), largest)
                # Without flags: it is the rounding that counts.
                integers.append(build.bitcast(build.fadd(total, large), WORDS))
            low, high = build.and_(integers[0], same(0xFFFF)), build.shl(integers[1], same(16))
            store(build, build.or_(low, high), out, place)
        lanes = _larger(build, build.load(found[0]), build.load(found[1]))
        top = build.extract_element(lanes, INDEX(0))
        for lane in range(1, LANES):
            top = _larger(build, top, build.extract_element(lanes, INDEX(lane)))
        return top

    return types.int32(*[types.int64] * 3, types.float32, types.float32, types.int64), generate


@helper
def _finest(largest):
    """The smallest unit for a run whose largest magnitude has these bits.

    It is 0 where nothing counts, and Inf where the magnitude is none or its square leaves fp32's range, so that
    products show it.
    """
    # The smallest exponent e with |M| ≤ (2^12 − 1)·2^(e − 12).
    exponent = ((largest + (1 << (23 - _BITS))) >> 23) - 126
    if exponent < _SMALLEST_EXPONENT:
        return np.float32(0)
    return np.float32(2.0 ** (exponent - _BITS)) if exponent <= _LARGEST_EXPONENT else np.float32(np.inf)


@helper
def round_run(gradient, residual, half, factor, unit, out):
    """out ← both halves of a run of residual + factor·gradient as integers; returns their unit, a power of two.

    The unit that is given serves if it suits; otherwise the run is visited again.

    Args:
        gradient, residual: addresses of fp32 numbers.
        half: numbers of half a run, a multiple of eight.
        factor: fp32.
        unit: a guess, such as that of a neighbouring run.
        out: address of `half` words.
    """
    finest = _finest(_round(gradient, residual, half, factor, unit, out))
    if finest <= unit <= _COARSEST * finest:
        return unit
    _round(gradient, residual, half, factor, finest, out)
    return finest
