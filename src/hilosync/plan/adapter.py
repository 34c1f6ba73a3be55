"""`AdapterPlan`: the ordered tensors of an adapter, and where each lies in a flat buffer.

Learner and replicas hold parameters and optimizer slots as flat fp32 buffers in plan order.
Whoever has the plan can cut such a buffer into matrices; whoever has another plan is told so
by its fingerprint before a byte is applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from blake3 import blake3

from hilosync.errors import PlanError

__all__ = ["AdapterPlan", "Block"]


@dataclass(frozen=True, slots=True)
class Block:
    """One trainable tensor, seen as a matrix of `rows` × `columns`.

    Attributes:
        name: the parameter's name without PEFT's prefixes and without the adapter's name,
            for example ``model.layers.0.self_attn.q_proj.lora_A``.
        rows: first dimension of the matrix view.
        columns: second dimension of the matrix view.
        fan_in: input width of the tensor, which bounds its initial uniform values; 0 for a tensor
            that starts at zero (LoRA's B).
        group: index of the param group whose scalars the optimizer applies.
    """

    name: str
    rows: int
    columns: int
    fan_in: int = 0
    group: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.columns


@dataclass(frozen=True)
class AdapterPlan:
    """The canonical order of an adapter's tensors.

    Attributes:
        blocks: the tensors, sorted by name in natural order (layer 2 before layer 10).
        bytes_per_element: size of an element as an engine is served it (2: bf16). It is what
            "a fraction of the adapter" is a fraction of.
    """

    blocks: tuple[Block, ...]
    bytes_per_element: int = 2

    def __post_init__(self) -> None:
        if not self.blocks:
            raise PlanError("the plan has no tensors: expected at least one trainable adapter tensor")
        names = [block.name for block in self.blocks]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"two tensors of the plan have one name: {', '.join(twice)}")
        for block in self.blocks:
            if block.rows < 1 or block.columns < 1:
                raise PlanError(f"{block.name} is empty: {block.rows} × {block.columns}")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each block in a flat buffer, and the buffer's length as the last entry."""
        offsets = [0]
        for block in self.blocks:
            offsets.append(offsets[-1] + block.size)
        return tuple(offsets)

    @cached_property
    def sides(self) -> np.ndarray:
        """Short and long side of each block, int64, shape (blocks, 2)."""
        return np.sort([(block.rows, block.columns) for block in self.blocks], axis=1)

    @property
    def size(self) -> int:
        """Number of elements of all blocks."""
        return self.offsets[-1]

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the adapter as an engine is served it."""
        return self.size * self.bytes_per_element

    @property
    def groups(self) -> int:
        """Number of param groups."""
        return 1 + max(block.group for block in self.blocks)

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that two plans share exactly when their tensors, shapes, order and groups agree."""
        lines = "".join(f"{b.name} {b.rows} {b.columns} {b.fan_in} {b.group}\n" for b in self.blocks)
        return blake3(f"hilo-plan-1 {self.bytes_per_element}\n{lines}".encode()).digest(16)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Cuts a flat buffer of `size` elements into one (rows, columns) view per block, no copies."""
        if flat.shape != (self.size,):
            raise PlanError(f"expected a flat buffer of {self.size} elements, got shape {tuple(flat.shape)}")
        return [
            flat[start : start + block.size].view(block.rows, block.columns)
            for start, block in zip(self.offsets, self.blocks, strict=False)
        ]

    def tensors_at(self, indices: Sequence[int]) -> list[str]:
        """Names of the blocks at these positions."""
        return [self.blocks[index].name for index in indices]

    def one_rank_bytes(self) -> int:
        """Bytes of one bf16 rank of every block, Σ (rows + columns) · 2: the paper's usual budget."""
        return sum(2 * (block.rows + block.columns) for block in self.blocks)

    def initial_bound(self, block: Block) -> float:
        """Half-width of the uniform distribution that a block starts from: 1/√fan_in, 0 for LoRA's B.

        It is PEFT's Kaiming uniform with a = √5.
        """
        return 1.0 / math.sqrt(block.fan_in) if block.fan_in else 0.0
