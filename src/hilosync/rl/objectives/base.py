"""The seam of the objectives: a loss per generated token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Objective", "Scored"]


@dataclass(frozen=True)
class Scored:
    """Completions with what policy and teacher think of them; N rows of at most T tokens.

    Attributes:
        tokens: int64, shape (N, T).
        mask: True on generated tokens, shape (N, T).
        logits: the current policy's, fp32, shape (N, T, vocabulary); carries the gradient.
        teacher_logits: the teacher's, same shape, no gradient; None without a teacher.
        behaviour_log_probs: of each token under the policy that drew it, fp32, shape (N, T).
        log_ratios: log π(y) − log β(y) of each token, current policy to the one that drew it, fp32, shape
            (N, T), no gradient; 0 off the mask and in rows that the current policy drew.
        advantages: one per row, fp32, shape (N,), from `Objective.advantages`.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    logits: torch.Tensor
    teacher_logits: torch.Tensor | None
    behaviour_log_probs: torch.Tensor
    log_ratios: torch.Tensor
    advantages: torch.Tensor


class Objective(Protocol):
    """Says what the gradient of a batch is. The trainer takes the mean over all generated tokens."""

    name: str
    """The registered name, which the run's genesis carries."""

    needs_teacher: bool
    """Whether `Scored.teacher_logits` must be there."""

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """Rewards of shape (prompts, samples) to advantages of the same shape."""
        ...

    def token_losses(self, scored: Scored) -> torch.Tensor:
        """The loss of every token, fp32, shape (N, T); values off the mask are ignored."""
        ...
