"""From a PEFT model to an `AdapterPlan`, and between the model's tensors and a flat buffer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hilosync.errors import ConfigurationError, PlanError, PlanMismatch
from hilosync.plan.adapter import AdapterPlan, Block

__all__ = ["AdapterBinding", "bind"]

_LORA = re.compile(r"^(?P<module>.+)\.(?P<factor>lora_A|lora_B)\.(?P<adapter>[^.]+)\.weight$")


@dataclass(frozen=True)
class AdapterBinding:
    """A PEFT model's LoRA tensors in plan order.

    Attributes:
        plan: the plan that the tensors follow.
        parameters: the model's own parameters, one per block of the plan, any float dtype and device.
        peft_config: the adapter's configuration as JSON values, enough to write an adapter directory.
        restartable: True if every B is zero and A has PEFT's default initialization, so that the
            adapter may start from the run's seed without a change to the model's function.
    """

    plan: AdapterPlan
    parameters: tuple[torch.nn.Parameter, ...]
    peft_config: dict[str, Any]
    restartable: bool

    def read(self) -> torch.Tensor:
        """The parameters as a new flat fp32 tensor on the CPU, shape (plan.size,)."""
        return torch.cat([p.detach().reshape(-1).to("cpu", torch.float32) for p in self.parameters])

    def gradients(self, out: torch.Tensor) -> torch.Tensor:
        """Copies the parameters' gradients into `out`, flat fp32, shape (plan.size,).

        A parameter without a gradient counts as zero.

        Raises:
            ConfigurationError: no parameter has a gradient.
        """
        if not self.has_gradients:
            raise ConfigurationError("no LoRA parameter has a gradient: expected loss.backward() before learner.step()")
        for view, parameter in zip(self.plan.views(out), self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad.detach().view_as(view))
        return out

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has left a gradient in any parameter."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def clear_gradients(self) -> None:
        """Drops the parameters' gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def serve(self, flat: torch.Tensor) -> None:
        """Gives the model the served policy: a bf16 round-to-nearest-even copy of the fp32 masters.

        The copy is cast again to the parameter's dtype, which is exact for fp32 and bf16. Learner and
        workers both compute with this copy, so that they hold one policy.
        """
        for view, parameter in zip(self.plan.views(flat), self.parameters, strict=True):
            parameter.copy_(view.to(torch.bfloat16).view_as(parameter))


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def bind(
    model: Any,
    expected: AdapterPlan | None = None,
    param_group: Callable[[str], int] | None = None,
    served_as: dict[str, Any] | None = None,
) -> AdapterBinding:
    """Reads the plan of a PEFT model's active LoRA adapter and binds its tensors.

    Args:
        model: a `peft.PeftModel` with one active LoRA adapter.
        expected: the plan that a log was written for, to be compared with the model's. Such a model only
            serves, so it does not matter which of its tensors are trainable.
        param_group: the param group of a tensor by its name; None puts all into group 0.
        served_as: the run's PEFT configuration, whose scaling the model must share.

    Raises:
        PlanError: the model is not a PEFT model, or has a part that cannot be synchronized or served.
        PlanMismatch: the model's plan is not the expected one; the message names a tensor that differs.
    """
    from peft import LoraConfig, PeftModel

    if not isinstance(model, PeftModel):
        raise PlanError(
            f"expected a peft.PeftModel with a LoRA adapter, got {type(model).__name__}: "
            "wrap the model with peft.get_peft_model(model, peft.LoraConfig(...))"
        )
    active = list(model.active_adapters)
    if len(active) != 1:
        raise PlanError(
            f"{len(active)} adapters are active ({', '.join(active) or 'none'}): HiLo synchronizes one; "
            "choose it with model.set_adapter(name)"
        )
    config = model.peft_config[active[0]]
    if not isinstance(config, LoraConfig):
        raise PlanError(f"expected a LoRA adapter, got {type(config).__name__}: HiLo synchronizes LoRA factors")
    _refuse_what_engines_cannot_serve(config)

    tensors: dict[str, torch.nn.Parameter] = {}
    for full_name, parameter in model.named_parameters():
        match = _LORA.match(full_name)
        if match is None or match["adapter"] != active[0]:
            if expected is not None or not parameter.requires_grad:
                continue
            raise PlanError(
                f"{full_name} is trainable but is not a LoRA factor of adapter {active[0]!r}: the workers would "
                "never see it change; freeze it with requires_grad_(False)"
            )
        if expected is None and not parameter.requires_grad:
            raise PlanError(
                f"{full_name} is frozen: workers draw nothing of their own, so every LoRA factor has to be part of "
                "the run; unfreeze it with requires_grad_(True)"
            )
        if parameter.ndim != 2:
            raise PlanError(
                f"{full_name} has {parameter.ndim} dimensions: HiLo synchronizes LoRA on linear layers (matrices)"
            )
        module = match["module"].removeprefix("base_model.model.")
        tensors[f"{module}.{match['factor']}"] = parameter
    names = sorted(tensors, key=_natural)
    blocks = tuple(
        Block(
            name=name,
            rows=tensors[name].shape[0],
            columns=tensors[name].shape[1],
            fan_in=tensors[name].shape[1] if name.endswith("lora_A") else 0,
            group=0 if param_group is None else param_group(name),
        )
        for name in names
    )
    plan = AdapterPlan(blocks)
    if expected is not None:
        _compare(expected, plan)
    if served_as is not None:
        _compare_scaling(served_as, _config_as_json(config))
    zero = all(not tensors[name].detach().any() for name in names if name.endswith("lora_B"))
    return AdapterBinding(
        plan=expected or plan,
        parameters=tuple(tensors[name] for name in names),
        peft_config=_config_as_json(config),
        restartable=zero and config.init_lora_weights is True,
    )


