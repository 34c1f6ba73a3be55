"""Times one optimizer step of a replica at full size against what memory and torch allow.

Everything is measured in one run: each round times every contender once, in turn, so that a busy
machine slows all of them alike, and ratios are medians over rounds of ratios within a round.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numba
import numpy as np
import torch
from torch.optim.adamw import adamw as adamw_step
from torch.optim.sgd import sgd as sgd_step

from hilosync.arithmetic import kernels
from hilosync.arithmetic.digest import next_digest
from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.bench.shapes import adapter_plan
from hilosync.errors import ConfigurationError, UnknownName
from hilosync.optim import PolicyState, adamw, get_optimizer, init_state, lion, sgdm
from hilosync.optim.elementwise import replay
from hilosync.plan import AdapterPlan

__all__ = ["OPTIMIZERS", "run_replay"]

OPTIMIZERS = ("adamw", "lion", "muon", "sgdm")
"""Names that `run_replay` knows."""

_RULES = {"adamw": adamw.RULE, "lion": lion.RULE, "sgdm": sgdm.RULE}
_LEARNING_RATE = 1e-5
_PAIRS = 4
"""Replays with and without the sums per round: what they differ by is far below the noise of one pair."""

_torch_adamw: Any = adamw_step
_torch_sgd: Any = sgd_step


def run_replay(
    model: str = "qwen3-1.7b",
    rank: int = 64,
    optimizer: str = "adamw",
    threads: int = 1,
    ranks_per_block: int = 1,
    repeats: int = 9,
    progress: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Builds full-size random state and times its replay.

    Args:
        model: a name of `bench.shapes.MODELS`.
        rank: LoRA rank.
        optimizer: a name of `OPTIMIZERS`.
        threads: CPU threads for every contender.
        ranks_per_block: k of every block's low-rank gradient.
        repeats: timed rounds, after one untimed.
        progress: called with a line of text before each round.

    Returns:
        `params`; `floor_ms` (reading and writing exactly the state that the optimizer must touch, in one
        pass); `replay_ms`; `ratio_to_floor`; `torch_fused_ms` (null where torch has none on the CPU);
        `torch_foreach_ms`; `torch_muon_ms` for Muon, scaled up from the first `torch_muon_blocks` blocks,
        of which the others are a repetition; `ratio_to_torch` (to the fused one, to `torch.optim.Muon` for
        Muon); `digest_ms` and `digest_overhead` (state sums in the loop and the chained digest after it,
        as a fraction of the replay); with more than one thread `speedup` and `floor_speedup` (of replay
        and floor over one thread, in the same rounds); `peak_extra_mb` and `peak_extra` (as a fraction of
        the state); and the arguments. Times are medians in milliseconds.

    Raises:
        UnknownName: there is no such model or optimizer.
        ConfigurationError: a block has no so many ranks.
    """
    if optimizer not in OPTIMIZERS:
        raise UnknownName("optimizer", optimizer, OPTIMIZERS)
    if ranks_per_block > rank:
        raise ConfigurationError(
            f"expected at most {rank} ranks per block, those of LoRA rank {rank}, got {ranks_per_block}"
        )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(model, rank, optimizer, threads, ranks_per_block, repeats, progress)
    finally:
        torch.set_num_threads(before)


