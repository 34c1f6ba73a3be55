"""The genesis of a run that a learner begins."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import torch
from safetensors.torch import save as save_safetensors

from hilosync.compress import Compressor, budget_bytes
from hilosync.errors import RunMismatch
from hilosync.log import Log
from hilosync.optim import Optimizer
from hilosync.plan import AdapterBinding
from hilosync.wire import Genesis, PlanLayout, Setup, TensorLayout, encode_genesis

__all__ = ["describe_run"]


def describe_run(
    log: Log,
    binding: AdapterBinding,
    optimizer: Optimizer,
    compressor: Compressor,
    *,
    initial: torch.Tensor | None,
    seed: int,
    base_model: str | None,
    task: dict[str, Any] | None,
    public_key: bytes | None = None,
) -> bytes:
    """Record 0 of a new run on an empty log; an adapter that does not follow from the seed is stored beside it.

    Args:
        log: where the run will be.
        binding: the model's adapter.
        optimizer: the transition that every replica replays.
        compressor: what makes payloads.
        initial: the adapter that the run starts from, flat fp32; None where it starts from the seed.
        seed: of the initial adapter.
        base_model: path or hub id of the base model, or None.
        task: what workers need to generate, as JSON values.
        public_key: of the learner that signs every record, 32 bytes; None for a run without signatures.

    Raises:
        RunMismatch: the log holds a run already.
        ConfigurationError: the budget or a setting cannot be described.
    """
    if log.steps.read(0) is not None:
        raise RunMismatch(
            f"{log.url} holds a run already, at version {log.steps.head()}: "
            "give this run a log of its own, or resume or remove that one"
        )
    plan = binding.plan
    return encode_genesis(
        Genesis(
            run=os.urandom(16).hex(),
            seed=seed,
            created_by=f"hilosync {version('hilosync')}",
            plan=PlanLayout(
                tuple(TensorLayout(b.name, b.rows, b.columns, b.fan_in, b.group) for b in plan.blocks),
                plan.bytes_per_element,
            ),
            optimizer=Setup(optimizer.name, optimizer.settings()),
            compressor=Setup(compressor.name, compressor.settings()),
            budget=None if compressor.budget is None else budget_bytes(compressor.budget, plan),
            base_model=base_model,
            peft=binding.peft_config,
            initial="seed" if initial is None else log.blobs.put(save_safetensors({"params": initial})),
            task=task or {},
            key=None if public_key is None else public_key.hex(),
        )
    )
