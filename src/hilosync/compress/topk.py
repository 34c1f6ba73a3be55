"""Top-k: the elements of largest magnitude over all blocks, as (index, value).

Body of the payload (frame in `payload`), little endian, with the flat gradient cut into chunks of
65,536 elements:

    chunks × u4      elements sent of each chunk
    k × u2           their positions within the chunk, ascending, chunk after chunk
    k × bf16         their values, in the same order
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock
from hilosync.compress.finite import require_finite
from hilosync.compress.payload import FRAME_BYTES, Kind, bf16_bytes, bf16_values, seal, unseal
from hilosync.compress.state import require_names
from hilosync.errors import BudgetTooSmall, MalformedPayload
from hilosync.plan import AdapterPlan

__all__ = ["TopK", "largest_elements", "reference_largest_elements"]

_CHUNK = 1 << 16
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest elements. It has no encoder state.

    Attributes:
        budget: bytes of a whole record; see `hilosync.compress.budget`.
    """

    budget: str | int | None = "rank 1"
    name = "topk"

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of a payload with one element."""
        return FRAME_BYTES + 4 * _chunks(plan) + _ELEMENT_BYTES

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
        """Ships the largest elements; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(f"topk needs at least {smallest} bytes of payload, got {budget}; raise the budget")
        require_finite(plan, gradient)
        count = (budget - smallest) // _ELEMENT_BYTES + 1
        indices = largest_elements(gradient, min(count, plan.size))
        counts = torch.bincount(indices // _CHUNK, minlength=_chunks(plan)).cpu().numpy()
        positions = (indices % _CHUNK).cpu().numpy()
        return (
            seal(
                Kind.TOPK,
                counts.astype("<u4").tobytes(),
                positions.astype("<u2").tobytes(),
                bf16_bytes(gradient[indices]),
            ),
            None,
        )

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Scatters the elements into zeros; see `Compressor.decode`."""
        indices, values = _elements(plan, payload)
        flat = torch.zeros(plan.size)
        flat[torch.from_numpy(indices)] = values
        return tuple(DenseBlock(view) for view in plan.views(flat))

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Elements sent and bytes of each block; its rank is what its elements could at most span."""
        indices, _ = _elements(plan, payload)
        ends = np.searchsorted(indices, np.array(plan.offsets))
        return [
            {
                "name": block.name,
                "rank": min(block.rows, block.columns, int(count)),
                "bytes": _ELEMENT_BYTES * int(count),
            }
            for block, count in zip(plan.blocks, np.diff(ends), strict=True)
        ]


def largest_elements(gradient: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of the `count` largest magnitudes, ascending, int64; zeros are left out."""
    indices = torch.topk(gradient.abs(), count, sorted=False).indices.sort().values
    return indices[gradient[indices] != 0]


def reference_largest_elements(gradient: torch.Tensor, count: int) -> list[int]:
    """The same by sorting everything."""
    magnitudes = [(-abs(value), index) for index, value in enumerate(gradient.tolist()) if value != 0]
    return sorted(index for _, index in sorted(magnitudes)[:count])


def _chunks(plan: AdapterPlan) -> int:
    return -(-plan.size // _CHUNK)


def _elements(plan: AdapterPlan, payload: bytes | memoryview) -> tuple[np.ndarray, torch.Tensor]:
    """Flat positions, int64, ascending, and fp32 values."""
    body, chunks = unseal(Kind.TOPK, payload), _chunks(plan)
    if len(body) < 4 * chunks:
        raise MalformedPayload(f"expected {4 * chunks} bytes of counts, got a body of {len(body)} bytes")
    counts = np.frombuffer(body[: 4 * chunks], dtype="<u4").astype(np.int64)
    total = int(counts.sum())
    if counts.max() > _CHUNK or len(body) != 4 * chunks + _ELEMENT_BYTES * total:
        raise MalformedPayload(f"a body of {len(body)} bytes does not hold {total} elements in {chunks} chunks")
    middle = 4 * chunks + 2 * total
    positions = np.frombuffer(body[4 * chunks : middle], dtype="<u2").astype(np.int64)
    indices = np.repeat(np.arange(chunks) * _CHUNK, counts) + positions
    if total and (indices[-1] >= plan.size or bool((np.diff(indices) <= 0).any())):
        raise MalformedPayload(f"positions do not ascend within the {plan.size} elements of the plan")
    return indices, bf16_values(body[middle:])
