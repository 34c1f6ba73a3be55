"""AdamW (Loshchilov and Hutter 2019), decoupled weight decay.

m ← β₁ m + (1 − β₁) Ĝ
v ← β₂ v + (1 − β₂) Ĝ²
p ← (1 − α λ) p − α̂ m / (√v + ε̂)       α̂ = α √(1 − β₂ᵗ) / (1 − β₁ᵗ),   ε̂ = ε √(1 − β₂ᵗ)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hilosync.arithmetic import kernels, portable, specification
from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.arithmetic.state import PolicyState
from hilosync.optim.elementwise import Backend, Rule, replay
from hilosync.optim.groups import PerGroup, as_words, check_constants, check_rates, per_group
from hilosync.plan import AdapterPlan

__all__ = ["RULE", "AdamW"]

RULE = Rule(specification.adamw, portable.adamw, kernels.adamw_rows)


@dataclass(frozen=True)
class AdamW:
    """AdamW with torch's betas and ε; no weight decay unless asked for, as is usual for adapters.

    Attributes:
        lr: α, for all param groups or one each.
        betas: (β₁, β₂).
        eps: ε.
        weight_decay: λ, for all param groups or one each.
        backend: which of the equal implementations runs; "auto" chooses by device.

    Raises:
        ConfigurationError: a constant is out of its range (`groups`); UnknownName: no such backend.
    """

    lr: PerGroup = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: PerGroup = 0.0
    backend: Backend = "auto"

    name = "adamw"
    slots = ("m", "v")
    scalar_names = ("decay", "step_size", "beta1", "rest1", "beta2", "rest2", "epsilon")

    def __post_init__(self) -> None:
        check_constants(
            self.name, self.backend, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )

    def settings(self) -> dict[str, Any]:
        """Empty: every constant travels in the scalars."""
        return {}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """(1 − α λ, α̂, β₁, 1 − β₁, β₂, 1 − β₂, ε̂) per param group, fp32."""
        beta1, beta2 = self.betas
        root = math.sqrt(1 - beta2**version)
        rows = [
            (1 - rate * decay, rate * root / (1 - beta1**version), beta1, 1 - beta1, beta2, 1 - beta2, self.eps * root)
            for rate, decay in per_group(check_rates(self.lr, learning_rates), self.weight_decay)
        ]
        return as_words(self.name, rows)

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """One step in place; returns the state sums."""
        return replay(RULE, plan, state, gradient, scalars, self.backend)
