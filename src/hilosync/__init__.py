"""HiLo: train high, ship low.

A learner publishes one compressed gradient per step; replicas replay the same optimizer step and hold
the same bits at every policy version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hilosync.compress import Dense, PowerSGD, Spar, SparRD, TopK, Warmup
    from hilosync.optim import SGDM, AdamW, Lion, Muon, TorchOptimizer
    from hilosync.runtime import Learner, Replica

__all__ = [
    "SGDM",
    "AdamW",
    "Dense",
    "Learner",
    "Lion",
    "Muon",
    "PowerSGD",
    "Replica",
    "Spar",
    "SparRD",
    "TopK",
    "TorchOptimizer",
    "Warmup",
]

_HOMES = {
    "AdamW": "hilosync.optim",
    "Dense": "hilosync.compress",
    "Learner": "hilosync.runtime",
    "Lion": "hilosync.optim",
    "Muon": "hilosync.optim",
    "PowerSGD": "hilosync.compress",
    "Replica": "hilosync.runtime",
    "SGDM": "hilosync.optim",
    "Spar": "hilosync.compress",
    "SparRD": "hilosync.compress",
    "TopK": "hilosync.compress",
    "TorchOptimizer": "hilosync.optim",
    "Warmup": "hilosync.compress",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `hilo --help` and a module deep inside need not load torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
