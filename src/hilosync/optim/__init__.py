"""Optimizers that every replica replays to the same bits."""

from hilosync.optim.adamw import AdamW
from hilosync.optim.base import Optimizer, PolicyState
from hilosync.optim.registry import get_optimizer, init_state
from hilosync.optim.replace import Replace

__all__ = ["AdamW", "Optimizer", "PolicyState", "Replace", "get_optimizer", "init_state"]
