"""A run small enough to read, and gradients for it."""

from __future__ import annotations

import numpy as np
import torch

from hilosync.compress import Spar
from hilosync.optim import AdamW
from hilosync.plan import AdapterPlan, Block
from hilosync.wire import Genesis, PlanLayout, Setup, TensorLayout, encode_genesis

PLAN = AdapterPlan((Block("a.lora_A", 4, 12, fan_in=12), Block("a.lora_B", 10, 4), Block("b.lora_A", 4, 7, fan_in=7)))


def genesis_of(**changes) -> bytes:
    fields = {
        "run": "00" * 15 + "01",
        "seed": 3,
        "created_by": "test",
        "plan": PlanLayout(tuple(TensorLayout(b.name, b.rows, b.columns, b.fan_in, b.group) for b in PLAN.blocks)),
        "optimizer": Setup("adamw", AdamW().settings()),
        "compressor": Setup("spar", Spar().settings()),
        "budget": 400,
    }
    return encode_genesis(Genesis(**(fields | changes)))


def gradient(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(PLAN.size)).float()
