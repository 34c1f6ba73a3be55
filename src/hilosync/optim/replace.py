"""The transition of full synchronization: the parameters are what the record says.

p ← Ĝ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hilosync.arithmetic import materialize
from hilosync.arithmetic.digest import state_sums
from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.arithmetic.state import PolicyState
from hilosync.optim.elementwise import check_gradient
from hilosync.plan import AdapterPlan

__all__ = ["Replace"]


@dataclass(frozen=True)
class Replace:
    """Takes the decoded values as the new parameters; it has no slots and no scalars."""

    name = "replace"
    slots = ()
    scalar_names = ()

    def settings(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """No scalars, fp32, shape (1, 0)."""
        return np.zeros((1, 0), np.float32)

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """Copies the values in; returns the state sums."""
        check_gradient(plan, gradient)
        for view, block in zip(plan.views(state.params), gradient, strict=True):
            view.copy_(materialize(block))
        return state_sums(plan, state)
