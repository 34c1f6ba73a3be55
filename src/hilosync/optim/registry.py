"""Optimizers by name, and the state they start from."""

from __future__ import annotations

from typing import Any

import torch

from hilosync.errors import ConfigurationError, PlanMismatch, UnknownName
from hilosync.optim.adamw import AdamW
from hilosync.optim.base import Optimizer, PolicyState
from hilosync.optim.lion import Lion
from hilosync.optim.muon import Muon
from hilosync.optim.replace import Replace
from hilosync.optim.sgdm import SGDM
from hilosync.optim.torch_optimizer import TorchOptimizer
from hilosync.plan import AdapterPlan

__all__ = ["get_optimizer", "init_state"]

_OPTIMIZERS: dict[str, type[Any]] = {
    "adamw": AdamW,
    "lion": Lion,
    "muon": Muon,
    "replace": Replace,
    "sgdm": SGDM,
    "torch": TorchOptimizer,
}


def get_optimizer(name: str, settings: dict[str, Any]) -> Optimizer:
    """The optimizer of this name, with the settings that a run's genesis carries.

    Raises:
        UnknownName: there is no optimizer of this name, or it has no such setting.
        ConfigurationError: a setting is missing, or out of its range.
    """
    if name not in _OPTIMIZERS:
        raise UnknownName("optimizer", name, list(_OPTIMIZERS))
    kind = _OPTIMIZERS[name]
    known = list(kind.__dataclass_fields__)
    for setting in settings:
        if setting not in known:
            raise UnknownName(f"setting of optimizer {name}", setting, known)
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigurationError(f"optimizer {name!r} does not take the settings {settings}: {error}") from error


def init_state(plan: AdapterPlan, optimizer: Optimizer, params: torch.Tensor) -> PolicyState:
    """The state at version 0: a copy of `params` (flat fp32, plan order) and slots of zeros beside it.

    Raises:
        PlanMismatch: `params` is not a flat fp32 buffer of the plan's size.
    """
    if params.shape != (plan.size,) or params.dtype != torch.float32:
        raise PlanMismatch(
            f"expected flat fp32 parameters of {plan.size} elements, got shape {tuple(params.shape)} of {params.dtype}"
        )
    flat = params.detach().clone().contiguous()
    return PolicyState(flat, {name: torch.zeros_like(flat) for name in optimizer.slots})
