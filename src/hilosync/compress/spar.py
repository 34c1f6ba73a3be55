"""Spar: spectral truncation with one byte budget for all blocks (arXiv 2611.13306).

For each block G (short side r first, r×n): K = G·Gᵀ, eigh(K) → U, σ². Component i costs
2·(r+n) bytes and is worth σ_i². Ranks k are filled greedily by value per byte over all blocks;
a block may get rank 0. Shipped are U_k (r×k) and V_k = U_kᵀG (k×n) in bf16, and

    Ĝ = U_k·V_k,    summed over k ascending.

Body of the payload (frame in `payload`), little endian:

    blocks × u8      ranks (u16 or u32 if some block's short side needs it)
    per block        left factor (rows×k), right factor (k×columns), bf16, row-major

The short factor is the left one of a wide block and the right one of a tall block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.allocate import allocate_ranks
from hilosync.compress.payload import FRAME_BYTES, bf16_bytes, bf16_values, rank_dtype, seal, unseal
from hilosync.compress.spectra import short_side_first, spectra
from hilosync.errors import BudgetTooSmall, MalformedPayload
from hilosync.plan import AdapterPlan, Block

__all__ = ["Spar", "decode_factors", "encode_factors", "reference_spar"]

_KIND = 1


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
        return _overhead(plan) + min(_component_bytes(block) for block in plan.blocks)

    def init(self, plan: AdapterPlan) -> None:
        """No state."""
        return

    def encode(self, plan: AdapterPlan, state: None, gradient: torch.Tensor, budget: int) -> tuple[bytes, None]:
        """Ships the components with the most energy per byte; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"spar needs at least {smallest} bytes of payload for one component of one block, "
                f"got {budget}; raise the budget"
            )
        found = spectra(plan, gradient)
        costs = [_component_bytes(block) for block in plan.blocks]
        ranks = allocate_ranks([spectrum.energies for spectrum in found], costs, budget - _overhead(plan))
        factors = []
        for matrix, spectrum, rank in zip(plan.views(gradient), found, ranks, strict=True):
            U = spectrum.basis[:, :rank].bfloat16().float()
            V = U.T @ short_side_first(matrix)
            factors.append((U, V) if matrix.shape[0] <= matrix.shape[1] else (V.T, U.T))
        return encode_factors(_KIND, plan, factors), None

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the factors; see `Compressor.decode`."""
        return decode_factors(_KIND, plan, payload)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block."""
        ranks = _ranks(plan, unseal(_KIND, payload))
        return [
            {"name": block.name, "rank": int(rank), "bytes": int(rank) * _component_bytes(block)}
            for block, rank in zip(plan.blocks, ranks, strict=True)
        ]


def reference_spar(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Ĝ of one block without rounding: the best approximation of this rank (Eckart–Young)."""
    U, sigma, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (U[:, :rank] * sigma[:rank]) @ Vh[:rank]


def encode_factors(kind: int, plan: AdapterPlan, factors: list[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """Writes one pair (left (rows×k), right (k×columns)) per block as bf16."""
    ranks = np.array([left.shape[1] for left, _ in factors], dtype=_rank_words(plan))
    return seal(kind, ranks.tobytes(), *(bf16_bytes(factor) for pair in factors for factor in pair))


def decode_factors(kind: int, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
    """Reads what `encode_factors` wrote; factors are fp32 views of one buffer.

    Raises:
        MalformedPayload: the bytes are not such a payload for this plan.
    """
    body = unseal(kind, payload)
    ranks = _ranks(plan, body)
    values = bf16_values(body[len(plan.blocks) * ranks.itemsize :])
    blocks, start = [], 0
    for block, rank in zip(plan.blocks, ranks.tolist(), strict=True):
        middle, end = start + block.rows * rank, start + (block.rows + block.columns) * rank
        left = values[start:middle].view(block.rows, rank)
        blocks.append(LowRankBlock(left, values[middle:end].view(rank, block.columns)))
        start = end
    return tuple(blocks)


def _ranks(plan: AdapterPlan, body: memoryview) -> np.ndarray:
    """The ranks of a body whose length they explain."""
    words = _rank_words(plan)
    length = len(plan.blocks) * words.itemsize
    if len(body) < length:
        raise MalformedPayload(f"expected {length} bytes of ranks, got a body of {len(body)} bytes")
    ranks = np.frombuffer(body[:length], dtype=words)
    for block, rank in zip(plan.blocks, ranks.tolist(), strict=True):
        if rank > min(block.rows, block.columns):
            raise MalformedPayload(f"rank {rank} of {block.name} is beyond its {block.rows} × {block.columns}")
    expected = length + sum(
        rank * _component_bytes(block) for block, rank in zip(plan.blocks, ranks.tolist(), strict=True)
    )
    if len(body) != expected:
        raise MalformedPayload(f"expected a body of {expected} bytes for these ranks, got {len(body)}")
    return ranks


def _rank_words(plan: AdapterPlan) -> np.dtype:
    return rank_dtype(max(min(block.rows, block.columns) for block in plan.blocks))


def _component_bytes(block: Block) -> int:
    return 2 * (block.rows + block.columns)


def _overhead(plan: AdapterPlan) -> int:
    return FRAME_BYTES + len(plan.blocks) * _rank_words(plan).itemsize
