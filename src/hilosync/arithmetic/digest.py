"""The post-state digest: what tells a replica that it holds the learner's bits.

Hashing the gradient cannot detect an optimizer that diverged, so the digest covers parameters and
every optimizer slot *after* the step, in three layers of rising cost:

    every step    one 64-bit modular sum per block, computed inside the update loop
    every step    xxh3-128 of a rolling 1/64 of every buffer, so that 64 steps hash everything
    snapshots     blake3 of everything

Sums and slice are chained with the record's body by blake3. The sums are order independent; their
16-bit tags travel in the record to name the tensor that differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash
from blake3 import blake3

from hilosync.arithmetic.specification import rotation
from hilosync.arithmetic.state import PolicyState
from hilosync.plan import AdapterPlan

__all__ = [
    "SLICES",
    "differing_tensors",
    "full_digest",
    "initial_digest",
    "next_digest",
    "state_sums",
    "tensor_tags",
]

SLICES = 64
"""Number of steps in which the rolling slice has covered every element."""

_CHUNK = 1 << 18


def state_sums(plan: AdapterPlan, state: PolicyState) -> np.ndarray:
    """The modular sums of every block's parameters and slots, uint64, shape (blocks,); any device.

    It is the torch form of `specification.state_sum`; int64 wraps modulo 2⁶⁴ like uint64.
    """
    sums = torch.zeros(len(plan.blocks), dtype=torch.int64, device=state.params.device)
    for index, (start, block) in enumerate(zip(plan.offsets, plan.blocks, strict=False)):
        buffers = [buffer[start : start + block.size].view(block.rows, -1) for buffer in state.buffers()]
        height = max(1, _CHUNK // block.columns)
        for first in range(0, block.rows, height):
            sums[index] += _sum([buffer[first : first + height] for buffer in buffers], first)
    return sums.cpu().numpy().view(np.uint64)


def _sum(buffers: list[torch.Tensor], first: int) -> torch.Tensor:
    """What consecutive rows of a block, from row `first` on, add to its sum; int64."""
    columns = buffers[0].shape[1]
    padding = -columns % 8
    words: Any = 0
    for index, buffer in enumerate(buffers):
        padded = torch.nn.functional.pad(buffer, (0, padding)) if padding else buffer
        bits, left = padded.contiguous().view(torch.int32).reshape(-1, 2).to(torch.int64), rotation(index)
        bits = (bits[:, 0] & 0xFFFFFFFF) | (bits[:, 1] << 32)
        if left:
            bits = (bits << left) | ((bits >> (64 - left)) & ((1 << left) - 1))
        words = words + bits
    position = torch.arange(len(words), dtype=torch.int64, device=buffers[0].device)
    return (words * (2 * (position + first * (columns + padding) // 2) + 1)).sum()


def tensor_tags(sums: np.ndarray) -> np.ndarray:
    """16-bit tags of the sums, uint16, shape (blocks,): they name the tensor, the digest proves.

    Two unequal sums share a tag once in 65,536 times (finalizer of SplitMix64, top bits).
    """
    mixed = sums.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(48)).astype(np.uint16)


def differing_tensors(tags_a: np.ndarray, tags_b: np.ndarray) -> list[int]:
    """Positions of the blocks whose tags differ, ascending."""
    return np.flatnonzero(tags_a != tags_b).tolist()


def full_digest(plan: AdapterPlan, state: PolicyState) -> bytes:
    """blake3 of the plan's fingerprint and every buffer with its name, 32 bytes."""
    digest = blake3(b"hilo-state-1" + plan.fingerprint)
    for name, buffer in zip(["params", *sorted(state.slots)], state.buffers(), strict=True):
        digest.update(f"{name}\n".encode())
        digest.update(_bytes(buffer))
    return digest.digest()


def initial_digest(genesis_hash: bytes, plan: AdapterPlan, state: PolicyState) -> bytes:
    """The digest of version 0, 32 bytes: blake3 of the genesis record's hash and the full digest."""
    return blake3(b"hilo-digest-0" + genesis_hash + full_digest(plan, state)).digest()


def next_digest(
    previous: bytes, body_hash: bytes, sums: np.ndarray, plan: AdapterPlan, state: PolicyState, version: int
) -> bytes:
    """The digest of `version`, 32 bytes, from the one before it.

    Args:
        previous: digest of version − 1.
        body_hash: blake3 of the record's body.
        sums: state sums after the step, uint64, shape (blocks,).
        plan: the tensors.
        state: parameters and slots after the step.
        version: the version that the step made; selects slice version mod 64 of every buffer.
    """
    part = version % SLICES
    first, last = plan.size * part // SLICES, plan.size * (part + 1) // SLICES
    rolling = xxhash.xxh3_128()
    for buffer in state.buffers():
        rolling.update(_bytes(buffer[first:last]))
    content = (b"hilo-digest-1", previous, body_hash, sums.astype("<u8").tobytes(), rolling.digest())
    return blake3(b"".join(content)).digest()


def _bytes(buffer: torch.Tensor) -> memoryview:
    return buffer.detach().cpu().numpy().data.cast("B")
