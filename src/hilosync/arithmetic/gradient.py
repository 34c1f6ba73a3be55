"""The decoded gradient Ĝ: what every replica reads out of the same payload.

A block is low-rank or dense. Its value is defined element by element, so that any machine
computes the same bits:

    low-rank   Ĝ[i, j] = scale · (((0 + L[i, 0]·R[0, j]) + L[i, 1]·R[1, j]) + …)   k ascending
    dense      Ĝ[i, j] = values[i, j]

Every product and every sum is rounded to fp32 by itself; nothing is fused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["DecodedGradient", "DenseBlock", "LowRankBlock"]


@dataclass(frozen=True, slots=True)
class LowRankBlock:
    """Factors of one block of Ĝ; rank 0 (k = 0) is the zero block.

    Attributes:
        left: L, shape (rows, k), fp32.
        right: R, shape (k, columns), fp32.
        scale: an fp32 value, multiplied once after the sum over k.
    """

    left: torch.Tensor
    right: torch.Tensor
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """Values of one block of Ĝ, shape (rows, columns), fp32."""

    values: torch.Tensor


DecodedGradient = tuple[LowRankBlock | DenseBlock, ...]
"""Ĝ, one entry per block in plan order."""
