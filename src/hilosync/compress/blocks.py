"""Work on one block after another, on as many threads as torch has been given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

__all__ = ["each_block"]

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
