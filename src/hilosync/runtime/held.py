"""What learner and replica show alike of the policy that they hold."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch

from hilosync.optim import PolicyState
from hilosync.plan import AdapterPlan
from hilosync.protocol import LearnerMachine, ReplicaMachine, Run

__all__ = ["HeldPolicy"]

Machine = TypeVar("Machine", LearnerMachine, ReplicaMachine)


class HeldPolicy(Generic[Machine]):
    """A view of a machine's policy; whoever has one sets `run` and the machine.

    Attributes:
        run: what the genesis fixes.
    """

    run: Run
    _machine: Machine

    @property
    def plan(self) -> AdapterPlan:
        """The adapter's tensors."""
        return self.run.plan

    @property
    def version(self) -> int:
        """The policy version held; a learner's is the newest that the log has accepted."""
        return self._machine.version

    @property
    def digest(self) -> bytes:
        """The 32-byte digest of the version held; a learner's is that of the pending one while the log refuses it."""
        return self._machine.digest

    @property
    def params(self) -> torch.Tensor:
        """A copy of the fp32 master parameters, flat, shape (plan.size,)."""
        return self._sound_state().params.clone()

    def slot(self, name: str) -> torch.Tensor:
        """A copy of one of the optimizer's tensors, flat fp32, shape (plan.size,)."""
        return self._sound_state().slots[name].clone()

    def _sound_state(self) -> PolicyState:
        """Parameters and slots.

        Raises:
            Diverged, TornState, Fenced: what stopped the machine; its state is no version's, or must not be served.
        """
        if self._machine.failure is not None:
            raise self._machine.failure
        return self._machine.state
