"""Ĝ as a dense matrix, in torch operations that give the same bits on any device."""

from __future__ import annotations

import torch

from hilosync.arithmetic.gradient import DenseBlock, LowRankBlock

__all__ = ["materialize"]


def materialize(block: LowRankBlock | DenseBlock, out: torch.Tensor | None = None) -> torch.Tensor:
    """One block of Ĝ, shape (rows, columns), fp32, on the device of the block.

    The optimizers' fast paths never build it; learners need it for E ← (G + E) − Ĝ.

    Args:
        block: factors or values of the block.
        out: where to write, shape (rows, columns), fp32; None for a new tensor.
    """
    if isinstance(block, DenseBlock):
        return block.values.clone() if out is None else out.copy_(block.values)
    left, right = block.left, block.right
    shape = (left.shape[0], right.shape[1])
    total = left.new_zeros(shape) if out is None else out.zero_()
    product = torch.empty_like(total)
    # A product is written before it is added: addcmul or addmm would be free to fuse or reorder.
    for k in range(left.shape[1]):
        torch.mul(left[:, k : k + 1], right[k : k + 1, :], out=product)
        total.add_(product)
    return total.mul_(block.scale)
