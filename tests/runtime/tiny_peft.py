"""A tiny model with an adapter; every call gives the same base weights."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Tiny(nn.Module):
    """Three linears; its loss is a regression."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3)])
        for parameter in self.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        self.config = {"model_type": "toy"}

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


def tiny_model():
    """A fresh PEFT model; every call gives the same base weights."""
    return get_peft_model(Tiny(), LoraConfig(r=4, lora_alpha=4, target_modules=["layers.0", "layers.1", "layers.2"]))
