"""SGD with momentum (Polyak 1964) or Nesterov's form, decoupled weight decay.

m ← μ m + Ĝ
p ← (1 − α λ) p − α m               or, with Nesterov,   p ← (1 − α λ) p − α (Ĝ + μ m)
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

__all__ = ["RULE", "SGDM"]

RULE = Rule(specification.sgdm, portable.sgdm, kernels.sgdm_rows)


@dataclass(frozen=True)
class SGDM:
    """SGD with momentum; unlike in `torch.optim.SGD` weight decay is decoupled from the gradient.

    Attributes:
        lr: α, for all param groups or one each.
        momentum: μ.
        nesterov: step along Ĝ + μ m instead of m.
        weight_decay: λ, for all param groups or one each.
        backend: which of the equal implementations runs; "auto" chooses by device.

    Raises:
        ConfigurationError: a constant is out of its range (`groups`); UnknownName: no such backend.
    """

    lr: PerGroup = 1e-2
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: PerGroup = 0.0
    backend: Backend = "auto"

    name = "sgdm"
    slots = ("m",)
    scalar_names = ("decay", "rate", "momentum", "gradient_part", "momentum_part")

    def __post_init__(self) -> None:
        check_constants(self.name, self.backend, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def settings(self) -> dict[str, Any]:
        """Empty: Nesterov's form, too, is a choice of scalars."""
        return {}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """(1 − α λ, α, μ, x, y) per param group, fp32; the step goes along x Ĝ + y m."""
        parts = (1.0, self.momentum) if self.nesterov else (0.0, 1.0)
        rows = [
            (1 - rate * decay, rate, self.momentum, *parts)
            for rate, decay in per_group(check_rates(self.lr, learning_rates), self.weight_decay)
        ]
        return as_words(self.name, rows)

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """One step in place; returns the state sums."""
        return replay(RULE, plan, state, gradient, scalars, self.backend)
