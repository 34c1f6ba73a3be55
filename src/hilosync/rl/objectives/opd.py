"""On-policy distillation: exact reverse KL to a teacher, on the student's own samples."""

from __future__ import annotations

import torch

from hilosync.errors import ConfigurationError
from hilosync.rl.objectives.base import Scored
from hilosync.rl.objectives.importance import prefix_weights

__all__ = ["OnPolicyDistillation"]


class OnPolicyDistillation:
    """KL(p_S ‖ p_T) = Σ_v p_S(v) · (log p_S(v) − log p_T(v)) at every generated token.

    The sum over the whole vocabulary has less variance than the sampled form
    log p_S(y) − log p_T(y) of Agarwal et al. (2306.13649), and is always the current student's: stale
    rollouts change only which prefixes it is taken at, which `prefix_weights` corrects.
    """

    name = "opd"
    needs_teacher = True

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        """Rewards are reported, not used."""
        return torch.zeros_like(rewards)

    def token_losses(self, scored: Scored) -> torch.Tensor:
        """Reverse KL per token, shape (N, T), in nats, weighted where the student did not draw the prefix."""
        if scored.teacher_logits is None:
            raise ConfigurationError("on-policy distillation needs a teacher's logits")
        student = torch.log_softmax(scored.logits, dim=-1)
        teacher = torch.log_softmax(scored.teacher_logits, dim=-1)
        return prefix_weights(scored.log_ratios) * (student.exp() * (student - teacher)).sum(dim=-1)
