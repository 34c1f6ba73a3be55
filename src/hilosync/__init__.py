"""HiLo: train high, ship low.

A learner publishes one compressed gradient per step; replicas replay the same optimizer step and hold
the same bits at every policy version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hilosync.compress import Dense, Spar
    from hilosync.optim import AdamW
    from hilosync.runtime import Learner, Replica

__all__ = ["AdamW", "Dense", "Learner", "Replica", "Spar"]

_HOMES = {
    "AdamW": "hilosync.optim",
    "Dense": "hilosync.compress",
    "Learner": "hilosync.runtime",
    "Replica": "hilosync.runtime",
    "Spar": "hilosync.compress",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `hilo --help` and a module deep inside need not load torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
