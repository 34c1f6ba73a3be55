"""The two frames that the golden vectors hold, as values."""

from __future__ import annotations

import numpy as np

from hilosync.wire import (
    Genesis,
    PlanLayout,
    Record,
    Setup,
    TensorLayout,
    configuration_fingerprint,
    encode_genesis,
    record_hash,
)

PRIVATE_KEY = bytes(range(32))

GENESIS = Genesis(
    run="000102030405060708090a0b0c0d0e0f",
    seed=17,
    created_by="hilosync 0.1.0",
    plan=PlanLayout(
        blocks=(
            TensorLayout("layers.0.q_proj.lora_A", rows=4, columns=96, fan_in=96),
            TensorLayout("layers.0.q_proj.lora_B", rows=96, columns=4, group=1),
        )
    ),
    optimizer=Setup("adamw", {"betas": [0.9, 0.999], "eps": 1e-8}),
    compressor=Setup("spar", {"ranks": "greedy"}),
    budget=4096,
    base_model="größe/tiny",
    peft={"r": 4, "lora_alpha": 8},
    task={"name": "knights"},
)


def example_record(**changes) -> Record:
    """Two param groups of three scalars, two tensors, a payload of every byte value."""
    fields = {
        "run": GENESIS.run_id,
        "epoch": 3,
        "version": 1,
        "previous": record_hash(encode_genesis(GENESIS)),
        "plan": bytes(range(16, 32)),
        "configuration": configuration_fingerprint(GENESIS),
        # 1e-4, −0, the smallest subnormal; a quiet NaN with a payload, ∞, 1
        "scalars": np.array(
            [[0x38D1B717, 0x80000000, 0x00000001], [0x7FC12345, 0x7F800000, 0x3F800000]], np.uint32
        ).view(np.float32),
        "tags": np.array([0x1234, 0xFEDC], np.uint16),
        "payload": bytes(range(256)),
        "digest": bytes(range(64, 96)),
    }
    return Record(**(fields | changes))
