"""Full synchronization: what everybody else ships, the whole adapter at every step.

The learner steps with its exact gradient, and a record carries the bf16 adapter; the transition of a
replica is "the parameters are what the record says". Log, wire, digests, workers and tools are the
same, so that both ways of keeping workers current are compared over one path.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from hilosync.arithmetic import DenseBlock
from hilosync.compress import Compressor, Dense
from hilosync.errors import NonFinite, UnknownName
from hilosync.log import Log
from hilosync.optim import Optimizer, Replace, init_state
from hilosync.optim.schedules import Schedule
from hilosync.protocol import Proposal
from hilosync.runtime import Learner

__all__ = ["FullSyncLearner", "begin_learner"]


class FullSyncLearner(Learner):
    """A `Learner` whose records carry the adapter itself and whose exact optimizer step is its own."""

    def __init__(
        self,
        model: Any,
        *,
        optimizer: Optimizer,
        log: str | Log,
        max_grad_norm: float | None = None,
        schedule: Schedule | None = None,
        **run: Any,
    ):
        """Begins a run; arguments as for `Learner`, which has no compressor here and no error feedback."""
        super().__init__(model, optimizer=Replace(), compressor=Dense(), log=log, feedback_decay=0.0, **run)
        self._own_optimizer = optimizer
        self._own_state = init_state(self.plan, optimizer, self.params)
        self._max_grad_norm = max_grad_norm
        self._own_schedule = schedule

    def _propose(self, gradient: torch.Tensor, learning_rates: tuple[float, ...] | None) -> Proposal:
        """Steps with G, then proposes the parameters that it gave."""
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            raise NonFinite("the gradient holds NaN or Inf: skip this step")
        if self._max_grad_norm is not None and norm > self._max_grad_norm:
            gradient = gradient * (self._max_grad_norm / norm)
        if learning_rates is None and self._own_schedule is not None:
            learning_rates = self._own_schedule(self.version + 1)
        exact = tuple(DenseBlock(view) for view in self.plan.views(gradient))
        scalars = self._own_optimizer.scalars(self.version + 1, learning_rates)
        self._own_optimizer.step(self.plan, self._own_state, exact, scalars)
        return super()._propose(self._own_state.params, None)


def begin_learner(
    model: Any, *, sync: str, optimizer: Optimizer, compressor: Compressor, log: str | Log, **run: Any
) -> Learner:
    """Begins a run that ships compressed gradients (``hilo``) or whole adapters (``full``).

    Other arguments as for `Learner`.

    Raises:
        UnknownName: `sync` is neither.
    """
    if sync == "full":
        return FullSyncLearner(model, optimizer=optimizer, log=log, **run)
    if sync != "hilo":
        raise UnknownName("synchronization", sync, ("hilo", "full"))
    return Learner(model, optimizer=optimizer, compressor=compressor, log=log, **run)
