"""The seam of the tasks: where prompts come from and what an answer is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Task", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one answer is worth.

    Attributes:
        reward: what the objective sees.
        solved: whether the answer is right, which is what pass@k counts.
    """

    reward: float
    solved: bool


class Task(Protocol):
    """An endless, numbered source of problems with a verifier.

    A problem is a pure function of its index, so an index is all that crosses the wire. The first
    `held_out` indices are for evaluation; no index at or above it gives one of those problems.
    """

    name: str
    """The registered name."""

    held_out: int
    """Problems 0 … held_out − 1 are never trained on."""

    answer_tokens: int
    """Longest answer, in tokens, that a policy is given room for."""

    def prompt(self, index: int) -> str:
        """The text that the policy continues, with any chat template already applied."""
        ...

    def judge(self, index: int, answer: str) -> Verdict:
        """Verifies the policy's continuation of `prompt(index)`. Never raises for any answer."""
        ...

    def demonstrations(self, index: int) -> Sequence[str]:
        """Right answers to imitate, most natural first; empty if the task has none."""
        ...
