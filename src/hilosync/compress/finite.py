"""Refusal of gradients that no record may carry, on both sides of the wire."""

from __future__ import annotations

import torch

from hilosync.arithmetic.gradient import LowRankBlock
from hilosync.errors import MalformedPayload, NonFinite, PlanError
from hilosync.plan import AdapterPlan, Block

__all__ = [
    "LARGEST",
    "LARGEST_PRODUCT",
    "largest_magnitude",
    "require_finite",
    "require_finite_product",
    "require_flat",
]

LARGEST = 2.0**120
"""Largest magnitude of a gradient's element: products with a basis of any rank stay finite in fp32 and bf16."""

LARGEST_PRODUCT = 2.0**127
"""Half of fp32's range: sums below it stay finite with all their roundings."""


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


def require_flat(plan: AdapterPlan, buffer: torch.Tensor, subject: str = "gradient") -> None:
    """Checks that a buffer is what kernels take it for.

    Raises:
        PlanError: it is not flat, of the plan's size and fp32; says what came.
    """
    if buffer.shape != (plan.size,) or buffer.dtype != torch.float32:
        raise PlanError(
            f"expected a flat fp32 {subject} of the plan's {plan.size} elements, got shape {tuple(buffer.shape)} of "
            f"{str(buffer.dtype).removeprefix('torch.')}; flatten every tensor, join them in plan order, and convert"
        )


def require_finite(plan: AdapterPlan, gradient: torch.Tensor) -> None:
    """Checks every block of a flat gradient.

    Raises:
        PlanError: it is not a flat fp32 gradient of the plan's size.
        NonFinite: a block holds NaN, Inf, or a value beyond `LARGEST`; names the first such tensor.
    """
    require_flat(plan, gradient)
    for block, matrix in zip(plan.blocks, plan.views(gradient), strict=True):
        largest_magnitude(block, matrix)


def require_finite_product(block: Block, part: LowRankBlock) -> None:
    """Checks that no partial sum of a block of Ĝ can leave fp32's range, from the factors alone.

    By Cauchy and Schwarz |Σ L[i, k]·R[k, j]| ≤ ‖L[i]‖·‖R[:, j]‖, over any part of the sum. Encoders
    never come near the limit: one factor's rows or columns are orthonormal, but for their rounding.

    Raises:
        MalformedPayload: the bound is 2^127 or more; names the tensor.
    """
    rank = part.left.shape[1]
    if rank == 0:
        return
    scale = max(1.0, abs(part.scale))
    bound = scale * rank * _magnitude(part.left) * _magnitude(part.right)
    if not bound < LARGEST_PRODUCT:
        rows = torch.linalg.vector_norm(part.left, dim=1, dtype=torch.float64).max().item()
        columns = torch.linalg.vector_norm(part.right, dim=0, dtype=torch.float64).max().item()
        bound = scale * rows * columns
    if not bound < LARGEST_PRODUCT:
        raise MalformedPayload(
            f"the factors of {block.name} may have products up to {bound:.0e}: expected less than 2^127, "
            "which every encoder keeps"
        )


def _magnitude(factor: torch.Tensor) -> float:
    low, high = torch.aminmax(factor)
    return max(-low.item(), high.item())
