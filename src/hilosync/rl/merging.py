"""The policy as a plain model: W + s·B·A in the place of each LoRA layer, for generation.

A PEFT layer runs three small products and some Python where a plain linear layer runs one product;
with short batches that is most of the time of a token. The copy is made anew from the base weights
each time, never by adding to and subtracting from them, so it cannot drift.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["merged"]


@torch.no_grad()
def merged(model: Any) -> Any:
    """A plain twin of a PEFT model with its adapter in the weights, or the model itself.

    The twin shares every tensor that has no adapter and owns those that have; the model is not changed.
    Only fp32 linear layers are merged: a bf16 weight plus an update below half its last place is the
    old weight again, and the policy would seem not to move; quantized weights lose it likewise. A model
    with any other layer under its adapter is returned as it is, as is one without adapter.

    Args:
        model: a Hugging Face causal LM, plain or with LoRA of PEFT; in evaluation mode.
    """
    from peft import PeftModel
    from peft.tuners.lora import Linear, LoraLayer

    if not isinstance(model, PeftModel):
        return model
    base: Any = model.get_base_model()
    # What the memo holds is taken over as it is: shared tensors, and the merged layers.
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    memo[id(base.config)] = base.config
    for layer in base.modules():
        if not isinstance(layer, LoraLayer):
            continue
        inner = layer.get_base_layer()
        if type(layer) is not Linear or type(inner) is not torch.nn.Linear or inner.weight.dtype != torch.float32:
            return model
        weight = inner.weight.detach().clone()
        for adapter in list(layer.active_adapters):
            weight += layer.get_delta_weight(adapter)
        plain = torch.nn.Linear(inner.in_features, inner.out_features, bias=False, device="meta")
        plain.weight, plain.bias = torch.nn.Parameter(weight, requires_grad=False), inner.bias
        memo[id(layer)] = plain
    return copy.deepcopy(base, memo).eval()
