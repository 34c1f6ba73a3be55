"""Coefficients of all blocks, from the gradient to the range coder's symbols."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hilosync.arithmetic.compilation import kernel
from hilosync.compress import products, symbols
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.quantize import rounding_offsets
from hilosync.compress.rate import Choice, Components
from hilosync.compress.spectra import short_side_first
from hilosync.compress.tables import CLASSES, groupings

__all__ = ["Coefficients", "quantize_coefficients", "symbol_counts"]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of all components, rounded and grouped.

    Attributes:
        symbols: of one component after another, int16, flat.
        counts: symbols of each component, int64, shape (components,).
        laplacian: 1 where the Laplacian table suits better, int32, shape (components,).
        escaped: integers of escaped groups by component, int64, shape (components,).
        apart: these integers of one component after another, int32, flat.
    """

    symbols: np.ndarray
    counts: np.ndarray
    laplacian: np.ndarray
    escaped: np.ndarray
    apart: np.ndarray


def symbol_counts(parts: Components, laplacian: np.ndarray) -> np.ndarray:
    """Symbols of each component's coefficients."""
    return symbols.symbol_counts(parts.long_sides(), groupings()[laplacian, 1, parts.classes - CLASSES[0]])


def quantize_coefficients(gradient: torch.Tensor | CorrectedGradient, choice: Choice) -> Coefficients:
    """Projects each block on its rounded basis, rounds the coefficients and groups them.

    Args:
        gradient: flat, fp32, shape (plan.size,).
        choice: what is sent of it.
    """
    parts, corrected = choice.components, CorrectedGradient.of(gradient)
    places, long = parts.classes - CLASSES[0], parts.long_sides()
    kinds, offsets = groupings()[:, :, places], rounding_offsets()[places]
    found = np.empty(int(symbols.symbol_counts(long, kinds[:, 1].min(axis=0)).sum()), np.int16)
    laplacian, (counts, escaped) = np.empty(len(long), np.int32), np.empty((2, len(long)), np.int64)
    # Memory that is not written to is none: escaped groups are few.
    apart = np.empty(int(long.sum()), np.int32)
    results = found, laplacian, counts, escaped, apart
    if corrected.gradient.device.type == "cpu":
        of_blocks = np.array(parts.plan.offsets), np.array([block.columns for block in parts.plan.blocks])
        _quantize(
            *corrected.numpy(),
            np.float32(corrected.factor),
            *of_blocks,
            parts.ranks,
            choice.fits,
            offsets,
            kinds,
            *results,
        )
    else:
        _quantize_elsewhere(corrected, choice, offsets, kinds, *results)
    return Coefficients(found[: counts.sum()], counts, laplacian, escaped, apart[: escaped.sum()])


@kernel
def _group(fitted, first, start, end, offsets, kinds, found, laplacian, counts, escaped, apart):
    """`group_coefficients` of one block whose components, symbols and escaped integers begin there; where they end."""
    of = slice(first, first + len(fitted))
    beyond = symbols.group_coefficients(
        fitted, offsets[of], kinds[:, :, of], found[start:], laplacian[of], counts[of], escaped[of], apart[end:]
    )
    return first + len(fitted), start + counts[of].sum(), end + beyond


@kernel
def _quantize(G, E, factor, places, columns, ranks, fits, offsets, kinds, found, laplacian, counts, escaped, apart):
    """All blocks on the CPU; for the last arguments see `group_coefficients`."""
    entry, ends = 0, (0, 0, 0)
    for b in range(len(ranks)):
        k, run = ranks[b], slice(places[b], places[b + 1])
        rows = (places[b + 1] - places[b]) // columns[b]
        r = min(rows, columns[b])
        if k:
            P = fits[entry : entry + k * r].reshape((k, r))
            M = G[run].reshape((rows, columns[b])), E[run].reshape((rows, columns[b]))
            fitted = products.project(P, *M, factor)
            ends = _group(fitted, *ends, offsets, kinds, found, laplacian, counts, escaped, apart)
            entry += k * r


def _quantize_elsewhere(corrected: CorrectedGradient, choice: Choice, *arguments: np.ndarray) -> None:
    """The same with products on another device; `arguments` are those of `_quantize` from `offsets` on."""
    parts = choice.components
    entry, ends = 0, (0, 0, 0)
    for index, k in enumerate(parts.ranks.tolist()):
        total = short_side_first(corrected.block(parts.plan, index).stored())
        P = torch.from_numpy(choice.fits[entry : entry + k * len(total)]).view(k, len(total))
        ends = _group((P.to(total.device) @ total).cpu().numpy(), *ends, *arguments)
        entry += P.numel()
