"""How the kernels are compiled, and cached on disk so that the next process starts in milliseconds.

No `fastmath`: it would fuse multiply and add. `error_model="numpy"` only removes the check for division
by zero. Numba would take a cached kernel for fresh as long as the kernel's own file is unchanged, even
when a function that it calls has changed; here the stamp covers every file that kernels are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numba
from blake3 import blake3
from numba.core.caching import CompileResultCacheImpl, FunctionCache

__all__ = ["INLINED", "helper", "inlined", "kernel"]

_SOURCES = ("compilation", "kernels", "lanes", "muon_kernel", "newton_schulz", "specification")
_STAMP = blake3(b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _SOURCES)).hexdigest(16)

INLINED: Any = {"error_model": "numpy", "nogil": True, "forceinline": True}
"""How a function is compiled that becomes part of the kernel's inner loop."""

helper: Any = numba.njit(error_model="numpy", nogil=True)
"""Compiles a function that kernels call."""

inlined: Any = numba.njit(**INLINED)
"""Compiles a function so."""


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes: ClassVar[Any] = [
        type(locator.__name__, (locator,), {"get_source_stamp": lambda self: _STAMP})
        for locator in CompileResultCacheImpl._locator_classes
    ]


class _Cache(FunctionCache):
    _impl_class = _CacheFiles


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a whole kernel for the types that it is first called with, or loads it from the cache."""
    dispatcher: Any = numba.njit(error_model="numpy", nogil=True)(function)
    dispatcher._cache = _Cache(function)
    return dispatcher
