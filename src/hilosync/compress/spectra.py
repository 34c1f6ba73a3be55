"""Spectra of the gradient's blocks: orthonormal bases and the energy along each direction.

A block G is seen with its short side first, G (r×n), r ≤ n: a block with more rows than columns
(LoRA's B) is taken as its transpose. With K = G·Gᵀ = U·diag(σ²)·Uᵀ, component i of the block is
u_i·(u_iᵀG) and carries the energy σ_i². K is r×r, so this costs one pass over G.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hilosync.compress.finite import largest_magnitude
from hilosync.plan import AdapterPlan, Block

__all__ = ["Spectrum", "project", "reference_spectrum", "short_side_first", "spectra"]

_SAFE_ENERGY = (1e-20, 1e30)
"""Block energies ‖G‖² within which neither K nor its eigenvalues under- or overflow in fp32."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """One block in its singular basis.

    Attributes:
        energies: σ², descending, fp64, shape (r,).
        basis: U, shape (r, r), fp32; column i belongs to energies[i].
    """

    energies: np.ndarray
    basis: torch.Tensor


def short_side_first(matrix: torch.Tensor) -> torch.Tensor:
    """The block as an r×n view with r ≤ n."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def spectra(plan: AdapterPlan, gradient: torch.Tensor) -> list[Spectrum]:
    """Spectra of all blocks: one Gram matrix each, eigendecompositions batched over equal short sides.

    Args:
        plan: the adapter's tensors.
        gradient: flat, fp32, shape (plan.size,), on any device.

    Raises:
        NonFinite: a block holds NaN, Inf or a value beyond 2^120; names the tensor.
    """
    matrices = [short_side_first(matrix) for matrix in plan.views(gradient)]
    found: dict[int, Spectrum] = {}
    for short, members in _by_short_side(matrices):
        grams = gradient.new_empty(len(members), short, short)
        exponents = [
            _gram(plan.blocks[index], matrices[index], gram) for index, gram in zip(members, grams, strict=True)
        ]
        ascending, bases = torch.linalg.eigh(grams)
        energies = ascending.flip(-1).clamp_(min=0).double().cpu().numpy()
        energies = np.ldexp(energies, 2 * np.array(exponents)[:, None])
        found |= {
            index: Spectrum(*pair) for index, *pair in zip(members, energies, bases.flip(-1).unbind(), strict=True)
        }
    return [found[index] for index in range(len(matrices))]


def reference_spectrum(matrix: torch.Tensor) -> Spectrum:
    """The same by the singular value decomposition in fp64: what `spectra` must agree with."""
    U, sigma, _ = torch.linalg.svd(short_side_first(matrix).double(), full_matrices=False)
    return Spectrum((sigma**2).cpu().numpy(), U.float())


def _gram_matrix(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Writes G·Gᵀ to `out`."""
    if matrix.device.type == "cpu":
        # NumPy sees that both factors are one array and computes one triangle (syrk).
        G = matrix.numpy()
        with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at the trace
            np.matmul(G, G.T, out=out.numpy())
    else:
        torch.mm(matrix, matrix.T, out=out)


def project(P: np.ndarray, matrix: torch.Tensor) -> np.ndarray:
    """P·G for a P of few rows, fp32, shape (k, n)."""
    if matrix.device.type == "cpu":
        # NumPy's BLAS is the faster one for such flat products.
        return P @ matrix.numpy()
    return (torch.from_numpy(P).to(matrix.device) @ matrix).cpu().numpy()


def _by_short_side(matrices: Sequence[torch.Tensor]) -> Iterator[tuple[int, list[int]]]:
    groups: dict[int, list[int]] = {}
    for index, matrix in enumerate(matrices):
        groups.setdefault(matrix.shape[0], []).append(index)
    yield from groups.items()


def _gram(block: Block, matrix: torch.Tensor, out: torch.Tensor) -> int:
    """Writes K of 2^−e·G to `out` and returns e, which is 0 unless K would leave fp32's range."""
    _gram_matrix(matrix, out)
    energy = out.trace().item()
    if _SAFE_ENERGY[0] <= energy <= _SAFE_ENERGY[1]:
        return 0
    magnitude = largest_magnitude(block, matrix)
    if magnitude == 0.0:
        return 0
    exponent = int(np.frexp(magnitude)[1])
    # Two factors, since 2^149 is no fp32 value.
    scaled = matrix * 2.0 ** (-exponent // 2) * 2.0 ** (-exponent - (-exponent // 2))
    _gram_matrix(scaled, out)
    return exponent
