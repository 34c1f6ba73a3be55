"""Gram matrices of long and flat matrices on the CPU, of a sum of two that is nowhere stored.

A LoRA gradient has one side of 16 to 128 and one of thousands. Its Gram matrix is bound by multiplications,
so they are made in integers of 12 bits (`integers`): inner products of a wide block's rows (`wide`), outer products
of a tall one's (`tall`). Sums of some hundred products are exact; rounding adds white noise of less than a thousandth
of a run's energy, and to the spectrum alone: what is sent along a direction is computed from the gradient itself.

LLVM does not find these tiles in loops over scalars, so they are written in LLVM's vectors (eight words, which a
machine without such registers splits). This is the encoder's side, whose rounding is free.
"""

from __future__ import annotations

import numpy as np

from hilosync.arithmetic.compilation import kernel
from hilosync.compress.tall import tall_grams
from hilosync.compress.wide import wide_grams

__all__ = ["gram", "reference_gram"]


@kernel
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
    wide_grams(G, E, factor, offsets, columns, starts, out)
    tall_grams(G, E, factor, offsets, columns, starts, out)
    for b in range(len(columns)):
        r = min(columns[b], (offsets[b + 1] - offsets[b]) // columns[b])
        traces[b] = np.trace(out[starts[b] : starts[b] + r * r].reshape((r, r)))


def reference_gram(G: np.ndarray, E: np.ndarray, factor: float) -> np.ndarray:
    """The same in fp64, without rounding to 12 bits."""
    M = E.astype(np.float64) + factor * G.astype(np.float64)
    M = M if M.shape[0] <= M.shape[1] else M.T
    return M @ M.T
