"""Which components of which blocks to ship under a byte budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["allocate_ranks", "reference_ranks"]


def allocate_ranks(energies: Sequence[np.ndarray], costs: Sequence[int], budget: int) -> list[int]:
    """Ranks by value per byte, over all blocks at once.

    A component of block b costs costs[b] bytes and is worth its energy. Energies do not increase
    within a block, so sorting all components by energy per byte visits each block's in order, and
    the greedy choice is optimal up to the last component that does not fit. Past that one, smaller
    components that still fit are taken in the same order.

    Args:
        energies: σ² of each block, descending.
        costs: bytes of one component of each block.
        budget: bytes that all components together may take.

    Returns:
        The rank of each block. Components without energy are never taken.
    """
    block_of = np.repeat(np.arange(len(energies)), [len(spectrum) for spectrum in energies])
    energy = np.concatenate(energies)
    cost = np.asarray(costs, dtype=np.int64)[block_of]
    order = np.argsort(-energy / cost, kind="stable")
    order = order[energy[order] > 0]
    spent = np.cumsum(cost[order])
    fitting = int(np.searchsorted(spent, budget, side="right"))
    ranks = np.bincount(block_of[order[:fitting]], minlength=len(energies))
    left = budget - (int(spent[fitting - 1]) if fitting else 0)
    closed = np.zeros(len(energies), dtype=bool)
    cheapest = int(min(costs))
    for component in order[fitting:]:
        if left < cheapest:
            break
        block = block_of[component]
        if closed[block] or cost[component] > left:
            closed[block] = True
            continue
        ranks[block] += 1
        left -= int(cost[component])
    return ranks.tolist()


def reference_ranks(energies: Sequence[np.ndarray], costs: Sequence[int], budget: int) -> list[int]:
    """The same, one component at a time: the best next component that fits, until none does."""
    ranks = [0] * len(energies)
    while True:
        candidates = [
            (-energies[b][k] / costs[b], b)
            for b, k in enumerate(ranks)
            if k < len(energies[b]) and energies[b][k] > 0 and costs[b] <= budget
        ]
        if not candidates:
            return ranks
        _, block = min(candidates)
        ranks[block] += 1
        budget -= costs[block]
