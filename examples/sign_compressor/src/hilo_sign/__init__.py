"""A compressor that ships the sign of every element and one scale per block.

    Ĝ = mean|G| · sign(G)

Payload, little endian:

    4 bytes          CRC-32 of what follows
    blocks × f4      scales
    ⌈size/8⌉         signs of all elements in plan order, one bit each, 1 for negative
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock
from hilosync.errors import BudgetTooSmall, ConfigurationError, MalformedPayload, NonFinite
from hilosync.plan import AdapterPlan

__all__ = ["Sign"]


class Sign:
    """EF-SignSGD's compressor (Karimireddy et al., arXiv 1901.09847) behind HiLo's seam."""

    name = "sign"

    def __init__(self, budget: str | int | None = "10%"):
        self.budget = budget

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of the one payload size there is."""
        return 4 + 4 * len(plan.blocks) + (plan.size + 7) // 8

    def init(self, plan: AdapterPlan) -> None:
        """No state."""
        return

    def save_state(self, state: None) -> dict[str, torch.Tensor]:
        """No state."""
        return {}

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> None:
        """No state."""
        if tensors:
            raise ConfigurationError(f"sign has no encoder state, got the tensors {sorted(tensors)}")

    def encode(self, plan: AdapterPlan, state: None, gradient: torch.Tensor, budget: int) -> tuple[bytes, None]:
        """One bit per element."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(f"sign needs {smallest} bytes of payload, got a budget of {budget}")
        for block, view in zip(plan.blocks, plan.views(gradient), strict=True):
            if not torch.isfinite(view).all():
                raise NonFinite(f"the gradient of {block.name} holds NaN or Inf")
        scales = np.array([view.abs().mean().item() for view in plan.views(gradient)], dtype="<f4")
        body = scales.tobytes() + np.packbits((gradient < 0).cpu().numpy()).tobytes()
        return zlib.crc32(body).to_bytes(4, "little") + body, None

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """±scale per element: the same bits everywhere, since nothing is rounded."""
        scales, signs = self._parts(plan, payload)
        values = torch.from_numpy(1.0 - 2.0 * signs.astype(np.float32))
        views = plan.views(values)
        for view, scale in zip(views, scales.tolist(), strict=True):
            view.mul_(scale)
        return tuple(DenseBlock(view) for view in views)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank (signs have full rank) and bytes of each block."""
        self._parts(plan, payload)
        return [
            {"name": block.name, "rank": min(block.rows, block.columns), "bytes": 4 + block.size // 8}
            for block in plan.blocks
        ]

    def _parts(self, plan: AdapterPlan, payload: bytes | memoryview) -> tuple[np.ndarray, np.ndarray]:
        content = bytes(payload)
        if len(content) != self.smallest_payload(plan):
            raise MalformedPayload(f"expected {self.smallest_payload(plan)} bytes, got {len(content)}")
        if zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
            raise MalformedPayload("the payload's checksum does not match its bytes")
        middle = 4 + 4 * len(plan.blocks)
        scales = np.frombuffer(content[4:middle], dtype="<f4")
        if not np.isfinite(scales).all():
            raise MalformedPayload("a scale is NaN or Inf")
        return scales, np.unpackbits(np.frombuffer(content[middle:], dtype=np.uint8), count=plan.size)
