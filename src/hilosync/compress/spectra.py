"""Spectra of the gradient's blocks: orthonormal bases and the energy along each direction.

A block G is seen with its short side first, G (r×n), r ≤ n: a block with more rows than columns
(LoRA's B) is taken as its transpose. With K = G·Gᵀ = U·diag(σ²)·Uᵀ, component i of the block is
u_i·(u_iᵀG) and carries the energy σ_i². K is r×r, so this costs one pass over G.

A budget buys few components of a block, so `leading_spectra` finds those alone: a few rounds of
subspace iteration on K, then a Rayleigh–Ritz step. Its energies are exactly those of its basis
vectors, at most a few thousandths below σ²; whoever has chosen all that it was given asks `completed`
for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from hilosync.compress.blocks import each_part
from hilosync.compress.corrected import CorrectedGradient, require_finite_sum
from hilosync.compress.finite import require_flat
from hilosync.compress.gram import gram
from hilosync.compress.leading import leading_eigenvectors, reference_leading_eigenvectors
from hilosync.plan import AdapterPlan, Block

__all__ = [
    "Grams",
    "Spectrum",
    "completed",
    "gram_matrices",
    "leading_spectra",
    "reference_spectrum",
    "short_side_first",
    "spectra",
]

_SAFE_ENERGY = (1e-20, 1e30)
"""Block energies ‖G‖² within which neither K nor its eigenvalues under- or overflow in fp32."""


@dataclass(frozen=True, slots=True)
class Grams:
    """K of all blocks.

    Attributes:
        matrices: K = 2^−2e·G·Gᵀ of each block, fp32, shape (r, r).
        exponents: e of each block, 0 unless K would leave fp32's range.
    """

    matrices: list[torch.Tensor]
    exponents: np.ndarray


@dataclass(frozen=True, slots=True)
class Spectrum:
    """One block in its singular basis, or the leading part of it.

    Attributes:
        energies: σ², descending, fp64, shape (m,), m ≤ r.
        basis: U, shape (r, m), fp32; column i belongs to energies[i].
        rest: ‖G‖² beyond these, about.
    """

    energies: np.ndarray
    basis: torch.Tensor
    rest: float = 0.0


def short_side_first(matrix: torch.Tensor) -> torch.Tensor:
    """The block as an r×n view with r ≤ n."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def gram_matrices(plan: AdapterPlan, gradient: torch.Tensor | CorrectedGradient) -> Grams:
    """K of every block.

    Args:
        plan: the adapter's tensors.
        gradient: flat, fp32, shape (plan.size,), on any device.

    Raises:
        PlanError: the gradient is not a flat fp32 one of the plan's size.
        NonFinite: a block holds NaN, Inf or a value beyond 2^120; names the tensor.
    """
    corrected = CorrectedGradient.of(gradient)
    require_flat(plan, corrected.gradient)
    matrices, energies = _unscaled(plan, corrected)
    exponents = np.zeros(len(matrices), dtype=np.int64)
    for index in np.flatnonzero(~((energies >= _SAFE_ENERGY[0]) & (energies <= _SAFE_ENERGY[1]))).tolist():
        matrices[index], exponents[index] = _scaled(plan.blocks[index], corrected.block(plan, index))
    return Grams(matrices, exponents)


def spectra(plan: AdapterPlan, gradient: torch.Tensor | CorrectedGradient) -> list[Spectrum]:
    """The whole spectra of all blocks; arguments and errors are those of `gram_matrices`."""
    grams = gram_matrices(plan, gradient)
    return completed(grams, [None] * len(plan.blocks), range(len(plan.blocks)))


