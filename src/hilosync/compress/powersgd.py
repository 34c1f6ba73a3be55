"""PowerSGD: low rank by one warm-started power iteration (Vogels et al., arXiv 1905.13727).

    P = orth(G·Q)      Q = GᵀP      Ĝ = P·Qᵀ      Q starts the next step's iteration

Every block has the same rank, as in the paper. What a budget leaves beyond a whole rank of every
block (all of it, when the budget is below one rank) goes to the blocks with the most energy per
byte, one rank each. Factors travel in bf16; the body of the payload is that of `spar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.compress.factors import component_bytes, decode_factors, describe_factors, encode_factors, overhead
from hilosync.compress.finite import require_finite
from hilosync.compress.payload import Kind
from hilosync.compress.state import require_names, saved_tensor
from hilosync.errors import BudgetTooSmall
from hilosync.plan import AdapterPlan

__all__ = ["PowerSGD", "power_iteration", "uniform_ranks"]


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Rank-k power iteration with a warm start.

    Its encoder state is one Q of shape (columns, r) per block: column i starts component i.

    Attributes:
        budget: bytes of a whole record; see `hilosync.compress.budget`.
    """

    budget: str | int | None = "rank 1"
    name = "powersgd"

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of a payload with one component of the cheapest block."""
        return overhead(plan) + min(component_bytes(block) for block in plan.blocks)

    def init(self, plan: AdapterPlan) -> list[torch.Tensor]:
        """Random starts, drawn when a block first needs them."""
        return [torch.zeros(block.columns, 0) for block in plan.blocks]

    def save_state(self, state: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """One Q per block, by its position."""
        return {f"start.{index}": start.contiguous() for index, start in enumerate(state)}

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """One Q per block; see `Compressor.load_state`."""
        names = [f"start.{index}" for index in range(len(plan.blocks))]
        require_names(self.name, tensors, names)
        return [
            saved_tensor(tensors, name, (block.columns, None)) for name, block in zip(names, plan.blocks, strict=True)
        ]

    def encode(
        self, plan: AdapterPlan, state: list[torch.Tensor], gradient: torch.Tensor, budget: int
    ) -> tuple[bytes, list[torch.Tensor]]:
        """One power iteration per block; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"powersgd needs at least {smallest} bytes of payload for one component of one block, "
                f"got {budget}; raise the budget"
            )
        require_finite(plan, gradient)
        matrices = plan.views(gradient)
        energies = [torch.linalg.vector_norm(matrix, dtype=torch.float64).item() ** 2 for matrix in matrices]
        costs = [component_bytes(block) for block in plan.blocks]
        largest = [min(block.rows, block.columns) for block in plan.blocks]
        ranks = uniform_ranks(energies, costs, largest, budget - overhead(plan))
        factors, following = [], []
        for matrix, start, rank in zip(matrices, state, ranks, strict=True):
            P, Q, start = power_iteration(matrix, start.to(matrix.device), rank)
            factors.append((P, Q.T))
            following.append(start)
        return encode_factors(Kind.POWERSGD, plan, factors), following

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the factors; see `Compressor.decode`."""
        return decode_factors(Kind.POWERSGD, plan, payload)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block."""
        return describe_factors(Kind.POWERSGD, plan, payload)


def uniform_ranks(energies: list[float], costs: list[int], largest: list[int], budget: int) -> list[int]:
    """Equal ranks for all blocks, then one more for those with the most energy per byte that still fit.

    Args:
        energies: ‖G‖² of each block; a block of zeros gets rank 0.
        costs: bytes of one component of each block.
        largest: largest rank of each block.
        budget: bytes of all components together.
    """
    full = [rank if energy > 0 else 0 for rank, energy in zip(largest, energies, strict=True)]

    def bytes_of(rank: int) -> int:
        return sum(min(rank, most) * cost for most, cost in zip(full, costs, strict=True))

    rank = 0
    while rank < max(full) and bytes_of(rank + 1) <= budget:
        rank += 1
    ranks = [min(rank, most) for most in full]
    left = budget - bytes_of(rank)
    for block in np.argsort([-energy / cost for energy, cost in zip(energies, costs, strict=True)], kind="stable"):
        if ranks[block] < full[block] and costs[block] <= left:
            ranks[block] += 1
            left -= costs[block]
    return ranks


def power_iteration(
    matrix: torch.Tensor, start: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P (rows×k, orthonormal, as bf16 holds it), Q (columns×k), and the next start (columns×≥k).

    Starts that lack columns are filled with random ones; starts that a step did not use are kept.
    Columns of a start have unit length, so that gradients of any magnitude pass.
    """
    columns = matrix.shape[1]
    if start.shape[1] < rank:
        generator = torch.Generator().manual_seed(start.shape[1])
        fresh = torch.randn(columns, rank - start.shape[1], generator=generator).to(matrix.device)
        start = torch.cat([start, fresh / torch.linalg.vector_norm(fresh, dim=0)], dim=1)
    if rank == 0:
        return matrix.new_zeros(matrix.shape[0], 0), matrix.new_zeros(columns, 0), start
    image = matrix @ start[:, :rank]
    # A power of two brings the image near 1: Householder's squares must not leave fp32's range.
    exponent = int(np.frexp(image.abs().max().item())[1])
    image = image * 2.0 ** (-exponent // 2) * 2.0 ** (-exponent - (-exponent // 2))
    P = torch.linalg.qr(image).Q.bfloat16().float()
    Q = matrix.T @ P
    norms = torch.linalg.vector_norm(Q, dim=0, dtype=torch.float64)
    unit = (Q.double() / norms.clamp(min=1e-300)).float()
    return P, Q, torch.cat([torch.where(norms > 0, unit, start[:, :rank]), start[:, rank:]], dim=1)
