"""Any other `torch.optim.Optimizer`, on matched hardware and software only.

torch's optimizers are free to fuse and reorder, so their bits hold between machines that are alike.
The settings carry a fingerprint of the learner's machine: a replica on another one is refused before
it applies a record, and should one differ all the same, the digest tells.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.decode import materialize
from hilosync.arithmetic.digest import state_sums
from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.arithmetic.state import PolicyState
from hilosync.errors import ConfigurationError, RunMismatch, UnknownName
from hilosync.optim.elementwise import check_gradient
from hilosync.optim.groups import PerGroup, as_words, check_constants, check_rates, per_group
from hilosync.plan import AdapterPlan

__all__ = ["TorchOptimizer", "machine_fingerprint"]


def machine_fingerprint() -> dict[str, str]:
    """What decides the bits of torch's own operations: processor, accelerator, library, SIMD level, threads."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        models = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    return {
        "torch": str(torch.__version__),
        "cpu": f"{platform.machine()} {cpu}",
        "simd": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


@dataclass(frozen=True, eq=False)
class TorchOptimizer:
    """One `torch.optim.Optimizer` class, replayed by itself.

    Every fp32 state tensor of a parameter's shape is a slot; its counter `step` follows from the
    version. Optimizers that keep anything else (Adafactor's row sums, L-BFGS's history) are refused.

    Attributes:
        kind: the class, as `torch.optim`'s name ("RMSprop"), or "module:Class" of a module that this
            process has imported already: a log never makes a replica import code.
        options: keyword arguments of the class without `lr`, as JSON values.
        lr: learning rate, for all param groups or one each.
        machine: fingerprint of the learner's machine; None for this one.

    Raises:
        UnknownName: there is no such optimizer class in this process.
        RunMismatch: this machine is not like the learner's; the message says in what.
        ConfigurationError: the class refuses the options, or keeps state that cannot be replicated.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    lr: PerGroup = 1e-3
    machine: dict[str, str] | None = None

    name = "torch"
    scalar_names = ("rate", "version")

    def __post_init__(self) -> None:
        check_constants(self.name, "torch", lr=self.lr)
        for name, value, kind, expected in (
            ("kind", self.kind, str, "a class name"),
            ("options", self.options, dict, "a dict of keyword arguments"),
            ("machine", self.machine, dict | None, "a dict of strings, or None"),
        ):
            if not isinstance(value, kind):
                raise ConfigurationError(f"setting {name!r} of optimizer torch: expected {expected}, got {value!r}")
        here = machine_fingerprint()
        if self.machine is not None:
            unlike = [
                f"{key} is {here.get(key)!r}, the learner's is {value!r}"
                for key, value in self.machine.items()
                if here.get(key) != value
            ]
            if unlike:
                raise RunMismatch(
                    f"this run steps with torch's own {self.kind}, whose bits hold on matched machines only: "
                    f"{'; '.join(unlike)}; join from a machine like the learner's, or start the run with "
                    "adamw, lion, sgdm or muon, which replay anywhere"
                )
        _ = self.slots

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors, found by one step on a small parameter."""
        probe = torch.nn.Parameter(torch.ones(3, 5))
        probe.grad = torch.ones_like(probe)
        optimizer = self._build([{"params": [probe], "lr": 1e-3}])
        try:
            optimizer.step()
        except Exception as error:
            raise ConfigurationError(
                f"torch's {self.kind} cannot step with these options on a dense gradient alone "
                f"({' '.join(str(error).split())}): use adamw, lion, sgdm or muon"
            ) from error
        names = []
        for name, value in optimizer.state[probe].items():
            if name == "step" or value is None:
                continue
            if not isinstance(value, torch.Tensor) or value.shape != probe.shape or value.dtype != torch.float32:
                raise ConfigurationError(
                    f"{self.kind} keeps state {name!r} that is not an fp32 tensor of its parameter's shape: "
                    "it cannot be replicated; use adamw, lion, sgdm or muon"
                )
            names.append(name)
        return tuple(sorted(names))

    def settings(self) -> dict[str, Any]:
        """Class, options and the fingerprint of the machine that the bits hold on."""
        return {"kind": self.kind, "options": self.options, "machine": self.machine or machine_fingerprint()}

    def scalars(self, version: int, learning_rates: tuple[float, ...] | None = None) -> np.ndarray:
        """(learning rate, version) per param group, fp32."""
        return as_words(self.name, [(rate, version) for (rate,) in per_group(check_rates(self.lr, learning_rates))])

    def step(self, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, scalars: np.ndarray) -> np.ndarray:
        """One step in place; returns the state sums."""
        check_gradient(plan, gradient)
        version = int(scalars[0, 1])
        params = [torch.nn.Parameter(view, requires_grad=True) for view in plan.views(state.params)]
        slots = {name: plan.views(buffer) for name, buffer in state.slots.items()}
        groups: list[dict[str, Any]] = [
            {"params": [], "lr": float(scalars[min(group, len(scalars) - 1), 0])} for group in range(plan.groups)
        ]
        for param, block, part in zip(params, plan.blocks, gradient, strict=True):
            param.grad = materialize(part)
            groups[block.group]["params"].append(param)
        optimizer = self._build([group for group in groups if group["params"]])
        # Before the first step a class builds its own state, which need not be zero.
        if version > 1:
            for index, param in enumerate(params):
                optimizer.state[param] = {name: views[index] for name, views in slots.items()}
                optimizer.state[param]["step"] = torch.tensor(float(version - 1))
        optimizer.step()
        for index, param in enumerate(params):
            for name, views in slots.items():
                views[index].copy_(optimizer.state[param][name])
        return state_sums(plan, state)

    def _build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        kind = _optimizer_class(self.kind)
        try:
            return kind(groups, **self.options)
        except Exception as error:
            raise ConfigurationError(f"torch's {self.kind} refuses its options: {error}") from error


def _optimizer_class(kind: str) -> Any:
    module, _, name = kind.rpartition(":")
    found = getattr(sys.modules.get(module or "torch.optim"), name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        known = [
            name
            for name, value in vars(torch.optim).items()
            if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
        ]
        raise UnknownName("torch optimizer", kind, [*known, "module:Class of an imported module"])
    return found
