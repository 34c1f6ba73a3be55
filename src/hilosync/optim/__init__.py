"""Optimizers that every replica replays to the same bits."""

from hilosync.optim.adamw import AdamW
from hilosync.optim.base import Optimizer, PolicyState
from hilosync.optim.lion import Lion
from hilosync.optim.muon import Muon
from hilosync.optim.registry import get_optimizer, init_state
from hilosync.optim.replace import Replace
from hilosync.optim.sgdm import SGDM
from hilosync.optim.torch_optimizer import TorchOptimizer

__all__ = [
    "SGDM",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "PolicyState",
    "Replace",
    "TorchOptimizer",
    "get_optimizer",
    "init_state",
]
