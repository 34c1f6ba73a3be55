"""Error feedback: what a payload left out is added to the next gradient.

    G' = c·G + E           c = min(1, clip/‖G‖)
    E  ← decay·(G' − Ĝ)

E is the learner's alone, fp32, one flat buffer, part of its checkpoint. During a step another buffer
holds G', since E + G − G is not E in floating point and a step may fail:

    energies = accumulate(plan, gradient, residual, out=corrected)      # corrected holds G'
    payload, state = compressor.encode(plan, state, corrected, budget)
    decoded = compressor.decode(plan, payload)
    left = retain(plan, corrected, decoded, decay)                      # corrected holds the new E

Replicas never see E, so its rounding is free to differ between learners.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, DenseBlock, LowRankBlock
from hilosync.compress.blocks import each_block
from hilosync.compress.finite import largest_magnitude
from hilosync.compress.passes import add_scaled, energy
from hilosync.compress.products import subtract_product
from hilosync.plan import AdapterPlan, Block

__all__ = ["accumulate", "default_decay", "project_out", "reference_residual", "retain"]

_DEFAULT_DECAY = {"adamw": 1.0}
"""AdamW divides by its own second moment, which absorbs what E returns in a burst."""

_CAUTIOUS_DECAY = 0.95
"""Lion, Muon and SGD with momentum diverge or stall when E never fades."""

_SPANNED = 1e-6
"""Singular values of a left factor, relative to the largest, below which a direction was not shipped."""


def default_decay(optimizer: str) -> float:
    """The decay of E that suits the optimizer of this name."""
    return _DEFAULT_DECAY.get(optimizer, _CAUTIOUS_DECAY)


def accumulate(
    plan: AdapterPlan,
    gradient: torch.Tensor,
    residual: torch.Tensor,
    clip: float | None = None,
    *,
    out: torch.Tensor,
) -> np.ndarray:
    """Makes G' = c·G + E in a buffer of its own, so that E outlives a step that fails.

    Args:
        plan: the adapter's tensors.
        gradient: G, flat, fp32, shape (plan.size,); not changed.
        residual: E, of the same shape; not changed.
        clip: largest norm of G that enters; None for no limit. Clipping comes before E is added,
            so a step's gradient is bounded and what was left out earlier is not.
        out: of the same shape; G' afterwards.

    Returns:
        ‖G‖² of each block before clipping, fp64, shape (blocks,).

    Raises:
        NonFinite: G or G' holds NaN, Inf or a value beyond 2^120, which no compressor takes; names the
            tensor.
    """
    views = plan.views(gradient)
    factor = 1.0
    if clip is not None:
        energies = each_block(lambda block, view: _checked(block, view, _squares(view)), plan.blocks, views)
        factor = min(1.0, clip / math.sqrt(sum(energies)) if any(energies) else 1.0)

    sent, summed = _add(plan, residual, gradient, factor, out)
    totals = plan.views(out)
    for index in np.flatnonzero(~(_plausible(sent) & _plausible(summed))).tolist():
        block = plan.blocks[index]
        sent[index] = _checked(block, views[index], float(sent[index]))
        _checked(block, totals[index], float(summed[index]), "the sum of gradient and residual")
    return sent


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

    def subtract(view: torch.Tensor, block: LowRankBlock | DenseBlock) -> float:
        if not isinstance(block, LowRankBlock):
            return _squares(view.sub_(block.values.to(view.device)).mul_(decay))
        left, right = block.left.to(view.device) * (decay * block.scale), block.right.to(view.device)
        if view.device.type != "cpu":
            return _squares(view.addmm_(left, right, beta=decay, alpha=-1))
        factors = left.contiguous().numpy(), right.contiguous().numpy()
        squares = subtract_product(view.numpy(), *factors, np.float32(decay))
        return squares if _plausible(squares) else _squares(view)

    energies = np.array(each_block(subtract, plan.views(corrected), decoded))
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


def _plausible(energy: Any) -> Any:
    """Whether sums of squares have surely stayed within fp32's range, and every element within the limit."""
    return (energy >= 1e-30) & (energy <= 1e30)


def _add(
    plan: AdapterPlan, residual: torch.Tensor, gradient: torch.Tensor, factor: float, out: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """out ← E + factor·G, and ‖G‖² and ‖out‖² of each block, which may have left fp32's range."""
    if out.device.type != "cpu":
        torch.add(residual, gradient, alpha=factor, out=out)
        return _energies(plan, gradient), _energies(plan, out)
    sent, summed = np.empty(len(plan.blocks)), np.empty(len(plan.blocks))
    flat = residual.contiguous().numpy(), gradient.contiguous().numpy()
    offsets, parts = np.array(plan.offsets), np.array_split(np.arange(len(sent)), torch.get_num_threads())

    def add(part: np.ndarray) -> None:
        if len(part):
            of_part = slice(part[0], part[-1] + 1)
            bounds = offsets[part[0] : part[-1] + 2]
            add_scaled(*flat, np.float32(factor), out.numpy(), bounds, sent[of_part], summed[of_part])

    each_block(add, parts)
    return sent, summed


def _energies(plan: AdapterPlan, flat: torch.Tensor) -> np.ndarray:
    """‖·‖² of each block."""
    return np.array([_squares(view) for view in plan.views(flat)])


def _squares(view: torch.Tensor) -> float:
    """‖view‖², in fp64 when fp32 squares would leave its range."""
    squares = (
        energy(view.flatten().numpy()) if view.device.type == "cpu" else torch.linalg.vector_norm(view).item() ** 2
    )
    if _plausible(squares):
        return squares
    return torch.linalg.vector_norm(view, dtype=torch.float64).item() ** 2


def _checked(block: Block, view: torch.Tensor, squares: float, subject: str = "the gradient") -> float:
    """‖view‖² of a block whose elements are all within the limit; `squares` is what fp32 made of it.

    Raises:
        NonFinite: an element is not; names the tensor.
    """
    if _plausible(squares):
        return squares
    largest_magnitude(block, view, subject)
    return _squares(view)
