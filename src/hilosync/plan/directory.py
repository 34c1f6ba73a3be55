"""Writing an adapter directory that PEFT, vLLM and every other LoRA engine can load."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hilosync.errors import ConfigurationError
from hilosync.plan.adapter import AdapterPlan

__all__ = ["write_adapter_directory"]


def write_adapter_directory(
    directory: str | Path,
    plan: AdapterPlan,
    params: torch.Tensor,
    peft_config: dict[str, Any],
    metadata: dict[str, str],
) -> Path:
    """Writes `adapter_model.safetensors` (bf16) and `adapter_config.json`, whole or not at all.

    Everything is written and synced under a temporary name beside the target, then renamed, so that
    an engine that watches the folder never sees half an adapter.

    Args:
        directory: the folder to create.
        plan: the adapter's plan.
        params: fp32 master parameters, flat, shape (plan.size,).
        peft_config: the adapter's PEFT configuration as JSON values.
        metadata: strings stored in the safetensors header (run, version, digest).

    Raises:
        ConfigurationError: the folder exists already. An engine may hold it open, and a policy
            version is never written over another's name.
    """
    target = Path(directory)
    if target.exists():
        raise ConfigurationError(
            f"{target} exists already: expected a new folder for each policy version, for example {target}-v17"
        )
    staging = target.with_name(f".{target.name}.{os.getpid()}.staging")
    staging.mkdir(parents=True)
    try:
        tensors = {
            f"base_model.model.{block.name}.weight": view.to(torch.bfloat16).cpu().contiguous()
            for block, view in zip(plan.blocks, plan.views(params), strict=True)
        }
        save_file(tensors, staging / "adapter_model.safetensors", metadata={"format": "pt", **metadata})
        served = {**peft_config, "inference_mode": True}
        (staging / "adapter_config.json").write_text(json.dumps(served, indent=2, sort_keys=True))
        for path in staging.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target
