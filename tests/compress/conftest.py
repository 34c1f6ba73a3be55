from __future__ import annotations

import pytest
import torch

from hilosync.plan import AdapterPlan, Block


@pytest.fixture(scope="session")
def plan() -> AdapterPlan:
    """A small adapter: four layers of two LoRA pairs, wide A and tall B, rank 16."""
    blocks = []
    for layer in range(4):
        for module, (fan_in, fan_out) in {"down": (96, 48), "up": (48, 96)}.items():
            blocks.append(Block(f"layers.{layer}.{module}.lora_A", 16, fan_in, fan_in))
            blocks.append(Block(f"layers.{layer}.{module}.lora_B", fan_out, 16))
    return AdapterPlan(tuple(blocks))


@pytest.fixture(scope="session")
def gradient(plan: AdapterPlan) -> torch.Tensor:
    """Blocks with decaying spectra and unequal energies."""
    generator = torch.Generator().manual_seed(7)
    blocks = []
    for index, block in enumerate(plan.blocks):
        r = min(block.rows, block.columns)
        sigma = torch.arange(1, r + 1) ** -1.0
        left = torch.linalg.qr(torch.randn(block.rows, r, generator=generator)).Q
        right = torch.linalg.qr(torch.randn(block.columns, r, generator=generator)).Q
        blocks.append((1.3**-index * (left * sigma) @ right.T).flatten())
    return torch.cat(blocks)
