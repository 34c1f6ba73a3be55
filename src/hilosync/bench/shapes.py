"""Adapter plans of real models by name, so that a benchmark needs no weights."""

from __future__ import annotations

from dataclasses import dataclass

from hilosync.errors import UnknownName
from hilosync.plan import AdapterPlan, Block

__all__ = ["MODELS", "adapter_plan"]


@dataclass(frozen=True)
class _Shape:
    """Widths of a decoder-only transformer with grouped-query attention and a gated MLP."""

    layers: int
    hidden: int
    queries: int
    keys: int
    intermediate: int

    def linears(self) -> dict[str, tuple[int, int]]:
        """(input width, output width) of every adapted linear layer, sorted by name."""
        return {
            "mlp.down_proj": (self.intermediate, self.hidden),
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "self_attn.k_proj": (self.hidden, self.keys),
            "self_attn.o_proj": (self.queries, self.hidden),
            "self_attn.q_proj": (self.hidden, self.queries),
            "self_attn.v_proj": (self.hidden, self.keys),
        }


_SHAPES = {
    "qwen3-0.6b": _Shape(layers=28, hidden=1024, queries=2048, keys=1024, intermediate=3072),
    "qwen3-1.7b": _Shape(layers=28, hidden=2048, queries=2048, keys=1024, intermediate=6144),
}

MODELS = tuple(_SHAPES)
"""Names that `adapter_plan` knows."""


def adapter_plan(model: str, rank: int = 64) -> AdapterPlan:
    """The plan of a LoRA adapter on all seven linear layers of every decoder layer.

    Raises:
        UnknownName: `model` is not one of `MODELS`.
    """
    if model not in _SHAPES:
        raise UnknownName("model", model, MODELS)
    shape = _SHAPES[model]
    blocks = []
    for layer in range(shape.layers):
        for linear, (inputs, outputs) in shape.linears().items():
            name = f"model.layers.{layer}.{linear}"
            blocks.append(Block(f"{name}.lora_A", rank, inputs, fan_in=inputs))
            blocks.append(Block(f"{name}.lora_B", outputs, rank))
    return AdapterPlan(tuple(blocks))
