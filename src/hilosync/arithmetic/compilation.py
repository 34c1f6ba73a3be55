"""How the kernels are compiled, and cached on disk so that the next process starts in milliseconds.

No `fastmath`: it would fuse multiply and add. `error_model="numpy"` only removes the check for division
by zero. Numba would take a cached kernel for fresh as long as the kernel's own file is unchanged, even
when a function that it calls has changed; here the stamp covers every file of its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numba
from blake3 import blake3
from numba.core.caching import CompileResultCacheImpl, FunctionCache

__all__ = ["INLINED", "helper", "inlined", "kernel"]

INLINED: Any = {"error_model": "numpy", "nogil": True, "forceinline": True}
"""How a function is compiled that becomes part of the kernel's inner loop."""

helper: Any = numba.njit(error_model="numpy", nogil=True)
"""Compiles a function that kernels call."""

inlined: Any = numba.njit(**INLINED)
"""Compiles a function so."""


@cache
def _stamp(folder: Path) -> str:
    content = b"".join(path.read_bytes() for path in (Path(__file__), *sorted(folder.glob("*.py"))))
    return blake3(content).hexdigest(16)


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes: ClassVar[Any] = [
        type(locator.__name__, (locator,), {"get_source_stamp": lambda self: _stamp(Path(self._py_file).parent)})
        for locator in CompileResultCacheImpl._locator_classes
    ]


class _Cache(FunctionCache):
    _impl_class = _CacheFiles


def kernel(function: Callable[..., Any], **flags: Any) -> Any:
    """Compiles a whole kernel for the types that it is first called with, or loads it from the cache.

    `flags` are Numba's. Whatever it calls lies in the same folder.
    """
    dispatcher: Any = numba.njit(error_model="numpy", nogil=True, **flags)(function)
    dispatcher._cache = _Cache(function)
    return dispatcher
