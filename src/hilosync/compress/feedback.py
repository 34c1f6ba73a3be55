"""Error feedback: what a payload left out is added to the next gradient.

    G' = c·G + E           c = min(1, clip/‖G‖)
    E  ← decay·(G' − Ĝ)

E is the learner's alone, fp32, one flat buffer, part of its checkpoint. It changes in the last of these
steps only, so a step that fails before leaves it as it was:

    corrected = correct(plan, gradient, residual)                       # G' as G and E, stored nowhere
    payload, state = encode_corrected(compressor, plan, state, corrected, budget)
    decoded = compressor.decode(plan, payload)
    sent, left = retain(plan, corrected, decoded, decay)                # residual holds the new E

Replicas never see E, so its rounding is free to differ between learners.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.blocks import each_block, each_part
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.finite import largest_magnitude, require_flat
from hilosync.compress.products import energy
from hilosync.compress.residual import replace_residual
from hilosync.errors import PlanError
from hilosync.plan import AdapterPlan

__all__ = ["correct", "default_decay", "project_out", "reference_residual", "retain"]

_DEFAULT_DECAY = {"adamw": 1.0}
"""AdamW divides by its own second moment, which absorbs what E returns in a burst."""

_CAUTIOUS_DECAY = 0.95
"""Lion, Muon and SGD with momentum diverge or stall when E never fades."""

_SPANNED = 1e-6
"""Singular values of a left factor, relative to the largest, below which a direction was not shipped."""


def default_decay(optimizer: str) -> float:
    """The decay of E that suits the optimizer of this name."""
    return _DEFAULT_DECAY.get(optimizer, _CAUTIOUS_DECAY)


def correct(
    plan: AdapterPlan, gradient: torch.Tensor, residual: torch.Tensor, clip: float | None = None
) -> CorrectedGradient:
    """G' = c·G + E, not yet added up.

    Args:
        plan: the adapter's tensors.
        gradient: G, flat, fp32, shape (plan.size,); `retain` still needs it.
        residual: E, of the same shape; `retain` changes it.
        clip: largest norm of G that enters; None for no limit. Clipping comes before E is added,
            so a step's gradient is bounded and what was left out earlier is not.

    Raises:
        PlanError: G or E is not a flat fp32 buffer of the plan's size, or E is not contiguous.
        NonFinite: G is to be clipped and holds NaN, Inf or a value beyond 2^120; names the tensor.
    """
    require_flat(plan, gradient)
    require_flat(plan, residual, "residual")
    if not residual.is_contiguous():
        raise PlanError("expected a contiguous residual, since it is changed in place; give residual.contiguous()")
    gradient = gradient.contiguous()
    if clip is None:
        return CorrectedGradient(gradient, residual)

    def checked(index: int, view: torch.Tensor) -> float:
        squares = _squares(view)
        if not _plausible(squares):
            largest_magnitude(plan.blocks[index], view)
        return squares

    energies = each_block(checked, range(len(plan.blocks)), plan.views(gradient))
    factor = min(1.0, clip / math.sqrt(sum(energies)) if any(energies) else 1.0)
    # A factor of 0 would say that there is no gradient.
    return CorrectedGradient(gradient, residual, float(max(np.float32(factor), np.finfo(np.float32).tiny)))


def retain(
    plan: AdapterPlan,
    corrected: CorrectedGradient,
    decoded: DecodedGradient,
    decay: float = 1.0,
    cap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces E by decay·(G' − Ĝ), in place, without materializing G' or Ĝ.

    Args:
        plan: the adapter's tensors.
        corrected: G', whose residual is E, flat, fp32, shape (plan.size,).
        decoded: Ĝ, as every replica reads it from the published payload.
        decay: between 0 (no feedback) and 1.
        cap: largest ‖E‖/‖G‖; a larger E is scaled down to it. None for no limit.

    Returns:
        ‖G‖² of each block before clipping, and ‖E‖² after the step, fp64, shape (blocks,).
    """
    residual = corrected.residual
    sent, left = np.full(len(plan.blocks), math.nan), np.full(len(plan.blocks), math.nan)
    if residual.device.type == "cpu":
        _replace_by_low_rank(plan, corrected, decoded, decay, sent, left)
    # What has no factors, lies elsewhere, or has squares that leave fp32's range.
    for index in np.flatnonzero(~(_plausible(sent) & _plausible(left))).tolist():
        part, block = corrected.block(plan, index), decoded[index]
        G, E = part.gradient, part.residual
        if not isinstance(block, LowRankBlock):
            E.add_(G, alpha=part.factor).sub_(block.values.to(E.device)).mul_(decay)
        elif E.device.type != "cpu":
            left_factor, right_factor = block.left.to(E.device), block.right.to(E.device)
            E.add_(G, alpha=part.factor).addmm_(left_factor, right_factor, beta=decay, alpha=-decay * block.scale)
        sent[index], left[index] = _squares(G), _squares(E)
    allowed, norm = math.inf if cap is None else cap * math.sqrt(sent.sum()), math.sqrt(left.sum())
    if norm > allowed:
        residual.mul_(allowed / norm)
        left *= (allowed / norm) ** 2
    return sent, left


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


def _replace_by_low_rank(
    plan: AdapterPlan,
    corrected: CorrectedGradient,
    decoded: DecodedGradient,
    decay: float,
    sent: np.ndarray,
    left: np.ndarray,
) -> None:
    """E ← decay·(G' − Ĝ) of the blocks whose Ĝ has factors, on the CPU, and their energies."""
    known = [block if isinstance(block, LowRankBlock) else None for block in decoded]
    ranks = np.array([-1 if block is None else block.left.shape[1] for block in known])
    scales = np.array([0.0 if block is None else decay * block.scale for block in known], dtype=np.float32)
    pair = corrected.numpy()
    scalars = np.float32(decay * corrected.factor), np.float32(decay)

    def replace(part: slice, offsets: np.ndarray, columns: np.ndarray) -> None:
        nothing = torch.empty(0)
        lefts = _flat([nothing if block is None else block.left for block in known[part]])
        rights = _flat([nothing if block is None else block.right for block in known[part]])
        extent = offsets, columns, ranks[part], scales[part]
        replace_residual(*pair, *scalars, *extent, *lefts, *rights, sent[part], left[part])

    each_part(replace, plan)


def _flat(factors: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Factors as parts of one flat array, and where each begins; without a copy where a decoder left them in one."""
    lengths = [factor.numel() for factor in factors]
    present = [factor for factor, length in zip(factors, lengths, strict=True) if length]
    storages = {factor.untyped_storage().data_ptr() for factor in present}
    if len(storages) == 1 and all(factor.is_contiguous() for factor in present):
        whole = present[0].as_strided((present[0].untyped_storage().nbytes() // 4,), (1,), 0)
        return whole.numpy(), np.array([factor.storage_offset() if factor.numel() else 0 for factor in factors])
    flat = torch.cat([torch.empty(0), *(factor.reshape(-1) for factor in factors)])
    return flat.numpy(), np.cumsum([0, *lengths])[:-1]


def _squares(view: torch.Tensor) -> float:
    """‖view‖², in fp64 when fp32 squares would leave its range."""
    squares = (
        energy(view.flatten().numpy()) if view.device.type == "cpu" else torch.linalg.vector_norm(view).item() ** 2
    )
    if _plausible(squares):
        return squares
    return torch.linalg.vector_norm(view, dtype=torch.float64).item() ** 2
