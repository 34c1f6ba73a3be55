"""Refusal of gradients that no record may carry."""

from __future__ import annotations

import torch

from hilosync.errors import NonFinite
from hilosync.plan import AdapterPlan, Block

__all__ = ["LARGEST", "largest_magnitude", "require_finite"]

LARGEST = 2.0**120
"""Largest magnitude of a gradient's element: products with a basis of any rank stay finite in fp32 and bf16."""


def largest_magnitude(block: Block, matrix: torch.Tensor, subject: str = "the gradient") -> float:
    """Largest |G[i, j]| of one block; `subject` says in the message what G is.

    Raises:
        NonFinite: the block holds NaN, Inf, or a value beyond `LARGEST`.
    """
    low, high = (value.item() for value in torch.aminmax(matrix))
    magnitude = max(-low, high)
    if not magnitude <= LARGEST:  # also when NaN
        what = "a value beyond 2^120" if abs(magnitude) < float("inf") else "NaN or Inf"
        raise NonFinite(
            f"{subject} of {block.name} holds {what}: expected finite fp32 values; "
            "skip this step (a skipped step is simply no record) and look at the loss"
        )
    return magnitude


def require_finite(plan: AdapterPlan, gradient: torch.Tensor) -> None:
    """Checks every block of a flat gradient.

    Raises:
        NonFinite: a block holds NaN, Inf, or a value beyond `LARGEST`; names the first such tensor.
    """
    for block, matrix in zip(plan.blocks, plan.views(gradient), strict=True):
        largest_magnitude(block, matrix)
