"""Gradients of a real run, kept to be compressed again and again.

A capture is a folder with `plan.json` and one `step-00001.safetensors`, … per version, each with one
flat fp32 tensor ``gradient`` in plan order: G before clipping and error feedback.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hilosync.errors import ConfigurationError
from hilosync.plan import AdapterPlan, Block

__all__ = ["capture_to", "read_capture"]


def capture_to(folder: str | Path, plan: AdapterPlan) -> Callable[[int, torch.Tensor], None]:
    """Begins a capture in a new or empty folder; the result is called with (version, G) at every step.

    Raises:
        ConfigurationError: the folder has files in it.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is not empty: expected a new folder for captured gradients")
    target.mkdir(parents=True, exist_ok=True)
    blocks = [[b.name, b.rows, b.columns, b.fan_in, b.group] for b in plan.blocks]
    (target / "plan.json").write_text(json.dumps({"bytes_per_element": plan.bytes_per_element, "blocks": blocks}))

    def keep(version: int, gradient: torch.Tensor) -> None:
        save_file({"gradient": gradient.cpu()}, target / f"step-{version:05d}.safetensors")

    return keep


def read_capture(folder: str | Path) -> tuple[AdapterPlan, Iterator[torch.Tensor]]:
    """The plan of a capture and its gradients in order, flat fp32, one at a time.

    Raises:
        ConfigurationError: the folder is not a capture.
    """
    target = Path(folder)
    try:
        described = json.loads((target / "plan.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigurationError(
            f"{target} is not a capture ({error}): make one with hilo demo --capture-gradients {target}"
        ) from error
    plan = AdapterPlan(tuple(Block(*block) for block in described["blocks"]), described["bytes_per_element"])
    files = sorted(target.glob("step-*.safetensors"))
    if not files:
        raise ConfigurationError(f"{target} holds no gradients: make some with hilo demo --capture-gradients {target}")
    return plan, (load_file(file)["gradient"] for file in files)