def _measure(
    model: str,
    rank: int,
    name: str,
    threads: int,
    ranks_per_block: int,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    plan = adapter_plan(model, rank)
    optimizer = get_optimizer(name, {"lr": _LEARNING_RATE})
    progress(f"building random state of {plan.size:,} parameters in {len(plan.blocks)} blocks")
    state = init_state(plan, optimizer, _noise(plan.size, 0.02))
    for slot in state.slots.values():
        slot.copy_(_noise(plan.size, 1e-3).abs_())
    gradient = _gradient(plan, ranks_per_block)
    scalars = optimizer.scalars(100)

    last_sums = [np.zeros(len(plan.blocks), np.uint64)]

    def step() -> None:
        last_sums[0] = optimizer.step(plan, state, gradient, scalars)

    def floor() -> None:
        for buffer in state.buffers():
            buffer.mul_(1.0)

    contenders: dict[str, Callable[[], object]] = {
        "floor": floor,
        "chain": lambda: next_digest(bytes(32), bytes(32), last_sums[0], plan, state, 100),
        "replay": step,
    }
    bare: Callable[[], object] | None = None
    if name in _RULES:
        rule = dataclasses.replace(_RULES[name], kernel=_without_sums(_RULES[name].kernel))
        bare = partial(replay, rule, plan, state, gradient, scalars)
        bare()
    else:
        contenders["sums"] = lambda: _sum_all(plan, state)
    layer = _repeated(plan)
    contenders |= _torch_contenders(name, plan, state, layer)
    if threads > 1:
        contenders |= {"floor_single": _on_one_thread(floor), "replay_single": _on_one_thread(step)}

    for contender in contenders.values():
        contender()
    extra = _peak_extra_bytes(step)
    rounds: dict[str, list[float]] = {key: [] for key in contenders}
    for turn in range(repeats):
        progress(f"round {turn + 1} of {repeats}")
        for key, contender in contenders.items():
            times = len(plan.blocks) / layer if key == "torch_muon" else 1
            rounds[key].append(times * _milliseconds(contender))
        if bare is not None:
            rounds.setdefault("sums", []).append(_difference(step, bare))
    return {
        "params": plan.size,
        **_figures(rounds),
        "torch_muon_blocks": layer if name == "muon" else None,
        "peak_extra_mb": None if extra is None else extra / 1e6,
        "peak_extra": None if extra is None else extra / (4 * plan.size * len(state.buffers())),
        "model": model,
        "rank": rank,
        "optimizer": name,
        "threads": threads,
        "ranks_per_block": ranks_per_block,
        "repeats": repeats,
    }


def _figures(rounds: dict[str, list[float]]) -> dict[str, float | None]:
    """Medians over rounds, of times and of ratios within a round."""

    def middle(key: str) -> float | None:
        return median(rounds[key]) if key in rounds else None

    def ratio(key: str, to: str) -> float | None:
        return median(a / b for a, b in zip(rounds[key], rounds[to], strict=True)) if to in rounds else None

    digest = [sums + chain for sums, chain in zip(rounds["sums"], rounds["chain"], strict=True)]
    overheads = [part / whole for part, whole in zip(digest, rounds["replay"], strict=True)]
    return {
        "floor_ms": middle("floor"),
        "replay_ms": middle("replay"),
        "ratio_to_floor": ratio("replay", "floor"),
        "torch_fused_ms": middle("torch_fused"),
        "torch_foreach_ms": middle("torch_foreach"),
        "torch_muon_ms": middle("torch_muon"),
        "ratio_to_torch": ratio("replay", "torch_muon" if "torch_muon" in rounds else "torch_fused"),
        "digest_ms": median(digest),
        "digest_overhead": median(overheads),
        "speedup": ratio("replay_single", "replay") if "replay_single" in rounds else None,
        "floor_speedup": ratio("floor_single", "floor") if "floor_single" in rounds else None,
    }


def _milliseconds(contender: Callable[[], object]) -> float:
    begin = time.perf_counter()
    contender()
    return 1e3 * (time.perf_counter() - begin)


def _difference(step: Callable[[], object], bare: Callable[[], object]) -> float:
    """Milliseconds that `step` takes longer than `bare`: the median over pairs, each way round by turns."""
    differences = []
    for turn in range(_PAIRS):
        first, second = (step, bare) if turn % 2 == 0 else (bare, step)
        times = {first: _milliseconds(first), second: _milliseconds(second)}
        differences.append(times[step] - times[bare])
    return median(differences)


def _noise(size: int, width: float) -> torch.Tensor:
    generator = np.random.default_rng(0)
    return torch.from_numpy(generator.standard_normal(size, np.float32)).mul_(width)


def _gradient(plan: AdapterPlan, ranks: int) -> DecodedGradient:
    generator = np.random.default_rng(1)

    def factor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(shape, np.float32))

    return tuple(LowRankBlock(factor(block.rows, ranks), factor(ranks, block.columns), 1e-3) for block in plan.blocks)


def _without_sums(kernel: Any) -> Any:
    """The same kernel whose state sum nobody wants, so that the compiler leaves it out."""
    update = numba.njit(error_model="numpy", nogil=True, forceinline=True)(kernel.py_func)

    @numba.njit(error_model="numpy", nogil=True)
    def bare(*arguments):
        update(*arguments)
        return np.uint64(0)

    return bare


def _sum_all(plan: AdapterPlan, state: PolicyState) -> None:
    p, m = (buffer.numpy() for buffer in state.buffers())
    for start, block in zip(plan.offsets, plan.blocks, strict=False):
        kernels.sum_rows(p, m, start, block.columns, 0, block.rows)


def _on_one_thread(contender: Callable[[], None]) -> Callable[[], None]:
    def alone() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        contender()
        torch.set_num_threads(threads)

    return alone


def _repeated(plan: AdapterPlan) -> int:
    """The number of blocks whose shapes, repeated, are those of the whole plan: the blocks of one layer."""
    shapes = [(block.rows, block.columns) for block in plan.blocks]
    periods = (count for count in range(1, len(shapes) + 1) if len(shapes) % count == 0)
    return next(count for count in periods if shapes == shapes[:count] * (len(shapes) // count))


def _torch_contenders(name: str, plan: AdapterPlan, state: PolicyState, layer: int) -> dict[str, Callable[[], object]]:
    """torch's own steps over the same memory, given the dense gradient that replay never builds.

    `torch.optim.Muon` takes the first `layer` blocks alone: on a CPU without bf16 all would take minutes.
    """
    if name == "lion":
        return {}
    params, gradients = plan.views(state.params), plan.views(_noise(plan.size, 1e-3))
    slots = [plan.views(state.slots[slot]) for slot in sorted(state.slots)]
    if name == "muon":
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        muon = torch.optim.Muon(params[:layer], lr=_LEARNING_RATE, weight_decay=0.0)
        return {"torch_muon": muon.step}
    common: dict[str, Any] = {"lr": _LEARNING_RATE, "weight_decay": 0.0, "maximize": False}
    if name == "sgdm":
        common |= {"momentum": 0.9, "dampening": 0.0, "nesterov": False}
        arguments = (params, gradients, *slots)
        return {
            "torch_fused": lambda: _torch_sgd(*arguments, fused=True, **common),
            "torch_foreach": lambda: _torch_sgd(*arguments, foreach=True, **common),
        }
    common |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
    arguments = (params, gradients, *slots, [], [torch.tensor(100.0) for _ in params])
    return {
        "torch_fused": lambda: _torch_adamw(*arguments, fused=True, **common),
        "torch_foreach": lambda: _torch_adamw(*arguments, foreach=True, **common),
    }


def _peak_extra_bytes(step: Callable[[], None]) -> int | None:
    """How far the process's resident memory rises above its level while `step` runs; None without /proc."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None

    def kilobytes(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    reset.write_text("5")
    before = kilobytes("VmRSS:")
    step()
    return 1024 * max(0, kilobytes("VmHWM:") - before)
