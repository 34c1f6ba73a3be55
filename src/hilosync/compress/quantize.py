"""Quantization of a block in its singular basis, with one step for all coefficients of a gradient.

A component u·v of a block (short side r, long side n) has coefficients of variance σ²/n. Reverse
water-filling says: give every coefficient of every block the same distortion, that is one step Δ,
and drop what lies below. A component is therefore known by its class t = round(4·log₂(σ/(√n·Δ))),
the scale of its coefficients in steps, in quarter octaves: the class is coded, and from it alone
follow

    the table of its coefficients' integers      v = V/Δ, rounded with a dead zone
    the grid of its basis vector                 u = U·2^q, 2^q ≈ σ/Δ

The grid makes an error of u cost what an error of v costs: both move Ĝ by about Δ/√12 per entry.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from hilosync.compress.entropy import CLASSES, Shape, frequencies, reach, rounding
from hilosync.compress.spectra import project

__all__ = [
    "basis_class",
    "classes_of",
    "component_bits",
    "grid_exponent",
    "quantize_basis",
    "quantize_coefficients",
    "reference_coefficients",
    "smallest_class",
]

_GRID_EXPONENTS = (2, 9)
"""Coarsest and finest grid of a basis: 2^−2 and 2^−9."""

_BITS_PRICE = 2 * math.log(2) / 9
"""−dD/dR in Δ² per bit: D falls fourfold per bit, and with the dead zone it is about Δ²/9."""

_SIDE_BITS = 3.0
"""Bits of a component's class and shape, about."""

_BETWEEN_SHAPES = 0.753
"""E|x|/√E[x²] is 0.798 for a Gaussian and 0.707 for a Laplacian variable; the middle decides."""


def classes_of(energies: np.ndarray, n: int | np.ndarray, step: float) -> np.ndarray:
    """Class of each component: σ² and long side n → t, int64, within `CLASSES`."""
    with np.errstate(divide="ignore"):
        octaves = 2 * np.log2(energies / n) - 4 * np.log2(step)
    return np.clip(np.rint(octaves), CLASSES[0], CLASSES[-1]).astype(np.int64)


@cache
def grid_exponent(class_: int, n: int) -> int:
    """q of a component's basis vector: 2^q ≈ √n·2^(t/4) = σ/Δ, in integers."""
    quarters = class_ + (n * n).bit_length() - 1
    return min(max((quarters + 2) // 4, _GRID_EXPONENTS[0]), _GRID_EXPONENTS[1])


@cache
def basis_class(q: int, r: int) -> int:
    """Class of a unit vector's entries on the grid 2^−q: their scale is 2^q/√r."""
    return min(max(4 * q + 1 - (r * r).bit_length(), CLASSES[0]), CLASSES[-1])


def _offset(class_: int) -> float:
    """Offset of the coefficients' rounding; both shapes have the same."""
    numerator, denominator = rounding("gauss", class_)
    return numerator / denominator


@cache
def _bits_per_integer(shape: Shape, class_: int) -> float:
    """Entropy of a table."""
    p = frequencies(shape, class_)[:-1] / (1 << 24)
    return float(-(p * np.log2(p)).sum())


@cache
def component_bits(class_: int, r: int, n: int) -> float:
    """Bits of a component of this class, about."""
    q = grid_exponent(class_, n)
    return n * _bits_per_integer("gauss", class_) + r * _bits_per_integer("basis", basis_class(q, r)) + _SIDE_BITS


@cache
def _reduction(class_: int) -> float:
    """Distortion that a rounded coefficient of this class saves, in Δ²: E[x²] − E[(x − v)²]."""
    M, probabilities = reach(class_), frequencies("gauss", class_)[:-1] / (1 << 24)
    s = 2.0 ** (class_ / 4)
    # E[2·x·v − v²] with x at the density's mean within each bin: ∫x·φ = s·(φ(a) − φ(b)).
    v = np.arange(1, M + 1)
    low, high = (v - _offset(class_)) / s, (v + 1 - _offset(class_)) / s
    mean = s * (np.exp(-(low**2) / 2) - np.exp(-(high**2) / 2)) / np.sqrt(2 * np.pi)
    return float(2 * (2 * v * mean - v**2 * probabilities[M + 1 :]).sum())


@cache
def smallest_class(r: int, n: int) -> int:
    """The smallest class whose components save more distortion than their bits are worth elsewhere."""
    for class_ in CLASSES:
        if n * _reduction(class_) > _BITS_PRICE * component_bits(class_, r, n):
            return class_
    return CLASSES[-1]


def quantize_basis(basis: torch.Tensor, classes: np.ndarray, n: int) -> np.ndarray:
    """Rounds basis vectors to the grids of their classes.

    Args:
        basis: U, shape (r, ≥ k), columns by descending energy.
        classes: t of the k components.
        n: the block's long side.

    Returns:
        int32, shape (k, r): row i is u_i·2^q, magnitudes at most 2^q.
    """
    U = basis[:, : len(classes)].cpu().numpy().T.clip(-1, 1)
    return np.rint(U * _grids(classes, n)).astype(np.int32)


def quantize_coefficients(
    matrix: torch.Tensor, integers: np.ndarray, classes: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds the coefficients of a block on its quantized basis.

    V is the least-squares fit of the block on the basis *as decoders will have it*, so part of
    what rounding U lost is won back.

    Args:
        matrix: G, short side first, shape (r, n).
        integers: of `quantize_basis`, shape (k, r).
        classes: t of the k components.
        step: Δ.

    Returns:
        V, int32, shape (k, n), and bool of shape (k,): where the Laplacian table suits better.
    """
    n = matrix.shape[1]
    U = integers / _grids(classes, n)
    # A ridge keeps the system regular where a coarse grid makes two vectors alike.
    fit = np.linalg.solve(U @ U.T + 1e-6 * np.eye(len(U)), U) / step
    V = project(fit.astype(np.float32), matrix)
    spread = np.sqrt(np.einsum("kn,kn->k", V, V) / n)
    laplacian = np.abs(V).mean(axis=1) < _BETWEEN_SHAPES * spread
    offsets = np.array([_offset(t) for t in classes.tolist()], dtype=np.float32)
    rounded = np.copysign(offsets[:, None], V)
    rounded += V
    return rounded.astype(np.int32), laplacian


def _grids(classes: np.ndarray, n: int) -> np.ndarray:
    """2^q of each component, fp64, shape (k, 1)."""
    return np.array([2.0 ** grid_exponent(t, n) for t in classes.tolist()])[:, None]


def reference_coefficients(matrix: torch.Tensor, integers: np.ndarray, classes: np.ndarray, step: float) -> np.ndarray:
    """V of `quantize_coefficients` as the equation reads, in fp64: ⌊|v|/Δ + offset⌋ with the sign of v."""
    U = integers / _grids(classes, matrix.shape[1])
    V = np.linalg.lstsq(U.T, matrix.double().numpy(), rcond=None)[0] / step
    offsets = np.array([_offset(t) for t in classes.tolist()])
    return (np.floor(np.abs(V) + offsets[:, None]) * np.sign(V)).astype(np.int64)
