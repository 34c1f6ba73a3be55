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

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.compress.allocate import allocate_ranks
from hilosync.compress.blocks import each_part
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.factors import (
    component_bytes,
    decode_factors,
    describe_factors,
    encode_flat_factors,
    overhead,
)
from hilosync.compress.payload import Kind
from hilosync.compress.products import low_rank_factors
from hilosync.compress.spectra import completed, gram_matrices, leading_spectra
from hilosync.compress.state import require_names
from hilosync.errors import BudgetTooSmall
from hilosync.plan import AdapterPlan

__all__ = ["Spar", "reference_spar"]

_USUAL_RANK, _ROUNDS = 12, 2
"""Components to look for first, and in how many rounds; one rank of every block seldom gives a block more."""


@dataclass(frozen=True, slots=True)
class Spar:
    """The paper's compressor: bf16 factors, ranks only. It has no encoder state.

    Attributes:
        budget: bytes of a whole record; see `hilosync.compress.budget`.
    """

    budget: str | int | None = "rank 1"
    name = "spar"
    takes_sums = True

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

    def encode(
        self, plan: AdapterPlan, state: None, gradient: torch.Tensor | CorrectedGradient, budget: int
    ) -> tuple[bytes, None]:
        """Ships the components with the most energy per byte; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"spar needs at least {smallest} bytes of payload for one component of one block, "
                f"got {budget}; raise the budget"
            )
        grams = gram_matrices(plan, gradient)
        found, short = leading_spectra(grams, _USUAL_RANK, _ROUNDS), [0]
        costs = [component_bytes(block) for block in plan.blocks]
        ranks: list[int] = []
        while short:
            ranks = allocate_ranks([spectrum.energies for spectrum in found], costs, budget - overhead(plan))
            short = [b for b, rank in enumerate(ranks) if rank == len(found[b].energies) < len(grams.matrices[b])]
            found = completed(grams, found, short)
        bases = [spectrum.basis[:, :rank].T for spectrum, rank in zip(found, ranks, strict=True)]
        return encode_flat_factors(Kind.SPAR, plan, ranks, _factors(plan, gradient, bases)), None

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the factors; see `Compressor.decode`."""
        return decode_factors(Kind.SPAR, plan, payload)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block."""
        return describe_factors(Kind.SPAR, plan, payload)


def _factors(plan: AdapterPlan, gradient: torch.Tensor | CorrectedGradient, bases: list[torch.Tensor]) -> torch.Tensor:
    """U_k as bf16 holds it and the projection on it, of one block after another in the block's orientation, flat."""
    corrected, ranks = CorrectedGradient.of(gradient), np.array([len(basis) for basis in bases])
    rounded = torch.cat([basis.reshape(-1) for basis in bases]).bfloat16().float()
    if rounded.device.type != "cpu":
        parts = zip(corrected.blocks(plan), rounded.split([basis.numel() for basis in bases]), bases, strict=True)
        return torch.cat([_factors_of_block(part, flat.view_as(basis)) for part, flat, basis in parts])
    before = np.cumsum([0, *(basis.numel() for basis in bases)])
    starts = np.cumsum([0, *(k * (block.rows + block.columns) for k, block in zip(ranks, plan.blocks, strict=True))])
    out, pair, factor = torch.empty(int(starts[-1])), corrected.numpy(), np.float32(corrected.factor)

    def fill(part: slice, offsets: np.ndarray, columns: np.ndarray) -> None:
        inputs, outputs = (slice(ends[part.start], ends[part.stop]) for ends in (before, starts))
        known = rounded.numpy()[inputs], ranks[part]
        low_rank_factors(*known, *pair, factor, offsets, columns, out.numpy()[outputs])

    each_part(fill, plan)
    return out


def _factors_of_block(part: CorrectedGradient, basis: torch.Tensor) -> torch.Tensor:
    """The same of one block, flat."""
    G = part.stored()
    left, right = (basis.T, basis @ G) if G.shape[0] <= G.shape[1] else (G @ basis.T, basis)
    return torch.cat([left.reshape(-1), right.reshape(-1)])


def reference_spar(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Ĝ of one block without rounding: the best approximation of this rank (Eckart–Young)."""
    U, sigma, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (U[:, :rank] * sigma[:rank]) @ Vh[:rank]
