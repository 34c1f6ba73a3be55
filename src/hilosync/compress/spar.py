"""Spar: spectral truncation with one byte budget for all blocks (arXiv 2611.13306).

For each block G (short side r first, r×n): K = G·Gᵀ, eigh(K) → U, σ². Component i costs
2·(r+n) bytes and is worth σ_i². Ranks k are filled greedily by value per byte over all blocks;
a block may get rank 0. Shipped are U_k (r×k) and V_k = U_kᵀG (k×n) in bf16, and

    Ĝ = U_k·V_k,    summed over k ascending.

The body of the payload is that of `factors`: U_k is the left factor of a wide block, and U_kᵀ the
right factor of a tall one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.compress.allocate import allocate_ranks
from hilosync.compress.blocks import each_block
from hilosync.compress.factors import component_bytes, decode_factors, describe_factors, encode_factors, overhead
from hilosync.compress.payload import Kind
from hilosync.compress.spectra import Spectrum, completed, gram_matrices, leading_spectra, project
from hilosync.compress.state import require_names
from hilosync.errors import BudgetTooSmall
from hilosync.plan import AdapterPlan

__all__ = ["Spar", "reference_spar"]

_USUAL_RANK = 12
"""Components to look for first; the usual budget, one rank of every block, seldom gives a block more."""


@dataclass(frozen=True, slots=True)
class Spar:
    """The paper's compressor: bf16 factors, ranks only. It has no encoder state.

    Attributes:
        budget: bytes of a whole record; see `hilosync.compress.budget`.
    """

    budget: str | int | None = "rank 1"
    name = "spar"

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of a payload with one component of the cheapest block."""
        return overhead(plan) + min(component_bytes(block) for block in plan.blocks)

    def init(self, plan: AdapterPlan) -> None:
        """No state."""
        return

    def save_state(self, state: None) -> dict[str, torch.Tensor]:
        """No state."""
        return {}

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> None:
        """No state; see `Compressor.load_state`."""
        require_names(self.name, tensors, ())

    def encode(self, plan: AdapterPlan, state: None, gradient: torch.Tensor, budget: int) -> tuple[bytes, None]:
        """Ships the components with the most energy per byte; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"spar needs at least {smallest} bytes of payload for one component of one block, "
                f"got {budget}; raise the budget"
            )
        grams = gram_matrices(plan, gradient)
        found, short = leading_spectra(grams, _USUAL_RANK), [0]
        costs = [component_bytes(block) for block in plan.blocks]
        ranks: list[int] = []
        while short:
            ranks = allocate_ranks([spectrum.energies for spectrum in found], costs, budget - overhead(plan))
            short = [b for b, rank in enumerate(ranks) if rank == len(found[b].energies) < len(grams.matrices[b])]
            found = completed(grams, found, short)
        factors = each_block(_factors, plan.views(gradient), found, ranks)
        return encode_factors(Kind.SPAR, plan, factors), None

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the factors; see `Compressor.decode`."""
        return decode_factors(Kind.SPAR, plan, payload)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block."""
        return describe_factors(Kind.SPAR, plan, payload)


def _factors(matrix: torch.Tensor, spectrum: Spectrum, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """U_k as bf16 holds it and the projection on it, in the block's orientation."""
    U = spectrum.basis[:, :rank].bfloat16().float()
    V = torch.from_numpy(project(U.T.cpu().numpy(), matrix))
    return (U, V) if matrix.shape[0] <= matrix.shape[1] else (V.T, U.T)


def reference_spar(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Ĝ of one block without rounding: the best approximation of this rank (Eckart–Young)."""
    U, sigma, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (U[:, :rank] * sigma[:rank]) @ Vh[:rank]
