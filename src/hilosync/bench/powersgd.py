"""The arithmetic of PyTorch's PowerSGD communication hook in one process: what a codec's time is compared with."""

from __future__ import annotations

import time
from statistics import median

import torch

from hilosync.plan import AdapterPlan

__all__ = ["PowerSGDHook", "hook_milliseconds"]


class PowerSGDHook:
    """Rank-1 PowerSGD with error feedback and a warm start, as `powerSGD_hook` computes it, without all-reduce.

        M = G + error      p = M·q/‖M·q‖      q = Mᵀ·p      Ĝ = p·qᵀ      error = M − Ĝ

    Tensors go one by one through batched products of one, and the sum before compression is cloned, as there.

    Args:
        plan: the adapter's tensors.
    """

    def __init__(self, plan: AdapterPlan):
        self._plan = plan
        self._error = torch.zeros(plan.size)
        generator = torch.Generator().manual_seed(0)
        self._q = [torch.randn(1, block.columns, 1, generator=generator) for block in plan.blocks]
        self._p = [torch.empty(1, block.rows, 1) for block in plan.blocks]

    def step(self, bucket: torch.Tensor) -> None:
        """Replaces a flat fp32 gradient by Ĝ, in place, and keeps the error."""
        bucket.add_(self._error)
        before = bucket.clone()
        tensors = [view[None] for view in self._plan.views(bucket)]
        for tensor, p, q in zip(tensors, self._p, self._q, strict=True):
            torch.bmm(tensor, q, out=p)
            p /= torch.linalg.vector_norm(p, dim=1, keepdim=True)
        for tensor, p, q in zip(tensors, self._p, self._q, strict=True):
            torch.bmm(tensor.transpose(1, 2), p, out=q)
        for tensor, p, q in zip(tensors, self._p, self._q, strict=True):
            torch.bmm(p, q.transpose(1, 2), out=tensor)
        torch.sub(before, bucket, out=self._error)


def hook_milliseconds(plan: AdapterPlan, gradient: torch.Tensor, repeats: int = 5) -> float:
    """Median wall time of a step with this gradient, which is copied and not changed."""
    hook, times = PowerSGDHook(plan), []
    for _ in range(repeats):
        bucket = gradient.clone()
        started = time.perf_counter()
        hook.step(bucket)
        times.append(1e3 * (time.perf_counter() - started))
    return median(times)
