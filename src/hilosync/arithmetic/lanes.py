"""A vector register as one Numba value, so that a kernel's text fixes its vector instructions.

LLVM's loop vectorizer takes half the vector width as soon as an fp32 loop also sums 64-bit words,
which costs more than the sums. Here `Lanes` is `<8 x float>`, `Doubles` is `<4 x double>` and `Words`
is `<4 x i64>`: operators on the first two are plain fadd, fsub, fmul and fdiv without any fast-math
flag, so each is rounded by itself, and LLVM lowers them to whatever the CPU has (two halves on SSE
and NEON). Loads and stores also take a tuple of pointers, one per buffer, and then give a tuple.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, overload, register_model

from hilosync.arithmetic.specification import rotation

__all__ = [
    "LANES",
    "absorb",
    "broadcast",
    "load",
    "load_part",
    "no_sums",
    "pointer",
    "prefetch",
    "root",
    "signed",
    "splat",
    "store",
    "store_part",
    "unpack",
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
_M8 = ir.VectorType(ir.IntType(1), LANES)


class _VectorType(types.Type):
    def __init__(self, name: str, kind: ir.VectorType) -> None:
        self.kind = kind
        super().__init__(name=name)


_lanes = _VectorType("Lanes", _V8)
_doubles = _VectorType("Doubles", _D4)
_words = _VectorType("Words", _W4)
_pair = types.UniTuple(_words, 2)


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.kind)


def _same(constant: float, kind: ir.VectorType) -> ir.Constant:
    return ir.Constant(kind, [constant] * kind.count)


def _splat(builder, scalar, kind):
    empty = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(empty, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(single, empty, _same(0, ir.VectorType(_I32, kind.count)))


def _address(context, builder, kind, array, index, target):
    data = array
    if isinstance(kind, types.Array):
        data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _vector_of(array):
    return _lanes if array.dtype == types.float32 else _doubles


def _each(kind, builder, value) -> list[tuple[Any, Any]]:
    """(type, value) of every item of a tuple, or of the value alone."""
    if isinstance(kind, types.UniTuple):
        return [(kind.dtype, builder.extract_value(value, n)) for n in range(kind.count)]
    return [(kind, value)]


def _whole(context, builder, kind, values):
    return context.make_tuple(builder, kind, values) if isinstance(kind, types.UniTuple) else values[0]


def _loaded(buffers):
    """The type that is loaded from one array or pointer, or from a tuple of them."""
    if isinstance(buffers, types.UniTuple):
        return types.UniTuple(_lanes, buffers.count)
    return _vector_of(buffers)


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
        if a in (_lanes, _doubles) and a == b:
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
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], result.kind.element)
        return _splat(builder, builder.load(address), result.kind)

    return result(array, types.intp), codegen


@_intrinsic
def load(typing, buffers, index):
    """The `Lanes` or `Doubles` that begin at `index` of a contiguous fp32 or fp64 array or pointer."""
    result = _loaded(buffers)

    def codegen(context, builder, signature, arguments):
        loaded = []
        for kind, buffer in _each(signature.args[0], builder, arguments[0]):
            address = _address(context, builder, kind, buffer, arguments[1], _vector_of(kind).kind)
            loaded.append(builder.load(address, align=4))
        return _whole(context, builder, signature.return_type, loaded)

    return result(buffers, types.intp), codegen


@_intrinsic
def store(typing, buffers, index, values):
    """Writes `Lanes` or `Doubles` from `index` on."""

    def codegen(context, builder, signature, arguments):
        buffers, index, values = arguments
        each = _each(signature.args[0], builder, buffers), _each(signature.args[2], builder, values)
        for (kind, buffer), (_, value) in zip(*each, strict=True):
            address = _address(context, builder, kind, buffer, index, _vector_of(kind).kind)
            builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.void(buffers, types.intp, values), codegen


def _mask(builder, count):
    numbers = ir.VectorType(ir.IntType(64), LANES)
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(LANES))), _splat(builder, count, numbers))


_NOTHING = _same(0.0, _V8)
_ALIGN = ir.Constant(_I32, 4)


@_intrinsic
def load_part(typing, buffers, index, count):
    """The first `count` of the `Lanes` at `index` of an fp32 pointer, or of several; the others are 0."""

    def codegen(context, builder, signature, arguments):
        buffers, index, count = arguments
        kind = ir.FunctionType(_V8, [_V8.as_pointer(), _I32, _M8, _V8])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v8f32.p0")
        mask = _mask(builder, count)
        loaded = [
            builder.call(function, [_address(context, builder, kind, buffer, index, _V8), _ALIGN, mask, _NOTHING])
            for kind, buffer in _each(signature.args[0], builder, buffers)
        ]
        return _whole(context, builder, signature.return_type, loaded)

    return _loaded(buffers)(buffers, types.intp, types.intp), codegen


@_intrinsic
def store_part(typing, buffers, index, count, values):
    """Writes the first `count` of each `Lanes` from `index` on, and returns them with 0 in the others."""

    def codegen(context, builder, signature, arguments):
        buffers, index, count, values = arguments
        kind = ir.FunctionType(ir.VoidType(), [_V8, _V8.as_pointer(), _I32, _M8])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.store.v8f32.p0")
        mask = _mask(builder, count)
        kept = []
        each = _each(signature.args[0], builder, buffers), _each(signature.args[3], builder, values)
        for (kind, buffer), (_, value) in zip(*each, strict=True):
            builder.call(function, [value, _address(context, builder, kind, buffer, index, _V8), _ALIGN, mask])
            kept.append(builder.select(mask, value, _NOTHING))
        return _whole(context, builder, signature.return_type, kept)

    return values(buffers, types.intp, types.intp, values), codegen


@_intrinsic
def prefetch(typing, buffers, index):
    """Asks for the memory at `index` early; it may lie beyond the end, and changes no value."""

    def codegen(context, builder, signature, arguments):
        byte = ir.IntType(8)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
        for kind, buffer in _each(signature.args[0], builder, arguments[0]):
            address = _address(context, builder, kind, buffer, arguments[1], byte)
            builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(buffers, types.intp), codegen


@_intrinsic
def root(typing, lanes):
    """The correctly rounded square roots."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(_V8, [_V8])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v8f32")
        return builder.call(function, arguments)

    return _lanes(_lanes), codegen


