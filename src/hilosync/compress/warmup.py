"""Dense warm-up: the first steps of a run ship the whole gradient, the rest another compressor's payload.

The gradient of the first steps has the least structure in common with what follows (LoRA's B is
zero, so A gets no gradient at all), and they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.compress.base import Compressor
from hilosync.compress.budget import budget_bytes
from hilosync.compress.corrected import CorrectedGradient, encode_corrected
from hilosync.compress.dense import Dense
from hilosync.compress.payload import Kind
from hilosync.compress.state import require_names, saved_scalar, scalar_tensor
from hilosync.errors import BudgetTooSmall, ConfigurationError
from hilosync.plan import AdapterPlan

__all__ = ["Warmup"]

_INNER = "inner."


class Warmup:
    """`dense` for the first steps, then another compressor.

    A run has one limit for all its records, so this compressor has no budget of its own and the
    inner one's holds after the warm-up, less an allowance for what a record adds to a payload.

    Args:
        compressor: what follows: a compressor, or its name.
        settings: of a compressor given by name.
        steps: how many steps are dense.
    """

    name = "warmup"
    budget = None
    takes_sums = True

    def __init__(self, compressor: Compressor | str, settings: Mapping[str, Any] | None = None, steps: int = 5):
        if not isinstance(steps, int) or steps < 0 or getattr(compressor, "name", compressor) == self.name:
            raise ConfigurationError("expected a warm-up of 0 or more steps before a compressor without one")
        if isinstance(compressor, str):
            from hilosync.compress.registry import get_compressor

            compressor = get_compressor(compressor, settings)
        elif not hasattr(compressor, "encode"):
            raise ConfigurationError(f"expected a compressor or its name after the warm-up, got {compressor!r}")
        self.compressor = compressor
        self.steps = steps

    def settings(self) -> dict[str, Any]:
        """What follows, and its settings; how long the warm-up lasts is the learner's business."""
        return {"compressor": self.compressor.name, "settings": self.compressor.settings()}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes of the larger of both smallest payloads."""
        inner = self.compressor.smallest_payload(plan)
        return max(inner, Dense().smallest_payload(plan)) if self.steps else inner

    def init(self, plan: AdapterPlan) -> tuple[int, Any]:
        """Steps done, and the inner compressor's state."""
        return 0, self.compressor.init(plan)

    def save_state(self, state: tuple[int, Any]) -> dict[str, torch.Tensor]:
        """Steps done, and the inner compressor's tensors."""
        done, inner = state
        saved = self.compressor.save_state(inner)
        return {"done": scalar_tensor(done), **{_INNER + name: tensor for name, tensor in saved.items()}}

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> tuple[int, Any]:
        """Steps done, and the inner compressor's state; see `Compressor.load_state`."""
        inner = {name.removeprefix(_INNER): tensors[name] for name in tensors if name.startswith(_INNER)}
        require_names(self.name, tensors, ["done", *(_INNER + name for name in inner)])
        return int(saved_scalar(tensors, "done")), self.compressor.load_state(plan, inner)

    def encode(
        self, plan: AdapterPlan, state: tuple[int, Any], gradient: torch.Tensor | CorrectedGradient, budget: int
    ) -> tuple[bytes, tuple[int, Any]]:
        """A dense payload, or the inner compressor's within its own budget; see `Compressor.encode`."""
        done, inner = state
        corrected = CorrectedGradient.of(gradient)
        if done < self.steps:
            payload, _ = encode_corrected(Dense(), plan, None, corrected, budget)
        else:
            own = budget_bytes(self.compressor.budget, plan) - _allowance(plan)
            if own < (smallest := self.compressor.smallest_payload(plan)):
                raise BudgetTooSmall(
                    f"the budget after the warm-up leaves {own} bytes for a payload: "
                    f"{self.compressor.name} needs at least {smallest}"
                )
            payload, inner = encode_corrected(self.compressor, plan, inner, corrected, min(budget, own))
        return payload, (done + 1, inner)

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads whichever payload this is; see `Compressor.decode`."""
        return self._reader(payload).decode(plan, payload)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """As whichever compressor wrote the payload describes it."""
        return self._reader(payload).describe(plan, payload)

    def _reader(self, payload: bytes | memoryview) -> Compressor:
        return Dense() if memoryview(payload)[:1] == bytes([Kind.DENSE]) else self.compressor


def _allowance(plan: AdapterPlan) -> int:
    """Bytes that a record's header, scalars and tags surely stay below."""
    return 1024 + 16 * plan.groups + 2 * len(plan.blocks)
