"""`PolicyState`: what a learner and its replicas hold at a policy version."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["PolicyState"]


@dataclass
class PolicyState:
    """Parameters and optimizer slots, flat in plan order.

    Attributes:
        params: the fp32 master parameters, flat, shape (plan.size,).
        slots: the optimizer's tensors by name (``m``, ``v``), each flat fp32 of the same shape.
    """

    params: torch.Tensor
    slots: dict[str, torch.Tensor]

    def clone(self) -> PolicyState:
        """A deep copy."""
        return PolicyState(self.params.clone(), {name: slot.clone() for name, slot in self.slots.items()})

    def buffers(self) -> list[torch.Tensor]:
        """Parameters, then the slots in the order of their names: the order of every digest."""
        return [self.params, *(self.slots[name] for name in sorted(self.slots))]
