"""A vector register as one Numba value, so that a kernel's text fixes its vector instructions.

LLVM's loop vectorizer takes half the vector width as soon as an fp32 loop also sums 64-bit words,
which costs more than the sums. Here `Lanes` is `<8 x float>`, `Doubles` is `<4 x double>` and `Words`
is `<4 x i64>`: operators on the first two are plain fadd, fsub, fmul and fdiv without any fast-math
flag, so each is rounded by itself, and LLVM lowers them to whatever the CPU has (two halves on SSE
and NEON).

A kernel's update is written once and compiled twice: for `Lanes`, and for fp32 scalars at the end of
a row.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, overload, register_model

__all__ = [
    "LANES",
    "advance",
    "broadcast",
    "load",
    "pointer",
    "position_words",
    "prefetch",
    "root",
    "signed",
    "splat",
    "store",
    "total",
    "weigh",
]

_intrinsic: Any = intrinsic
"""Its result is called without the typing context that its definition takes."""

LANES = 8
"""Numbers in a `Lanes` value."""

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_V8 = ir.VectorType(_F32, LANES)
_D4 = ir.VectorType(ir.DoubleType(), LANES // 2)
_W4 = ir.VectorType(ir.IntType(64), LANES // 2)


class _VectorType(types.Type):
    def __init__(self, name: str, kind: ir.VectorType) -> None:
        self.kind = kind
        super().__init__(name=name)


_lanes = _VectorType("Lanes", _V8)
_doubles = _VectorType("Doubles", _D4)
_words = _VectorType("Words", _W4)
_NUMBERS = (_lanes, _doubles)


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.kind)


def _constant(*values: int) -> ir.Constant:
    return ir.Constant(_W4, list(values))


_LOW = _constant(*[0xFFFFFFFF] * 4)


def _splat(builder, scalar, kind):
    empty = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(empty, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(single, empty, ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count))


def _address(context, builder, signature, array, index, kind):
    data = array
    if isinstance(signature.args[0], types.Array):
        data = context.make_array(signature.args[0])(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _vector_of(array):
    return _lanes if array.dtype == types.float32 else _doubles


@_intrinsic
def pointer(typing, array):
    """Where a contiguous array begins: unlike an array it can be passed on without counting a reference."""

    def codegen(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), codegen


def _binary(emit):
    @_intrinsic
    def operation(typing, a, b):
        def codegen(context, builder, signature, arguments):
            return getattr(builder, emit)(*arguments)

        return a(a, a), codegen

    def overloaded(a, b):
        if a in _NUMBERS and a == b:
            return lambda a, b: operation(a, b)
        return None

    return overloaded


for _operator, _emit in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    overload(_operator)(_binary(_emit))


@_intrinsic
def splat(typing, scalar):
    """The fp32 scalar in every lane."""

    def codegen(context, builder, signature, arguments):
        return _splat(builder, arguments[0], _V8)

    return _lanes(types.float32), codegen


@_intrinsic
def broadcast(typing, array, index):
    """array[index] of a contiguous array or pointer in every lane: `Lanes` from fp32, `Doubles` from fp64."""
    result = _vector_of(array)

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature, arguments[0], arguments[1], result.kind.element)
        return _splat(builder, builder.load(pointer), result.kind)

    return result(array, types.intp), codegen


@_intrinsic
def load(typing, array, index):
    """The `Lanes` or `Doubles` that begin at `index` of a contiguous fp32 or fp64 array or pointer."""
    result = _vector_of(array)

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature, arguments[0], arguments[1], result.kind)
        return builder.load(pointer, align=4)

    return result(array, types.intp), codegen


@_intrinsic
def store(typing, array, index, vector):
    """Writes `Lanes` or `Doubles` from `index` on."""

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature, arguments[0], arguments[1], vector.kind)
        builder.store(arguments[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@_intrinsic
def prefetch(typing, array, index):
    """Asks for the memory at `index` early; it may lie beyond the end, and changes no value."""

    def codegen(context, builder, signature, arguments):
        byte = ir.IntType(8)
        address = _address(context, builder, signature, arguments[0], arguments[1], byte)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@_intrinsic
def _lanes_root(typing, lanes):
    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(_V8, [_V8])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v8f32")
        return builder.call(function, arguments)

    return _lanes(_lanes), codegen


def root(x):
    """The correctly rounded square root of `Lanes` or an fp32 scalar."""
    raise NotImplementedError


@overload(root)
def _root(x):
    if x == _lanes:
        return lambda x: _lanes_root(x)
    return lambda x: math.sqrt(x)


@_intrinsic
def _lanes_signed(typing, lanes, rate):
    def codegen(context, builder, signature, arguments):
        lanes, rate = arguments
        zero = ir.Constant(_V8, [0.0] * LANES)
        negative = builder.select(builder.fcmp_ordered("<", lanes, zero), builder.fneg(rate), zero)
        return builder.select(builder.fcmp_ordered(">", lanes, zero), rate, negative)

    return _lanes(_lanes, _lanes), codegen


def signed(x, rate):
    """`rate` where x > 0, −rate where x < 0, +0 elsewhere; both `Lanes` or both fp32 scalars."""
    raise NotImplementedError


@overload(signed)
def _signed(x, rate):
    if x == _lanes:
        return lambda x, rate: _lanes_signed(x, rate)
    return lambda x, rate: rate if x > 0 else (-rate if x < 0 else np.float32(0))


@_intrinsic
def position_words(typing, origin, stride):
    """(even, odd): `Words` of origin + n · stride for n = 0, 2, 4, 6 and n = 1, 3, 5, 7."""

    def codegen(context, builder, signature, arguments):
        origin, stride = (_splat(builder, argument, _W4) for argument in arguments)
        words = [builder.add(origin, builder.mul(stride, _constant(*steps))) for steps in ((0, 2, 4, 6), (1, 3, 5, 7))]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(_words, 2)(types.uint64, types.uint64), codegen


@_intrinsic
def advance(typing, words, stride):
    """words + stride in every word, modulo 2⁶⁴."""

    def codegen(context, builder, signature, arguments):
        return builder.add(arguments[0], _splat(builder, arguments[1], _W4))

    return _words(_words, types.uint64), codegen


@_intrinsic
def weigh(typing, sums, lanes, even, odd):
    """sums + bits · weight: even lanes by the low halves of `even`, odd lanes by those of `odd`.

    Multiplying 32-bit halves of 64-bit words needs no widening shuffle (pmuludq).
    """

    def codegen(context, builder, signature, arguments):
        sums, lanes, even, odd = arguments
        pairs = builder.bitcast(lanes, _W4)
        low = builder.mul(builder.and_(pairs, _LOW), builder.and_(even, _LOW))
        high = builder.mul(builder.lshr(pairs, _constant(*[32] * 4)), builder.and_(odd, _LOW))
        return builder.add(sums, builder.add(low, high))

    return _words(_words, _lanes, _words, _words), codegen


@_intrinsic
def total(typing, words):
    """The sum of the words modulo 2⁶⁴."""

    def codegen(context, builder, signature, arguments):
        parts = [builder.extract_element(arguments[0], ir.Constant(_I32, n)) for n in range(4)]
        return builder.add(builder.add(parts[0], parts[1]), builder.add(parts[2], parts[3]))

    return types.uint64(_words), codegen
