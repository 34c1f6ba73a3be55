"""Tasks by name."""

from __future__ import annotations

from typing import Any

from hilosync.errors import UnknownName
from hilosync.rl.tasks.base import Task, Verdict
from hilosync.rl.tasks.compact import CompactKnights
from hilosync.rl.tasks.natural import NaturalKnights

__all__ = ["TASKS", "Task", "Verdict", "open_task"]

TASKS = ("knights", "knights-compact")
"""``knights`` is for real models with a chat template, ``knights-compact`` for the tiny ones."""


def open_task(name: str, tokenizer: Any, people: int = 3, seed: int = 0) -> Task:
    """The task of this name.

    Args:
        name: one of `TASKS`.
        tokenizer: of the policy.
        people: inhabitants of an island.
        seed: of the problem source, which fixes the held-out problems; not the run's seed.

    Raises:
        UnknownName: there is no such task.
        ConfigurationError: the tokenizer does not fit the task, or `reasoning-gym` is missing.
    """
    match name:
        case "knights":
            return NaturalKnights(tokenizer, people, seed)
        case "knights-compact":
            return CompactKnights(people, seed)
    raise UnknownName("task", name, TASKS)
