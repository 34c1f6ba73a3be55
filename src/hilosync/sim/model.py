"""The smallest adapter that a learner can train, and gradients for it: what is learned does not matter here."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch

from hilosync.compress import Compressor, Dense, Spar, TopK
from hilosync.optim import SGDM, AdamW, Lion, Optimizer

__all__ = ["choose_rules", "fresh_model", "gradient"]

_ELEMENTS = 80


def fresh_model() -> Any:
    """A PEFT model whose adapter has two tensors, of 32 and 48 elements, its B zero; always the same object.

    Learners only serve to it, so that several may share it.
    """
    model = _tiny_model()
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data.zero_()
    return model


@cache
def _tiny_model() -> Any:
    from peft import LoraConfig, get_peft_model

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(8, 12)
            self.config = {"model_type": "tiny"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x)

    model: Any = Tiny()
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=4, target_modules=["up"]))


def choose_rules(random: Random) -> tuple[Optimizer, Compressor]:
    """An optimizer and a compressor, the cheap ones more often than those that decompose matrices."""
    optimizer: Any = random.choice((SGDM(lr=0.01), AdamW(lr=0.01), Lion(lr=0.001)))
    compressors: tuple[Any, ...] = (TopK(budget=400), Dense(), Spar(budget=400))
    return optimizer, random.choices(compressors, weights=(3, 2, 1))[0]


def gradient(seed: int, version: int, life: int) -> torch.Tensor:
    """The gradient of a version, flat fp32; another life of the learner gets another one."""
    return torch.from_numpy(np.random.default_rng((seed, version, life)).standard_normal(_ELEMENTS)).float()
