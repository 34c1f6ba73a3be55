"""Prompts and completions as padded tensors: pads on the left of prompts, on the right of completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TokenBatch", "completion_logits", "pad_prompts"]


def pad_prompts(
    prompts: Sequence[Sequence[int]], padding: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-pads prompts: token ids and attention mask, both int64, shape (rows, longest prompt)."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), padding, dtype=torch.int64)
    mask = torch.zeros((len(prompts), width), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.as_tensor(prompt, dtype=torch.int64)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


@dataclass(frozen=True)
class TokenBatch:
    """Rows of prompt and completion.

    Attributes:
        ids: int64, shape (rows, P + T); columns 0 … P − 1 are prompts, the rest completions.
        attention: int64 of the same shape, 0 on padding.
        length: T, the width of the completions.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    length: int

    @classmethod
    def join(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        padding: int,
        device: torch.device | str = "cpu",
    ) -> TokenBatch:
        """Pads and joins prompts and completions, row by row."""
        left, left_mask = pad_prompts(prompts, padding, device)
        # Completions are padded on the right: pad their reversal on the left, and turn it round.
        right, right_mask = pad_prompts([completion[::-1] for completion in completions], padding, device)
        ids = torch.cat([left, right.flip(1)], dim=1)
        attention = torch.cat([left_mask, right_mask.flip(1)], dim=1)
        return cls(ids, attention, right.shape[1])

    @property
    def completions(self) -> torch.Tensor:
        """Token ids of the completions, shape (rows, T)."""
        return self.ids[:, -self.length :]

    @property
    def mask(self) -> torch.Tensor:
        """True on generated tokens, shape (rows, T)."""
        return self.attention[:, -self.length :].bool()

    def rows(self, start: int, stop: int) -> TokenBatch:
        """Rows start … stop − 1."""
        return TokenBatch(self.ids[start:stop], self.attention[start:stop], self.length)


def completion_logits(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Logits from which each completion token was, or would be, drawn: shape (rows, T, vocabulary)."""
    positions = (batch.attention.cumsum(1) - 1).clamp(min=0)
    output = model(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=batch.length + 1,
    )
    return output.logits[:, :-1]
