"""Single passes over flat arrays: what can be done in one visit is.

Squares are summed in fp32 over some thousand elements and in fp64 beyond. Where squares leave fp32's
range, the caller sees a sum that is not a plausible one and looks again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["add_scaled", "energy"]

_RUN = 4096
"""Elements whose sum stays in the innermost cache: three times 16 KiB."""

_fast: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})
_kernel: Any = numba.njit(error_model="numpy", nogil=True, cache=True)


@_fast
def _sum_of_squares(values):
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i] * values[i]
    return total


@_fast
def _add_run(residual, gradient, factor, out):
    sent, summed = np.float32(0), np.float32(0)
    for i in range(len(gradient)):
        total = residual[i] + factor * gradient[i]
        out[i] = total
        sent += gradient[i] * gradient[i]
        summed += total * total
    return sent, summed


@_kernel
def energy(values):
    """‖values‖² of a flat fp32 array."""
    total = 0.0
    for start in range(0, len(values), _RUN):
        total += _sum_of_squares(values[start : start + _RUN])
    return total


@_kernel
def add_scaled(residual, gradient, factor, out, offsets, sent, summed):
    """out ← residual + factor·gradient, with the energies of each block in the same pass.

    Args:
        residual, gradient, out: flat, fp32, C order, and distinct.
        factor: an fp32 value.
        offsets: starts of the blocks to add and the end of the last, int64, shape (blocks + 1,).
        sent: ‖gradient‖² of each block afterwards, fp64, shape (blocks,).
        summed: the same of `out`.
    """
    for block in range(len(sent)):
        sent[block] = summed[block] = 0.0
        for start in range(offsets[block], offsets[block + 1], _RUN):
            run = slice(start, min(start + _RUN, offsets[block + 1]))
            more_sent, more_summed = _add_run(residual[run], gradient[run], factor, out[run])
            sent[block] += more_sent
            summed[block] += more_summed
