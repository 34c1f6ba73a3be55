"""Importance weights for rollouts of an earlier policy."""

from __future__ import annotations

import torch

__all__ = ["WEIGHT_LIMIT", "prefix_weights"]

WEIGHT_LIMIT = 2.0
"""Largest importance weight: truncation bounds the variance for a small bias (Ionides, 2008, *Truncated importance
sampling*, JCGS 17(2))."""


def prefix_weights(log_ratios: torch.Tensor, limit: float = WEIGHT_LIMIT) -> torch.Tensor:
    """Weights of losses that depend on the prefix of a token, not on which token was drawn there.

    w_t = min(limit, Π_{j<t} π(y_j) ⁄ β(y_j)): the per-decision importance weight (Precup, Sutton and Singh,
    2000) of standing at position t under the current policy π, where the policy β brought us. The ratio
    of token t itself has mean 1 given the prefix, and would add noise alone.

    Args:
        log_ratios: log π(y_t) − log β(y_t), fp32, shape (N, T).
        limit: of the weights.

    Returns:
        Shape (N, T), no gradient; the first column is 1.
    """
    before = log_ratios.detach().cumsum(dim=1)[:, :-1]
    first = torch.zeros_like(log_ratios[:, :1]).detach()
    return torch.cat([first, before], dim=1).exp().clamp(max=limit)
