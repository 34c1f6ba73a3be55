"""The ordered tensors of an adapter."""

from hilosync.plan.adapter import AdapterPlan, Block

__all__ = ["AdapterPlan", "Block"]
