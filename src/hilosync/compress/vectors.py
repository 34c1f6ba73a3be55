"""LLVM's vectors for kernels whose registers LLVM does not find in loops over scalars.

Eight words, which a machine without such registers splits. Addresses and strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

__all__ = [
    "FLOAT",
    "FREE_ORDER",
    "INDEX",
    "LANES",
    "VECTOR",
    "WORD",
    "everywhere",
    "load",
    "mask",
    "pointer",
    "store",
]

FREE_ORDER = ("reassoc", "contract", "nsz")
"""What LLVM may do to sums; NaN and Inf keep their meaning."""

LANES = 8

FLOAT, WORD, INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)


def pointer(build: Any, base: Any, offset: Any, type_: Any) -> Any:
    """The address `base` + `offset`, of a value of this type."""
    return build.inttoptr(build.add(base, offset), type_.as_pointer())


def load(build: Any, base: Any, offset: Any, type_: Any = VECTOR) -> Any:
    """A vector of words that lies at `base` + `offset`."""
    value = build.load(pointer(build, base, offset, type_))
    value.align = 4
    return value


def store(build: Any, value: Any, base: Any, offset: Any) -> None:
    """Writes a vector of words to `base` + `offset`."""
    build.store(value, pointer(build, base, offset, value.type)).align = 4


def everywhere(build: Any, value: Any) -> Any:
    """A vector that holds one value in all lanes."""
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    return build.shuffle_vector(build.insert_element(nothing, value, INDEX(0)), nothing, mask([0] * LANES))


def mask(lanes: Sequence[int]) -> ir.Constant:
    """Which lanes a shuffle takes."""
    return ir.Constant(ir.VectorType(INDEX, len(lanes)), lanes)
