"""A tiny model with an adapter, and a log of its own for every test."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_peft import tiny_model
from torch import nn

import hilosync as hilo

_numbers = itertools.count()


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def another_model():
    return tiny_model()


@pytest.fixture
def memory():
    """An address that no other test uses."""
    return f"memory:runtime-{next(_numbers)}"


@pytest.fixture
def backward(rng):
    """Gives a model the gradient of a fixed regression, and returns the loss."""
    inputs = torch.from_numpy(rng.standard_normal((32, 12))).float()
    targets = torch.from_numpy(rng.standard_normal((32, 3))).float()

    def run(model) -> float:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss.item()

    return run


@pytest.fixture
def learner_at(model, memory, backward):
    """Begins a run on `memory` and makes its first versions."""

    def make(version: int) -> hilo.Learner:
        learner = hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Spar(budget=700), log=memory)
        for _ in range(version):
            backward(model)
            learner.step()
        return learner

    return make
