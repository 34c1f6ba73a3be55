"""The corrected gradient G' = c·G + E as what it is the sum of, so that nobody has to store it.

E + G − G is not E in floating point: a sum in the place of E could not be undone when a step fails, and one
beside it would cost a gradient's memory. Compressors that visit blocks one after another add them up in
the cache instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.compress.base import Compressor
from hilosync.compress.finite import largest_magnitude, require_flat
from hilosync.plan import AdapterPlan, Block

__all__ = ["CorrectedGradient", "encode_corrected", "require_finite_sum"]


@dataclass(frozen=True, slots=True)
class CorrectedGradient:
    """G' = c·G + E, of a whole adapter or of one block.

    Attributes:
        gradient: G, fp32, C order.
        residual: E, of the same shape.
        factor: c, an fp32 value; 0 where there is no G beside E.
    """

    gradient: torch.Tensor
    residual: torch.Tensor
    factor: float = 1.0

    @classmethod
    def of(cls, gradient: torch.Tensor | CorrectedGradient) -> CorrectedGradient:
        """A tensor as the sum of itself and nothing."""
        if isinstance(gradient, CorrectedGradient):
            return gradient
        gradient = gradient.contiguous()
        return cls(gradient, gradient, 0.0)

    def block(self, plan: AdapterPlan, index: int) -> CorrectedGradient:
        """That of one block, as views."""
        extent, shape = slice(plan.offsets[index], plan.offsets[index + 1]), plan.blocks[index]
        gradient, residual = (flat[extent].view(shape.rows, shape.columns) for flat in (self.gradient, self.residual))
        return CorrectedGradient(gradient, residual, self.factor)

    def blocks(self, plan: AdapterPlan) -> list[CorrectedGradient]:
        """Those of every block, as views."""
        return [self.block(plan, index) for index in range(len(plan.blocks))]

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """G and E, on the CPU."""
        return self.gradient.numpy(), self.residual.numpy()

    def stored(self) -> torch.Tensor:
        """The sum, in memory of its own unless there is nothing to add."""
        if self.factor == 0.0:
            return self.residual
        return torch.add(self.residual, self.gradient, alpha=self.factor)


def encode_corrected(
    compressor: Compressor, plan: AdapterPlan, state: Any, corrected: CorrectedGradient, budget: int
) -> tuple[bytes, Any]:
    """What `compressor.encode` returns for G', which is stored only for a compressor that does not take sums.

    Raises:
        PlanError: G is not a flat fp32 gradient of the plan's size.
        NonFinite: G or G' holds NaN, Inf or a value beyond 2^120; names the tensor.
        BudgetTooSmall: `budget` is below the compressor's smallest payload.
    """
    # Of the class: what wraps a compressor and forwards its attributes has an `encode` of its own.
    if getattr(type(compressor), "takes_sums", False):
        return compressor.encode(plan, state, corrected, budget)  # type: ignore[arg-type]
    require_flat(plan, corrected.gradient)
    stored = corrected.stored()
    for block, part, view in zip(plan.blocks, corrected.blocks(plan), plan.views(stored), strict=True):
        require_finite_sum(block, part, view)
    return compressor.encode(plan, state, stored, budget)


def require_finite_sum(block: Block, part: CorrectedGradient, total: torch.Tensor | None = None) -> float:
    """Largest |G'[i, j]| of one block.

    Args:
        block: names the tensor.
        part: G and E.
        total: G', if it is known.

    Raises:
        NonFinite: G or G' holds NaN, Inf, or a value beyond 2^120, which no compressor takes.
    """
    magnitude = largest_magnitude(block, part.gradient)
    if part.factor == 0.0:
        return magnitude
    return largest_magnitude(block, part.stored() if total is None else total, "the sum of gradient and residual")
