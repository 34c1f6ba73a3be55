"""Prompts computed once and continued several times: what sampling and scoring have in common."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from hilosync.rl.tokens import TokenBatch

__all__ = ["Prefix", "prefill", "shared_prompt_logits"]


@dataclass(frozen=True)
class Prefix:
    """Prompts as a model has read them, each repeated for its samples.

    Attributes:
        logits: of the first completion token, shape (prompts · samples, vocabulary).
        mask: attention mask of the prompts, int64, shape (prompts · samples, P).
        cache: keys and values of the prompts; the model appends to it.
        argument: the name under which the model's `forward` takes the cache.
    """

    logits: torch.Tensor
    mask: torch.Tensor
    cache: Any
    argument: str


def prefill(model: Any, ids: torch.Tensor, mask: torch.Tensor, samples: int) -> Prefix:
    """Reads every prompt once.

    Args:
        model: any Hugging Face causal LM that takes and returns a cache.
        ids: left-padded prompts, int64, shape (prompts, P).
        mask: 0 on padding, same shape.
        samples: continuations per prompt, whose rows are neighbours.
    """
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    argument = _cache_argument(model)
    cache, logits = output[argument], output.logits[:, -1]
    if samples > 1:
        cache.batch_repeat_interleave(samples)
    return Prefix(logits.repeat_interleave(samples, dim=0), mask.repeat_interleave(samples, dim=0), cache, argument)


def shared_prompt_logits(model: Any, batch: TokenBatch, samples: int) -> torch.Tensor:
    """What `completion_logits` computes, differentiable too, with every prompt read once.

    Args:
        model: any Hugging Face causal LM that takes and returns a cache.
        batch: rows of whole prompts, the samples of a prompt in a row.
        samples: rows per prompt.
    """
    width = batch.ids.shape[1] - batch.length
    prefix = prefill(model, batch.ids[::samples, :width], batch.attention[::samples, :width], samples)
    first = prefix.logits.unsqueeze(1)
    if batch.length == 1:
        return first
    positions = (batch.attention.cumsum(1) - 1).clamp(min=0)
    output = model(
        input_ids=batch.ids[:, width:-1],
        attention_mask=batch.attention[:, :-1],
        position_ids=positions[:, width:-1],
        use_cache=True,
        **{prefix.argument: prefix.cache},
    )
    return torch.cat([first, output.logits], dim=1)


def _cache_argument(model: Any) -> str:
    """The name under which this model's `forward` takes and returns its cache; transformers renamed it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
