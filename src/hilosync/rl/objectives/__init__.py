"""Objectives by name."""

from __future__ import annotations

from hilosync.errors import UnknownName
from hilosync.rl.objectives.base import Objective, Scored
from hilosync.rl.objectives.opd import OnPolicyDistillation

__all__ = ["OBJECTIVES", "Objective", "OnPolicyDistillation", "Scored", "open_objective"]

OBJECTIVES = ("opd",)


def open_objective(name: str) -> Objective:
    """The objective of this name.

    Raises:
        UnknownName: there is no such objective.
    """
    if name == "opd":
        return OnPolicyDistillation()
    raise UnknownName("objective", name, OBJECTIVES)
