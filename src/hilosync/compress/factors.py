"""Payloads of bf16 factors, which `spar` and `powersgd` share.

Body (frame in `payload`), little endian:

    blocks × u8      ranks (u16 or u32 if some block's short side needs it)
    per block        left factor (rows×k), right factor (k×columns), bf16, row-major
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.finite import require_finite_product
from hilosync.compress.payload import FRAME_BYTES, Kind, bf16_bytes, bf16_values, rank_dtype, seal, unseal
from hilosync.errors import MalformedPayload
from hilosync.plan import AdapterPlan, Block

__all__ = ["component_bytes", "decode_factors", "describe_factors", "encode_factors", "encode_flat_factors", "overhead"]


def encode_factors(kind: Kind, plan: AdapterPlan, factors: list[tuple[torch.Tensor, torch.Tensor]]) -> bytes:
    """Writes one pair (left (rows×k), right (k×columns)) per block as bf16."""
    ranks = [left.shape[1] for left, _ in factors]
    return encode_flat_factors(kind, plan, ranks, torch.cat([part.reshape(-1) for pair in factors for part in pair]))


def encode_flat_factors(kind: Kind, plan: AdapterPlan, ranks: list[int], factors: torch.Tensor) -> bytes:
    """The same from all factors in one flat tensor, in the order of the body."""
    return seal(kind, np.array(ranks, dtype=_rank_words(plan)).tobytes(), bf16_bytes(factors))


def decode_factors(kind: Kind, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
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
        require_finite_product(block, blocks[-1])
        start = end
    return tuple(blocks)


def describe_factors(kind: Kind, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
    """Name, rank and bytes of each block.

    Raises:
        MalformedPayload: as `decode_factors`.
    """
    ranks = _ranks(plan, unseal(kind, payload))
    return [
        {"name": block.name, "rank": int(rank), "bytes": int(rank) * component_bytes(block)}
        for block, rank in zip(plan.blocks, ranks, strict=True)
    ]


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
        rank * component_bytes(block) for block, rank in zip(plan.blocks, ranks.tolist(), strict=True)
    )
    if len(body) != expected:
        raise MalformedPayload(f"expected a body of {expected} bytes for these ranks, got {len(body)}")
    return ranks


def _rank_words(plan: AdapterPlan) -> np.dtype:
    return rank_dtype(max(min(block.rows, block.columns) for block in plan.blocks))


def component_bytes(block: Block) -> int:
    """Bytes of one component of a block: 2·(rows + columns)."""
    return 2 * (block.rows + block.columns)


def overhead(plan: AdapterPlan) -> int:
    """Bytes of a payload beyond its components."""
    return FRAME_BYTES + len(plan.blocks) * _rank_words(plan).itemsize