@_intrinsic
def signed(typing, lanes, rate):
    """`rate` where x > 0, −rate where x < 0, +0 elsewhere."""

    def codegen(context, builder, signature, arguments):
        lanes, rate = arguments
        negative = builder.select(builder.fcmp_ordered("<", lanes, _NOTHING), builder.fneg(rate), _NOTHING)
        return builder.select(builder.fcmp_ordered(">", lanes, _NOTHING), rate, negative)

    return _lanes(_lanes, _lanes), codegen


@_intrinsic
def no_sums(typing):
    """A pair of `Words` that has absorbed nothing."""

    def codegen(context, builder, signature, arguments):
        return context.make_tuple(builder, signature.return_type, [_same(0, _W4)] * 2)

    return _pair(), codegen


@_intrinsic
def absorb(typing, sums, buffers):
    """Fletcher's step, plain ← plain + x, ramped ← ramped + plain, with x made of one `Lanes` per buffer.

    x = Σ_b rotl(words of buffer b, rotation(b)) modulo 2⁶⁴. After n steps plain holds every x once, and
    ramped holds the first x n times and the last once: a weighted sum without a multiplication.
    """

    def codegen(context, builder, signature, arguments):
        plain, ramped = (builder.extract_value(arguments[0], n) for n in range(2))
        rotated: list[Any] = []
        for buffer, (_, lanes) in enumerate(_each(signature.args[1], builder, arguments[1])):
            left = rotation(buffer)
            words = builder.bitcast(lanes, _W4)
            if left:
                words = builder.or_(builder.shl(words, _same(left, _W4)), builder.lshr(words, _same(64 - left, _W4)))
            rotated.append(words)
        # The parameters come last: they are the last to be ready.
        x = rotated.pop()
        while rotated:
            x = builder.add(x, rotated.pop())
        plain = builder.add(plain, x)
        return context.make_tuple(builder, signature.return_type, [plain, builder.add(ramped, plain)])

    return _pair(_pair, buffers), codegen


@_intrinsic
def unpack(typing, words):
    """The four words of `Words`, as a tuple of uint64."""

    def codegen(context, builder, signature, arguments):
        parts = [builder.extract_element(arguments[0], ir.Constant(_I32, n)) for n in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.uint64, 4)(_words), codegen
