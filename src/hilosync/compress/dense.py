"""Dense: the whole gradient in bf16, for comparison and where bytes do not matter.

Body of the payload (frame in `payload`): the elements of all blocks in plan order, bf16,
row-major, little endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock
from hilosync.compress.finite import require_finite
from hilosync.compress.payload import FRAME_BYTES, Kind, bf16_bytes, bf16_values, seal, unseal
from hilosync.compress.state import require_names
from hilosync.errors import BudgetTooSmall, MalformedPayload
from hilosync.plan import AdapterPlan

__all__ = ["Dense"]


@dataclass(frozen=True, slots=True)
class Dense:
    """Every element in bf16: 100 % of the adapter's bytes. It has no encoder state.

    Attributes:
        budget: bytes of a whole record; a budget below the adapter's bytes is refused at encode.
    """

    budget: str | int | None = None
    name = "dense"

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of the one payload size there is."""
        return FRAME_BYTES + 2 * plan.size

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
        """Rounds every element to bf16; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"dense ships every element: {smallest} bytes of payload, got a budget of {budget}; "
                "take another compressor or no budget"
            )
        require_finite(plan, gradient)
        return seal(Kind.DENSE, bf16_bytes(gradient)), None

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the elements; see `Compressor.decode`."""
        values = bf16_values(self._body(plan, payload))
        return tuple(DenseBlock(view) for view in plan.views(values))

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank (the full one) and bytes of each block."""
        self._body(plan, payload)
        return [
            {"name": block.name, "rank": min(block.rows, block.columns), "bytes": 2 * block.size}
            for block in plan.blocks
        ]

    def _body(self, plan: AdapterPlan, payload: bytes | memoryview) -> memoryview:
        body = unseal(Kind.DENSE, payload)
        if len(body) != 2 * plan.size:
            raise MalformedPayload(f"expected a body of {2 * plan.size} bytes, got {len(body)}")
        return body
