"""Replays an elementwise optimizer over all blocks, on one of three backends of equal bits.

numpy   the executable specification, for reading and testing
numba   decode, update and state sum fused in one pass over memory, for CPUs
torch   torch operations, for any device
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from hilosync.arithmetic import specification
from hilosync.arithmetic.decode import materialize
from hilosync.arithmetic.digest import state_sums
from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock
from hilosync.arithmetic.kernels import gradient_arguments
from hilosync.arithmetic.state import PolicyState
from hilosync.errors import ConfigurationError, MalformedPayload
from hilosync.optim.threads import Share, row_shares, totals
from hilosync.plan import AdapterPlan

__all__ = ["Backend", "Rule", "block_scalars", "check_gradient", "choose_backend", "replay"]

Backend = Literal["auto", "numpy", "numba", "torch"]


@dataclass(frozen=True)
class Rule:
    """One optimizer's update, three times; every form takes p, the slots in name order, Ĝ and the scalars."""

    specification: Callable[..., tuple[np.ndarray, ...]]
    portable: Callable[..., tuple[torch.Tensor, ...]]
    kernel: Callable[..., Any]


def replay(
    rule: Rule,
    plan: AdapterPlan,
    state: PolicyState,
    gradient: DecodedGradient,
    scalars: np.ndarray,
    backend: Backend = "auto",
) -> np.ndarray:
    """Applies one step to `state` in place and returns its state sums, uint64, shape (blocks,).

    Args:
        rule: the update.
        plan: the tensors.
        state: parameters and slots, all on one device.
        gradient: Ĝ, on the same device.
        scalars: fp32, shape (groups, columns), or (1, columns) for the same scalars in every group.
        backend: "auto" takes Numba on the CPU and torch elsewhere.

    Raises:
        MalformedPayload: a block of `gradient` does not have the plan's shape.
        ConfigurationError: `scalars` has not one row per group, or the backend cannot serve the device.
    """
    check_gradient(plan, gradient)
    rows = block_scalars(plan, scalars)
    backend = choose_backend(backend, state)
    if backend == "torch":
        _replay_torch(rule, plan, state, gradient, rows)
        return state_sums(plan, state)
    if backend == "numpy":
        return _replay_numpy(rule, plan, state, gradient, rows)
    return _replay_numba(rule, plan, state, gradient, rows)


def choose_backend(backend: Backend, state: PolicyState) -> Backend:
    """The backend that "auto" stands for: Numba on the CPU, torch elsewhere.

    Raises:
        ConfigurationError: the backend cannot serve the state's device.
    """
    on_cpu = state.params.device.type == "cpu"
    if backend == "auto":
        return "numba" if on_cpu else "torch"
    if backend != "torch" and not on_cpu:
        raise ConfigurationError(
            f"backend {backend!r} needs the state on the CPU, it is on {state.params.device}: "
            "use backend 'auto' or 'torch'"
        )
    return backend


def check_gradient(plan: AdapterPlan, gradient: DecodedGradient) -> None:
    """Refuses a Ĝ that does not fit the plan: the kernels trust their shapes.

    Raises:
        MalformedPayload: with the block's name, the expected and the found shape.
    """
    if len(gradient) != len(plan.blocks):
        raise MalformedPayload(f"expected a gradient of {len(plan.blocks)} blocks, got {len(gradient)}")
    for block, part in zip(plan.blocks, gradient, strict=True):
        if isinstance(part, DenseBlock):
            tensors, rank = (part.values,), 0
            fits = part.values.shape == (block.rows, block.columns)
        else:
            tensors, rank = (part.left, part.right), part.left.shape[-1]
            fits = part.left.shape == (block.rows, rank) and part.right.shape == (rank, block.columns)
        if not fits or any(tensor.dtype != torch.float32 for tensor in tensors):
            found = " and ".join(f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in tensors)
            raise MalformedPayload(
                f"{block.name}: expected an fp32 gradient of {block.rows} × {block.columns}, "
                f"as one matrix or as two factors of it, got {found}"
            )


def block_scalars(plan: AdapterPlan, scalars: np.ndarray) -> list[np.ndarray]:
    """The row of scalars of every block's param group.

    Raises:
        ConfigurationError: the number of rows is neither 1 nor the plan's number of groups.
    """
    if len(scalars) not in (1, plan.groups):
        raise ConfigurationError(
            f"expected scalars for 1 or {plan.groups} param groups, got {len(scalars)}: "
            "give the optimizer one learning rate, or one per group of the plan"
        )
    words = np.ascontiguousarray(scalars, np.float32)
    return [words[block.group if len(words) > 1 else 0] for block in plan.blocks]


def _replay_numpy(
    rule: Rule, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, rows: list[np.ndarray]
) -> np.ndarray:
    sums = np.zeros(len(plan.blocks), np.uint64)
    for index, (start, block) in enumerate(zip(plan.offsets, plan.blocks, strict=False)):
        buffers = [buffer.numpy()[start : start + block.size] for buffer in state.buffers()]
        part = gradient[index]
        if isinstance(part, DenseBlock):
            g = part.values.numpy()
        else:
            g = specification.low_rank(part.left.numpy(), part.right.numpy(), np.float32(part.scale))
        for buffer, updated in zip(buffers, rule.specification(*buffers, g.reshape(-1), rows[index]), strict=True):
            buffer[:] = updated
        sums[index] = specification.state_sum([buffer.reshape(block.rows, -1) for buffer in buffers])
    return sums


def _replay_torch(
    rule: Rule, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, rows: list[np.ndarray]
) -> None:
    for start, block, part, row in zip(plan.offsets, plan.blocks, gradient, rows, strict=False):
        buffers = [buffer[start : start + block.size] for buffer in state.buffers()]
        g = materialize(part).reshape(-1)
        for buffer, updated in zip(buffers, rule.portable(*buffers, g, row.tolist()), strict=True):
            buffer.copy_(updated)


def _replay_numba(
    rule: Rule, plan: AdapterPlan, state: PolicyState, gradient: DecodedGradient, rows: list[np.ndarray]
) -> np.ndarray:
    buffers = [buffer.numpy() for buffer in state.buffers()]

    def run(share: Share) -> list[tuple[int, int]]:
        sums = []
        for index, first, last in share:
            start, columns = plan.offsets[index], plan.blocks[index].columns
            ghat = gradient_arguments(gradient[index])
            sums.append((index, rule.kernel(*buffers, start, columns, first, last, ghat, rows[index])))
        return sums

    return totals(len(plan.blocks), run, row_shares(plan))
