"""The ordered tensors of an adapter, and where they live in a PEFT model or an adapter directory."""

from hilosync.plan.adapter import AdapterPlan, Block
from hilosync.plan.directory import write_adapter_directory
from hilosync.plan.peft import AdapterBinding, bind

__all__ = ["AdapterBinding", "AdapterPlan", "Block", "bind", "write_adapter_directory"]
