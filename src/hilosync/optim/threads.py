"""Shares of a step's work for threads: which thread does what changes no bit.

The number of threads is torch's (`torch.set_num_threads`, OMP_NUM_THREADS).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from hilosync.plan import AdapterPlan

__all__ = ["Share", "block_shares", "row_shares", "totals"]

Share = list[tuple[int, int, int]]
"""What one thread does at a time: (block, first row, one past the last row)."""

_SMALLEST = 1 << 18
"""Elements per thread below which starting the thread costs more than it saves."""


_SHARES = 8
"""Shares of rows per thread."""


def totals(blocks: int, run: Callable[[Share], list[tuple[int, int]]], shares: Sequence[Share]) -> np.ndarray:
    """Runs the shares, each on the next thread that is free, and adds up the sums, uint64, shape (blocks,)."""
    if len(shares) == 1:
        results = [run(shares[0])]
    else:
        # Threads of this call only: a kept pool would not survive a fork.
        with ThreadPoolExecutor(min(len(shares), torch.get_num_threads())) as pool:
            results = list(pool.map(run, shares))
    sums = [0] * blocks
    for index, part in (pair for result in results for pair in result):
        sums[index] += part
    return np.array([part % 2**64 for part in sums], np.uint64)


def row_shares(plan: AdapterPlan) -> list[Share]:
    """Runs of consecutive rows, all of about the same number of elements; several per thread.

    A thread whose core is slow or busy then does fewer of them.
    """
    threads = _threads(plan)
    number = 1 if threads == 1 else _SHARES * threads
    shares: list[Share] = [[] for _ in range(number)]
    taken, share = 0, 0
    for index, block in enumerate(plan.blocks):
        first = 0
        while first < block.rows:
            end = plan.size * (share + 1) // number
            count = min(block.rows - first, max(1, -(-(end - taken) // block.columns)))
            shares[share].append((index, first, first + count))
            taken += count * block.columns
            first += count
            if taken >= end and share < number - 1:
                share += 1
    return shares


def block_shares(plan: AdapterPlan) -> list[Share]:
    """Whole blocks, the largest first to the thread that has least."""
    threads = min(_threads(plan), len(plan.blocks))
    shares: list[Share] = [[] for _ in range(threads)]
    loads = [0] * threads
    for index in sorted(range(len(plan.blocks)), key=lambda index: -plan.blocks[index].size):
        thread = loads.index(min(loads))
        shares[thread].append((index, 0, plan.blocks[index].rows))
        loads[thread] += plan.blocks[index].size
    return shares


def _threads(plan: AdapterPlan) -> int:
    return max(1, min(torch.get_num_threads(), plan.size // _SMALLEST))
