"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), decoupled weight decay.

c ← β₁ m + (1 − β₁) Ĝ
p ← (1 − α λ) p − α sign(c)
m ← β₂ m + (1 − β₂) Ĝ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hilosync.arithmetic import kernels, portable, specification
from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.arithmetic.state import PolicyState
from hilosync.optim.elementwise import Backend, Rule, replay
from hilosync.optim.groups import PerGroup, as_words, check_constants, check_rates, per_group
from hilosync.plan import AdapterPlan

__all__ = ["RULE", "Lion"]

RULE = Rule(specification.lion, portable.lion, kernels.lion_rows)


@dataclass(frozen=True)
class Lion:
    """Lion with the paper's betas; no weight decay unless asked for, as is usual for adapters.

    Attributes:
        lr: α, for all param groups or one each; about a tenth of AdamW's.
        betas: (β₁, β₂).
        weight_decay: λ, for all param groups or one each.
        backend: which of the equal implementations runs; "auto" chooses by device.

    Raises:
        ConfigurationError: a constant is out of its range (`groups`); UnknownName: no such backend.
    """

    lr: PerGroup = 3e-5
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: PerGroup = 0.0
    backend: Backend = "auto"

    name = "lion"
    slots = ("m",)
    scalar_names = ("decay", "rate", "beta1", "rest1", "beta2", "rest2")

    def __post_init__(self) -> None:
        check_constants(self.name, self.backend, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)

    def settings(self) -> dict[str, Any]:
        """Empty: every constant travels in the scalars."""
        return {}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """(1 − α λ, α, β₁, 1 − β₁, β₂, 1 − β₂) per param group, fp32."""
        beta1, beta2 = self.betas
        rows = [
            (1 - rate * decay, rate, beta1, 1 - beta1, beta2, 1 - beta2)
            for rate, decay in per_group(check_rates(self.lr, learning_rates), self.weight_decay)
        ]
        return as_words(self.name, rows)

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """One step in place; returns the state sums."""
        return replay(RULE, plan, state, gradient, scalars, self.backend)
