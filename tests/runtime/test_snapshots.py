"""Snapshots: written by anyone, checked by everyone, whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hilosync as hilo
from hilosync.log import open_log
from hilosync.runtime import snapshots
from hilosync.runtime.snapshots import load_snapshot, write_snapshot


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few elements, so that a tiny adapter has many."""
    monkeypatch.setattr(snapshots, "elements_per_chunk", lambda buffers: 50)


def follow(memory) -> hilo.Replica:
    replica = hilo.Replica.join(memory)
    replica.advance()
    return replica


def test_a_loaded_snapshot_has_the_bits_of_its_version_and_goes_on(model, memory, backward, small_chunks):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Spar(budget=700), log=memory)
    for _ in range(5):
        backward(model)
        learner.step()
    held = follow(memory)
    log = open_log(memory)
    written = write_snapshot(log, held.run, held._machine.state, 5)
    assert written.published
    state, position = load_snapshot(log, held.run, 5)
    assert position == held._machine.position
    assert torch.equal(state.params, held.params)
