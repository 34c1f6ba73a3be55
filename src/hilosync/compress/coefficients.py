"""Coefficients of all blocks, from the gradient to the range coder's symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hilosync.compress import products, symbols
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.quantize import rounding_offsets
from hilosync.compress.rate import Choice, Components, sides
from hilosync.compress.spectra import short_side_first
from hilosync.compress.tables import CLASSES, COEFFICIENT_SHAPES, grouping, groupings
from hilosync.plan import AdapterPlan

__all__ = ["Coefficients", "quantize_coefficients", "symbol_counts"]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of all components, rounded and grouped.

    Attributes:
        symbols: of one component after another, int16, flat.
        counts: symbols of each component, int64, shape (components,).
        laplacian: 1 where the Laplacian table suits better, int32, shape (components,).
        escaped: integers of escaped groups, int32, by the position of their component.
    """

    symbols: np.ndarray
    counts: np.ndarray
    laplacian: np.ndarray
    escaped: dict[int, np.ndarray]


def symbol_counts(parts: Components, laplacian: np.ndarray) -> np.ndarray:
    """Symbols of each component's coefficients."""
    return symbols.symbol_counts(parts.long_sides(), groupings()[laplacian, 1, parts.classes - CLASSES[0]])


def quantize_coefficients(gradient: torch.Tensor | CorrectedGradient, choice: Choice) -> Coefficients:
    """Projects each block on its rounded basis, rounds the coefficients and groups them.

    Args:
        gradient: flat, fp32, shape (plan.size,).
        choice: what is sent of it.
    """
    parts = choice.components
    places = parts.classes - CLASSES[0]
    kinds, offsets = groupings()[:, :, places], rounding_offsets()[places]
    most = symbols.symbol_counts(parts.long_sides(), kinds[:, 1].min(axis=0))
    found = np.empty(int(most.sum()), np.int16)
    laplacian, escaped = np.empty((2, len(most)), np.int32)
    counts = np.empty(len(most), np.int64)
    apart: dict[int, np.ndarray] = {}
    first, start, entry = 0, 0, 0
    projected = _projection(parts.plan, CorrectedGradient.of(gradient))
    for index, (block, k) in enumerate(zip(parts.plan.blocks, parts.ranks.tolist(), strict=True)):
        if k == 0:
            continue
        r, n = sides(block)
        fitted = projected(index, choice.fits[entry : entry + k * r].reshape(k, r))
        of = slice(first, first + k)
        beyond = symbols.group_coefficients(
            fitted, offsets[of], kinds[:, :, of], found[start:], laplacian[of], counts[of], escaped[of]
        )
        ends = start + np.cumsum(counts[of])
        if beyond:
            for i in np.flatnonzero(escaped[of]).tolist():
                c = first + i
                together = grouping(COEFFICIENT_SHAPES[laplacian[c]], int(parts.classes[c]))
                values = fitted[i, symbols.escaped_places(found[ends[i] - counts[c] : ends[i]], together, n)]
                apart[c] = (np.trunc(np.abs(values) + offsets[c]) * np.sign(values)).astype(np.int32)
        first, start, entry = first + k, int(ends[-1]), entry + k * r
    return Coefficients(found[:start], counts, laplacian, apart)


def _projection(plan: AdapterPlan, corrected: CorrectedGradient) -> Callable[[int, np.ndarray], np.ndarray]:
    """What gives P·G of a block from its position and a P; on the CPU without tensors, which cost more than arrays."""

    def elsewhere(index: int, P: np.ndarray) -> np.ndarray:
        total = short_side_first(corrected.block(plan, index).stored())
        return (torch.from_numpy(P).to(total.device) @ total).cpu().numpy()

    if corrected.gradient.device.type != "cpu":
        return elsewhere
    (G, E), factor, offsets = corrected.numpy(), np.float32(corrected.factor), plan.offsets

    def on_cpu(index: int, P: np.ndarray) -> np.ndarray:
        block, of_block = plan.blocks[index], slice(offsets[index], offsets[index + 1])
        shape = block.rows, block.columns
        return products.project(P, G[of_block].reshape(shape), E[of_block].reshape(shape), factor)

    return on_cpu
