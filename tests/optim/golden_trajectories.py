"""Golden digests: 20 steps of every optimizer on odd sizes, as a script that needs a backend's name.

    python golden_trajectories.py numpy|numba|torch [THREADS]   prints one JSON object of digests
    python golden_trajectories.py --specification PATH          NumPy alone: loads specification.py by its path

All inputs are drawn from integers, so they are the same words on every machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable

import numpy as np

SHAPES = ((1, 1), (3, 67), (129, 5), (17, 17), (8, 33), (64, 9))
RANKS = (1, 2, 5, 0, 3, 8)
STEPS = 20

RATE = {"adamw": 1e-2, "lion": 1e-3, "sgdm": 1e-2, "sgdm-nesterov": 1e-2, "muon": 1e-2}


def words(seed: int, count: int) -> np.ndarray:
    """fp32 numbers in ±1 with exponents down to 2⁻²⁰, from Philox."""
    raw = np.random.Philox(key=np.array([seed, 20], np.uint64)).random_raw(count)
    mantissa = (raw & np.uint64(0xFFFFFF)).astype(np.int64) - (1 << 23)
    shift = (raw >> np.uint64(32)).astype(np.int64) % 20
    return np.ldexp(mantissa.astype(np.float64), -23 - shift).astype(np.float32)


def scalars(name: str, version: int) -> np.ndarray:
    """The step's scalars as exact words: powers by repeated fp64 products, not by `pow`."""
    power = 1.0
    for _ in range(version):
        power *= 0.999
    first = 1.0
    for _ in range(version):
        first *= 0.9
    rate = RATE[name]
    root = float(np.sqrt(1 - power))
    decay = 1 - rate * 0.1
    return np.array(
        {
            "adamw": (decay, rate * root / (1 - first), 0.9, 1 - 0.9, 0.999, 1 - 0.999, 1e-8 * root),
            "lion": (decay, rate, 0.9, 1 - 0.9, 0.99, 1 - 0.99),
            "sgdm": (decay, rate, 0.9, 0.0, 1.0),
            "sgdm-nesterov": (decay, rate, 0.9, 1.0, 0.9),
            "muon": (decay, rate, 0.95, 1 - 0.95, 1 - 0.95, 0.95),
        }[name],
        np.float32,
    )


def factors(step: int, block: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    (rows, columns), rank = SHAPES[block], RANKS[block]
    drawn = words(1000 * step + block, (rows + columns) * rank)
    return drawn[: rows * rank].reshape(rows, rank), drawn[rows * rank :].reshape(rank, columns), np.float32(0.7)


def digest(blocks: list[list[np.ndarray]], sums: list[int]) -> str:
    content = hashlib.sha256()
    for buffers, total in zip(blocks, sums, strict=True):
        content.update(int(total).to_bytes(8, "little"))
        for buffer in buffers:
            content.update(np.ascontiguousarray(buffer).tobytes())
    return content.hexdigest()[:32]


def start(name: str) -> list[list[np.ndarray]]:
    """Per block: parameters, then the slots in the order of their names."""
    slots = 2 if name == "adamw" else 1
    return [
        [words(block, rows * columns), *(np.zeros(rows * columns, np.float32) for _ in range(slots))]
        for block, (rows, columns) in enumerate(SHAPES)
    ]


def by_specification(name: str, spec) -> str:
    blocks = start(name)
    for step in range(1, STEPS + 1):
        s = scalars(name, step)
        for block, buffers in enumerate(blocks):
            g = spec.low_rank(*factors(step, block)).reshape(-1)
            if name == "muon":
                rows, columns = SHAPES[block]
                m, u = spec.muon_momentum(buffers[1], g, s)
                o = spec.orthogonalize(u.reshape(rows, columns)).reshape(-1)
                ratio = np.float32(np.sqrt(max(1.0, rows / columns)))
                blocks[block] = [spec.muon_apply(buffers[0], o, s, ratio), m]
            else:
                update: Callable = getattr(spec, name.split("-")[0])
                blocks[block] = list(update(*buffers, g, s))
    matrices = [[buffer.reshape(shape) for buffer in buffers] for buffers, shape in zip(blocks, SHAPES, strict=True)]
    return digest(blocks, [int(spec.state_sum(buffers)) for buffers in matrices])


def by_backend(name: str, backend: str) -> str:
    import torch

    from hilosync.arithmetic import LowRankBlock, PolicyState
    from hilosync.optim import get_optimizer
    from hilosync.plan import AdapterPlan, Block

    plan = AdapterPlan(tuple(Block(f"block {i}", *shape) for i, shape in enumerate(SHAPES)))
    optimizer = get_optimizer(name.split("-")[0], {"backend": backend})
    flat = [torch.from_numpy(np.concatenate(parts)) for parts in zip(*start(name), strict=True)]
    state = PolicyState(flat[0], dict(zip(sorted(optimizer.slots), flat[1:], strict=True)))
    sums = np.zeros(0)
    for step in range(1, STEPS + 1):
        gradient = []
        for block in range(len(SHAPES)):
            left, right, scale = factors(step, block)
            gradient.append(LowRankBlock(torch.from_numpy(left), torch.from_numpy(right), float(scale)))
        sums = optimizer.step(plan, state, tuple(gradient), scalars(name, step)[None])
    blocks = [
        [buffer[first : first + block.size].numpy() for buffer in state.buffers()]
        for first, block in zip(plan.offsets, plan.blocks, strict=False)
    ]
    return digest(blocks, [int(total) for total in sums])


def use_threads(count: int) -> None:
    """Takes this many threads however small the work."""
    import torch

    from hilosync.optim import threads

    torch.set_num_threads(count)
    threads._SMALLEST = 1


def main(arguments: list[str]) -> None:
    if arguments[0] == "--specification":
        module = importlib.util.spec_from_file_location("specification", arguments[1])
        spec = importlib.util.module_from_spec(module)
        module.loader.exec_module(spec)
        found = {name: by_specification(name, spec) for name in RATE}
    else:
        if len(arguments) > 1:
            use_threads(int(arguments[1]))
        found = {name: by_backend(name, arguments[0]) for name in RATE}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
