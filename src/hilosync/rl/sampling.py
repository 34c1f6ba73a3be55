"""Sampling from a causal language model: one prefill per prompt, one cache repeated for its k samples.

Noise is an argument, so two processes with the same weights, prompts and noise draw the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.rl.prefix import prefill
from hilosync.rl.tokens import pad_prompts

__all__ = ["Samples", "end_tokens", "sample"]


@dataclass(frozen=True)
class Samples:
    """Completions, `samples` rows in a row per prompt, in prompt order.

    Attributes:
        tokens: token ids of each row, with the end token where the row reached it.
        log_probs: log-probability of each token under the distribution it was drawn from
            (temperature applied); under the model's own for greedy decoding.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Token ids at which this model stops."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list | tuple) else [configured]
    return frozenset(int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None)


def _draw(logits: torch.Tensor, uniforms: torch.Tensor | None, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability; float64, so that a vocabulary of 10⁵ sums exactly enough."""
    log_probs = torch.log_softmax(logits.double() / temperature, dim=-1)
    if uniforms is None:
        tokens = logits.argmax(dim=-1)
    else:
        cumulative = log_probs.exp().cumsum(dim=-1)
        targets = (uniforms * cumulative[:, -1]).unsqueeze(1)
        # right=True never lands on a token of probability 0; the clamp covers u · total rounding up to total.
        tokens = torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    return tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int,
    length: int,
    noise: np.random.Generator | None,
    temperature: float = 1.0,
    ends: frozenset[int],
    padding: int,
) -> Samples:
    """Continues every prompt `samples` times, until an end token or `length` tokens.

    Args:
        model: any Hugging Face causal LM that takes and returns a cache.
        prompts: token ids, not padded, none empty.
        samples: completions per prompt.
        length: most tokens per completion.
        noise: source of the uniforms, one per row and token, drawn before the first token so that a
            row's noise does not depend on other rows; None decodes greedily.
        temperature: divides the logits.
        ends: token ids that end a completion.
        padding: token id for padded places, which are masked.
    """
    device = model.device
    ids, mask = pad_prompts(prompts, padding, device)
    prefix = prefill(model, ids, mask, samples)
    cache, logits, mask = prefix.cache, prefix.logits, prefix.mask
    positions = mask.sum(1, keepdim=True)
    rows = logits.shape[0]
    uniforms = None if noise is None else torch.from_numpy(noise.random((rows, length))).to(device)
    stops = torch.tensor(sorted(ends), device=device)

    tokens = torch.full((rows, length), padding, dtype=torch.int64, device=device)
    log_probs = torch.zeros((rows, length), dtype=torch.float64, device=device)
    lengths = torch.full((rows,), length, dtype=torch.int64, device=device)
    active = torch.arange(rows, device=device)
    for step in range(length):
        column = None if uniforms is None else uniforms[active, step]
        drawn, drawn_log_probs = _draw(logits, column, temperature)
        tokens[active, step], log_probs[active, step] = drawn, drawn_log_probs
        ended = torch.isin(drawn, stops)
        lengths[active[ended]] = step + 1
        if bool(ended.any()):
            going = (~ended).nonzero().squeeze(1)
            if len(going) == 0:
                break
            cache.batch_select_indices(going)
            active, drawn, mask, positions = active[going], drawn[going], mask[going], positions[going]
        if step + 1 == length:
            break
        mask = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
        output = model(
            input_ids=drawn.unsqueeze(1),
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{prefix.argument: cache},
        )
        logits, positions = output.logits[:, -1], positions + 1
    kept = lengths.tolist()
    return Samples(
        [row[:n] for row, n in zip(tokens.tolist(), kept, strict=True)],
        [row[:n] for row, n in zip(log_probs.tolist(), kept, strict=True)],
    )
