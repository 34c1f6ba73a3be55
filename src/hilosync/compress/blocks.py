"""Work on one block after another, on as many threads as torch has been given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from hilosync.plan import AdapterPlan

__all__ = ["each_block", "each_part"]

_Result = TypeVar("_Result")


def each_block(work: Callable[..., _Result], *arguments: Sequence[Any]) -> list[_Result]:
    """What `work` returns for each block, in plan order; an error is that of the first block that has one.

    Args:
        work: called with one item of every sequence; kernels that it calls release the interpreter.
        arguments: sequences of one item per block.
    """
    threads = min(torch.get_num_threads(), len(arguments[0]))
    calls = zip(*arguments, strict=True)
    if threads == 1:
        return [work(*call) for call in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda call: work(*call), calls))


def each_part(work: Callable[[slice, np.ndarray, np.ndarray], Any], plan: AdapterPlan) -> None:
    """Calls `work` once per thread, with a part of the blocks: hundreds of calls would take longer than some kernels.

    Args:
        work: called with the positions of some blocks that follow each other, where they begin and end
            in a flat buffer, and the columns of each, int64.
        plan: the adapter's tensors.
    """
    offsets = np.array(plan.offsets, dtype=np.int64)
    columns = np.array([block.columns for block in plan.blocks], dtype=np.int64)
    # Parts of about one size.
    threads = min(torch.get_num_threads(), len(columns))
    ends = np.searchsorted(offsets, plan.size * np.arange(1, threads + 1) / threads)
    bounds = [0, *ends.tolist()]
    parts = [slice(first, last) for first, last in pairwise(bounds) if first < last]
    each_block(lambda part: work(part, offsets[part.start : part.stop + 1], columns[part]), parts)