def leading_spectra(grams: Grams, count: int, rounds: int) -> list[Spectrum]:
    """About the `count` largest components of each block, or all of them where r is not much larger.

    Each round of subspace iteration brings them nearer to being the largest.
    """

    def decompose(K: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if K.shape[-1] <= 2 * count:
            return _eigenvectors(K)
        start = _start(K.shape[-1], count)
        if K.device.type != "cpu":
            return reference_leading_eigenvectors(K, start, rounds)
        values, vectors = leading_eigenvectors(K.numpy(), start.numpy(), rounds)
        return torch.from_numpy(values), torch.from_numpy(vectors)

    found = _decomposed(grams, range(len(grams.matrices)), decompose)
    return [found[index] for index in range(len(grams.matrices))]


def completed(grams: Grams, found: Sequence[Spectrum | None], indices: Iterable[int]) -> list[Spectrum]:
    """`found`, with the whole spectra of the blocks at these positions."""
    whole = _decomposed(grams, indices, _eigenvectors)
    merged = [whole.get(index, spectrum) for index, spectrum in enumerate(found)]
    return [spectrum for spectrum in merged if spectrum is not None]


def reference_spectrum(matrix: torch.Tensor) -> Spectrum:
    """The same by the singular value decomposition in fp64: what `spectra` must agree with."""
    U, sigma, _ = torch.linalg.svd(short_side_first(matrix).double(), full_matrices=False)
    return Spectrum((sigma**2).cpu().numpy(), U.float())


@cache
def _start(short: int, count: int) -> torch.Tensor:
    """Random directions as rows, the same at every step."""
    return torch.randn(short, count, generator=torch.Generator().manual_seed(0)).T.contiguous()


def _eigenvectors(K: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All eigenvalues of a batch, descending, and the eigenvectors as rows."""
    # LAPACK's fp32 routine gives NaN for some finite matrices far from a trace of 1.
    traces = _traces(K).clamp(min=_SAFE_ENERGY[0])[:, None]
    ascending, columns = torch.linalg.eigh(K / traces[..., None])
    return (ascending * traces).flip(-1), columns.mT.flip(-2)


def _traces(K: torch.Tensor) -> torch.Tensor:
    return K.diagonal(dim1=-2, dim2=-1).sum(-1)


def _decomposed(
    grams: Grams, indices: Iterable[int], decompose: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> dict[int, Spectrum]:
    """Spectra by position; `decompose` gets the blocks of one short side as a batch, and gives values and rows."""
    groups: dict[int, list[int]] = {}
    for index in indices:
        groups.setdefault(len(grams.matrices[index]), []).append(index)
    found: dict[int, Spectrum] = {}
    for members in groups.values():
        K = _batch([grams.matrices[index] for index in members])
        values, bases = decompose(K)
        energies = values.clamp(min=0).double().cpu().numpy()
        missing = _traces(K).double().cpu().numpy() - energies.sum(axis=1) if values.shape[1] < K.shape[1] else 0.0
        energies = np.ldexp(energies, 2 * grams.exponents[members][:, None])
        rests = np.ldexp(np.broadcast_to(missing, len(members)), 2 * grams.exponents[members]).tolist()
        found |= {index: Spectrum(energies[row], bases[row].T, rests[row]) for row, index in enumerate(members)}
    return found


def _batch(matrices: list[torch.Tensor]) -> torch.Tensor:
    """The matrices of one shape as one tensor; without a copy where they follow each other in memory."""
    first, size = matrices[0], matrices[0].numel()
    places = [first.storage_offset() + index * size for index in range(len(matrices))]
    storage = first.untyped_storage().data_ptr()
    if all(
        matrix.storage_offset() == place and matrix.untyped_storage().data_ptr() == storage
        for matrix, place in zip(matrices, places, strict=True)
    ):
        return first.as_strided((len(matrices), *first.shape), (size, *first.stride()))
    return torch.stack(matrices)


def _unscaled(plan: AdapterPlan, corrected: CorrectedGradient) -> tuple[list[torch.Tensor], np.ndarray]:
    """G·Gᵀ and ‖G‖² of every block, whether or not they leave fp32's range."""
    if corrected.gradient.device.type != "cpu":
        matrices = [_product(part.stored()) for part in corrected.blocks(plan)]
        return matrices, torch.stack([K.trace() for K in matrices]).cpu().numpy()
    short = [min(block.rows, block.columns) for block in plan.blocks]
    sizes = np.square(short)
    ends = np.cumsum(sizes)
    flat, starts, energies = torch.empty(int(ends[-1])), ends - sizes, np.empty(len(short), np.float32)
    pair, factor, out = corrected.numpy(), np.float32(corrected.factor), flat.numpy()
    each_part(lambda part, *extent: gram(*pair, factor, *extent, starts[part], out, energies[part]), plan)
    return [K.view(r, r) for K, r in zip(flat.split(sizes.tolist()), short, strict=True)], energies


def _scaled(block: Block, part: CorrectedGradient) -> tuple[torch.Tensor, int]:
    """K of 2^−e·G, and e; of the zero block, 0."""
    magnitude = require_finite_sum(block, part)
    total = part.stored().double()
    exponent = int(np.frexp(magnitude)[1]) if magnitude else 0
    return _product(torch.ldexp(total, torch.tensor(-exponent))).float(), exponent


def _product(matrix: torch.Tensor) -> torch.Tensor:
    """G·Gᵀ with the short side first."""
    G = short_side_first(matrix)
    return G @ G.T
