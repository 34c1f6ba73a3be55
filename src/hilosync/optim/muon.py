"""Muon (Jordan et al. 2024), decoupled weight decay, by exact Gram Newton–Schulz.

    m ← μ m + (1 − μ) Ĝ
    u ← m               or, with Nesterov,   u ← (1 − μ) Ĝ + μ m
    p ← (1 − α λ) p − α ratio(shape) NewtonSchulz(u)

Every tensor of the adapter is orthogonalized as the matrix it is: A (r × n) and B (n × r) each by
itself, not their product, so a step costs two r × r iterations per linear layer. A vector (one row or
column) is thereby normalized. Where u is zero, as A's is until B has left zero, the step is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hilosync.arithmetic import portable, specification
from hilosync.arithmetic.decode import materialize
from hilosync.arithmetic.digest import state_sums
from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock
from hilosync.arithmetic.kernels import gradient_arguments, muon_momentum
from hilosync.arithmetic.muon_kernel import muon_block, scratch_sizes
from hilosync.arithmetic.state import PolicyState
from hilosync.errors import UnknownName
from hilosync.optim.elementwise import Backend, block_scalars, check_gradient, choose_backend
from hilosync.optim.groups import PerGroup, as_words, check_constants, check_rates, per_group
from hilosync.optim.threads import Share, block_shares, totals
from hilosync.plan import AdapterPlan, Block

__all__ = ["Muon"]

_SCALINGS = ("original", "match_rms_adamw")


@dataclass(frozen=True)
class Muon:
    """Muon with torch's momentum, coefficients and scalings; no weight decay unless asked for.

    Unlike `torch.optim.Muon`, u is normalized however small it is, and nothing is rounded to bf16.

    Attributes:
        lr: α, for all param groups or one each.
        momentum: μ.
        nesterov: orthogonalize (1 − μ) Ĝ + μ m instead of m.
        weight_decay: λ, for all param groups or one each.
        scaling: ratio(shape) as `torch.optim.Muon`'s `adjust_lr_fn`: "original" is
            √max(1, rows / columns), "match_rms_adamw" is 0.2 √max(rows, columns).
        backend: which of the equal implementations runs; "auto" chooses by device.

    Raises:
        UnknownName: there is no such scaling, or backend.
        ConfigurationError: a constant is out of its range (`groups`).
    """

    lr: PerGroup = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: PerGroup = 0.0
    scaling: Literal["original", "match_rms_adamw"] = "original"
    backend: Backend = "auto"

    name = "muon"
    slots = ("m",)
    scalar_names = ("decay", "rate", "momentum", "rest", "gradient_part", "momentum_part")

    def __post_init__(self) -> None:
        if self.scaling not in _SCALINGS:
            raise UnknownName("scaling of Muon", str(self.scaling), _SCALINGS)
        check_constants(self.name, self.backend, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def settings(self) -> dict[str, Any]:
        """The scaling, which depends on shapes and not on steps."""
        return {"scaling": self.scaling}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """(1 − α λ, α, μ, 1 − μ, x, y) per param group, fp32; u is x Ĝ + y m."""
        parts = (1 - self.momentum, self.momentum) if self.nesterov else (0.0, 1.0)
        rows = [
            (1 - rate * decay, rate, self.momentum, 1 - self.momentum, *parts)
            for rate, decay in per_group(check_rates(self.lr, learning_rates), self.weight_decay)
        ]
        return as_words(self.name, rows)

    def ratio(self, block: Block) -> np.float32:
        """ratio(shape); division and square root are exact to one rounding, so it is the same everywhere."""
        if self.scaling == "original":
            return np.float32(math.sqrt(max(1.0, block.rows / block.columns)))
        return np.float32(0.2 * math.sqrt(max(block.rows, block.columns)))

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """One step in place; returns the state sums."""
        check_gradient(plan, gradient)
        rows = block_scalars(plan, scalars)
        backend = choose_backend(self.backend, state)
        if backend == "numba":
            return self._step_numba(plan, state, gradient, rows)
        advance = self._advance_numpy if backend == "numpy" else self._advance_torch
        for index, (start, block) in enumerate(zip(plan.offsets, plan.blocks, strict=False)):
            part = PolicyState(
                state.params[start : start + block.size], {"m": state.slots["m"][start : start + block.size]}
            )
            advance(block, part, gradient[index], rows[index])
        return state_sums(plan, state)

    def _advance_numpy(self, block: Block, state: PolicyState, part: Any, s: np.ndarray) -> None:
        shape = (block.rows, block.columns)
        p, m = (buffer.numpy().reshape(shape) for buffer in state.buffers())
        if isinstance(part, DenseBlock):
            g = part.values.numpy()
        else:
            g = specification.low_rank(part.left.numpy(), part.right.numpy(), np.float32(part.scale))
        m[:], u = specification.muon_momentum(m, g, s)
        p[:] = specification.muon_apply(p, specification.orthogonalize(u), s, self.ratio(block))

    def _advance_torch(self, block: Block, state: PolicyState, part: Any, s: np.ndarray) -> None:
        p, m = (buffer.view(block.rows, block.columns) for buffer in state.buffers())
        updated, u = portable.muon_momentum(m, materialize(part), s.tolist())
        m.copy_(updated)
        p.copy_(portable.muon_apply(p, portable.orthogonalize(u), s.tolist(), float(self.ratio(block))))

    def _step_numba(
        self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, rows: list[np.ndarray]
    ) -> np.ndarray:
        p, m = (buffer.numpy() for buffer in state.buffers())
        u_size, q_size = scratch_sizes(plan.blocks)

        def run(share: Share) -> list[tuple[int, int]]:
            u, q = np.empty(u_size, np.float32), np.empty(q_size, np.float64)
            sums = []
            for index, _, _ in share:
                block, start = plan.blocks[index], plan.offsets[index]
                shape, s = (block.rows, block.columns), rows[index]
                muon_momentum(m, u, start, *shape, gradient_arguments(gradient[index]), s)
                sums.append((index, muon_block(p, m, start, *shape, s, self.ratio(block), u, q)))
            return sums

        return totals(len(plan.blocks), run, block_shares(plan))
