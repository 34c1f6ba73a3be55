"""Error feedback: what a payload left out is added to the next gradient.

    G' = c·G + E           c = min(1, clip/‖G‖)
    E  ← decay·(G' − Ĝ)

E is the learner's alone, fp32, one flat buffer, part of its checkpoint. During a step a buffer
holds G': the same one, or another where E must survive a step that fails:

    energies = accumulate(plan, gradient, residual)     # residual now holds G'
    payload, state = compressor.encode(plan, state, residual, budget)
    decoded = compressor.decode(plan, payload)
    left = retain(plan, residual, decoded, decay)       # residual holds E again

Replicas never see E, so its rounding is free to differ between learners.
"""

from __future__ import annotations

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.finite import LARGEST, largest_magnitude
from hilosync.plan import AdapterPlan

__all__ = ["accumulate", "default_decay", "project_out", "reference_residual", "retain"]

_DEFAULT_DECAY = {"adamw": 1.0}
"""AdamW divides by its own second moment, which absorbs what E returns in a burst."""

_CAUTIOUS_DECAY = 0.95
"""Lion, Muon and SGD with momentum diverge or stall when E never fades."""

_SPANNED = 1e-6
"""Singular values of a left factor, relative to the largest, below which a direction was not shipped."""

_UNSUSPECTED = LARGEST / 2
"""A norm below which every element is surely within the limit, whatever rounding the norm has suffered."""


def default_decay(optimizer: str) -> float:
    """The decay of E that suits the optimizer of this name."""
    return _DEFAULT_DECAY.get(optimizer, _CAUTIOUS_DECAY)


def accumulate(
    plan: AdapterPlan,
    gradient: torch.Tensor,
    residual: torch.Tensor,
    clip: float | None = None,
    out: torch.Tensor | None = None,
) -> np.ndarray:
    """Makes G' = c·G + E, in place of E unless another buffer is given.

    Args:
        plan: the adapter's tensors.
        gradient: G, flat, fp32, shape (plan.size,); not changed.
        residual: E, of the same shape; G' afterwards, unless `out` takes it.
        clip: largest norm of G that enters; None for no limit. Clipping comes before E is added,
            so a step's gradient is bounded and what was left out earlier is not.
        out: of the same shape, takes G'; None to overwrite E.

    Returns:
        ‖G‖² of each block before clipping, fp64, shape (blocks,).

    Raises:
        NonFinite: G or G' holds NaN, Inf or a value beyond 2^120, which no compressor takes; names the
            tensor; E is unchanged.
    """
    views = plan.views(gradient)
    energies = np.array([_energy(view) for view in views])
    for block, view, energy in zip(plan.blocks, views, energies, strict=True):
        # No element exceeds its block's norm, so that most blocks need no second look.
        if not energy <= _UNSUSPECTED**2:
            largest_magnitude(block, view)
    norm = float(np.sqrt(energies.sum()))
    factor = 1.0 if clip is None or norm <= clip else clip / norm
    if not factor * norm + torch.linalg.vector_norm(residual).item() <= _UNSUSPECTED:
        for block, view, left in zip(plan.blocks, views, plan.views(residual), strict=True):
            largest_magnitude(block, torch.add(left, view, alpha=factor), "the sum of gradient and residual")
    torch.add(residual, gradient, alpha=factor, out=residual if out is None else out)
    return energies


def retain(
    plan: AdapterPlan,
    corrected: torch.Tensor,
    decoded: DecodedGradient,
    decay: float = 1.0,
    cap: float | None = None,
) -> np.ndarray:
    """Turns G' into E ← decay·(G' − Ĝ), in place, without materializing Ĝ.

    Args:
        plan: the adapter's tensors.
        corrected: G', flat, fp32, shape (plan.size,); E afterwards.
        decoded: Ĝ, as every replica reads it from the published payload.
        decay: between 0 (no feedback) and 1.
        cap: largest ‖E‖; a larger E is scaled down to it. None for no limit.

    Returns:
        ‖E‖² of each block, fp64, shape (blocks,).
    """
    views = plan.views(corrected)
    energies = np.zeros(len(views))
    for index, (view, block) in enumerate(zip(views, decoded, strict=True)):
        if isinstance(block, LowRankBlock):
            left, right = block.left.to(view.device), block.right.to(view.device)
            view.addmm_(left, right, beta=decay, alpha=-decay * block.scale)
        else:
            view.sub_(block.values.to(view.device)).mul_(decay)
        energies[index] = _energy(view)
    norm = float(np.sqrt(energies.sum()))
    if cap is not None and norm > cap:
        corrected.mul_(cap / norm)
        energies *= (cap / norm) ** 2
    return energies


@torch.no_grad()
def project_out(plan: AdapterPlan, residual: torch.Tensor, decoded: DecodedGradient, decay: float = 1.0) -> None:
    """What can still be kept of an E that is one step older than Ĝ, in place, when that step's G is lost.

    What a step shipped along a direction included what E held along it, so that part of E has been
    delivered: E ← decay·(I − U·Uᵀ)·E, where the columns of U span those of Ĝ's left factor. Of a dense
    block the elements that are not zero were shipped. What G itself left out at that step is not known.

    Args:
        plan: the adapter's tensors.
        residual: E before the step, flat, fp32, shape (plan.size,); the estimate of E after it.
        decoded: Ĝ of the step.
        decay: the decay of E.
    """
    for view, block in zip(plan.views(residual), decoded, strict=True):
        if isinstance(block, LowRankBlock):
            basis, values, _ = torch.linalg.svd(block.left.to(view.device), full_matrices=False)
            if len(values):
                basis = basis[:, values > _SPANNED * values.max()]
            view.sub_(basis @ (basis.T @ view)).mul_(decay)
        else:
            view.masked_fill_(block.values.to(view.device) != 0, 0.0).mul_(decay)


def reference_residual(
    gradient: torch.Tensor, residual: torch.Tensor, decoded: torch.Tensor, decay: float
) -> torch.Tensor:
    """E after a step, as the equation reads, from three dense tensors of one shape."""
    return decay * ((gradient + residual) - decoded)


def _energy(view: torch.Tensor) -> float:
    """‖view‖², in fp64 when fp32 squares would leave its range."""
    norm = torch.linalg.vector_norm(view).item()
    if 1e-15 <= norm <= 1e15:
        return norm**2
    return torch.linalg.vector_norm(view, dtype=torch.float64).item() ** 2
