"""The seam of the optimizers: a transition that every replica replays to the same bits."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.arithmetic.state import PolicyState
from hilosync.plan import AdapterPlan

__all__ = ["Optimizer", "PolicyState"]


class Optimizer(Protocol):
    """A transition (params, slots, Ĝ, scalars) → (params, slots) of individually rounded operations.

    Only the learner evaluates schedules, powers and divisions by scalars: `scalars` turns a
    version and a learning rate into fp32 words that travel in the record. `step` uses nothing
    else, so a worker needs no schedule and no version counter to replay it.
    """

    name: str
    """The registered name, which the run's genesis carries."""

    slots: tuple[str, ...]
    """Names of the optimizer's state tensors, in canonical order."""

    scalar_names: tuple[str, ...]
    """Names of the columns of `scalars`, in canonical order."""

    def settings(self) -> dict[str, Any]:
        """What `step` needs beyond its arguments (Nesterov or not …), as JSON values."""
        ...

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """The scalars of the step that makes `version` (1 is the first), fp32, shape (groups, len(scalar_names)).

        Args:
            version: the policy version that the step makes.
            learning_rates: one per param group, from any schedule; None for the configured ones.
        """
        ...

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """Replays one step in place and returns the state sums of the result, uint64, shape (blocks,).

        The sums are the modular sums of `hilosync.arithmetic.digest`, computed inside the update
        loop: they cover each block's parameters and slots after the step.
        """
        ...