def _refuse_what_engines_cannot_serve(config: Any) -> None:
    changed_base = str(config.init_lora_weights).startswith(("pissa", "olora", "corda", "loftq"))
    refusals = {
        "init_lora_weights": (changed_base, "it changes the base weights, and workers have the unchanged ones"),
        "use_dora": (config.use_dora, "DoRA's magnitude vectors are not served by rollout engines"),
        "modules_to_save": (
            config.modules_to_save,
            "whole modules are not part of a LoRA adapter that engines load",
        ),
        "bias": (config.bias != "none", "trained biases are not served by rollout engines"),
        "lora_bias": (
            getattr(config, "lora_bias", False),
            "biases of LoRA's B are not served by rollout engines",
        ),
    }
    for option, (present, reason) in refusals.items():
        if present:
            raise PlanError(f"LoraConfig.{option}={getattr(config, option)!r} is refused: {reason}")


def _compare(expected: AdapterPlan, found: AdapterPlan) -> None:
    if len(expected.blocks) != len(found.blocks):
        missing = {b.name for b in expected.blocks} - {b.name for b in found.blocks}
        extra = {b.name for b in found.blocks} - {b.name for b in expected.blocks}
        raise PlanMismatch(
            f"the log's plan has {len(expected.blocks)} tensors, the model's adapter {len(found.blocks)}; "
            f"missing in the model: {', '.join(sorted(missing)[:3]) or 'none'}; "
            f"not in the log: {', '.join(sorted(extra)[:3]) or 'none'}: use the run's LoraConfig"
        )
    for wanted, got in zip(expected.blocks, found.blocks, strict=True):
        if (wanted.name, wanted.rows, wanted.columns) != (got.name, got.rows, got.columns):
            raise PlanMismatch(
                f"the log's plan has {wanted.name} of {wanted.rows} × {wanted.columns}, the model's adapter "
                f"{got.name} of {got.rows} × {got.columns}: use the run's base model and LoraConfig"
            )


def _compare_scaling(run: dict[str, Any], model: dict[str, Any]) -> None:
    """Equal factors are another policy under another scaling, which no digest of the factors can see."""
    for option in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"):
        if run.get(option) != model.get(option):
            raise PlanMismatch(
                f"the run's adapter has {option}={run.get(option)!r}, the model's {model.get(option)!r}: equal factors "
                "would be another policy; use the run's LoraConfig"
            )


def _config_as_json(config: Any) -> dict[str, Any]:
    """PEFT's own dictionary with sets as sorted lists and enums as their values."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, set | frozenset):
            return sorted(plain(item) for item in value)
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return getattr(value, "value", value)
        return str(getattr(value, "value", value))

    return plain(config.to_dict())
