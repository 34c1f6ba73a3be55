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
from hilosync.compress.passes import round_with_dead_zone

__all__ = [
    "basis_class",
    "classes_of",
    "component_bits",
    "fitting_rows",
    "grid_exponent",
    "octaves_of",
    "quantize_bases",
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


def octaves_of(energies: np.ndarray, n: int) -> np.ndarray:
    """2·log₂(σ²/n): the scale of a component's coefficients in quarter octaves."""
    with np.errstate(divide="ignore"):
        return 2 * np.log2(energies / n)


def classes_of(octaves: np.ndarray, step: float) -> np.ndarray:
    """Class of each component at Δ: of `octaves_of` → t, int64, within `CLASSES`."""
    return np.clip(np.rint(octaves - 4 * np.log2(step)), CLASSES[0], CLASSES[-1]).astype(np.int64)


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


def quantize_bases(bases: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Rounds basis vectors of several blocks to their grids.

    Args:
        bases: U, fp32, shape (blocks, r, m), columns by descending energy.
        exponents: q of each component, shape (blocks, m); negative for a component that is not sent.

    Returns:
        int32, shape (blocks, m, r): row i is u_i·2^q, magnitudes at most 2^q; 0 where nothing is sent.
    """
    U = bases.transpose(0, 2, 1).clip(-1, 1)
    return np.rint(U * _grids(exponents)).astype(np.int32)


def fitting_rows(integers: np.ndarray, exponents: np.ndarray, step: float) -> np.ndarray:
    """The P of V = P·G: the least-squares fit of a block on its quantized basis, in units of Δ.

    V is fitted on the basis *as decoders will have it*, so part of what rounding U lost is won back.

    Args:
        integers: of `quantize_bases`, shape (blocks, m, r).
        exponents: q of each component, as for `quantize_bases`.
        step: Δ.

    Returns:
        fp32, shape (blocks, m, r).
    """
    U = integers / np.maximum(_grids(exponents), 1)
    # A ridge keeps the system regular where a coarse grid makes two vectors alike, or none is sent.
    normal = U @ U.transpose(0, 2, 1) + 1e-6 * np.eye(U.shape[1])
    return (np.linalg.solve(normal, U) / step).astype(np.float32)


def quantize_coefficients(fitted: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounds the coefficients of a block.

    Args:
        fitted: V in units of Δ, fp32, shape (k, n).
        classes: t of the k components.

    Returns:
        int32, shape (k, n), and bool of shape (k,): where the Laplacian table suits better.
    """
    integers, laplacian = np.empty(fitted.shape, np.int32), np.empty(len(fitted), bool)
    for row, class_ in enumerate(classes.tolist()):
        magnitudes, squares = round_with_dead_zone(fitted[row], np.float32(_offset(class_)), integers[row])
        laplacian[row] = magnitudes < _BETWEEN_SHAPES * math.sqrt(squares * fitted.shape[1])
    return integers, laplacian


def _grids(exponents: np.ndarray) -> np.ndarray:
    """2^q of each component, fp64, shape (blocks, m, 1); 0 where nothing is sent."""
    return np.where(exponents < 0, 0.0, np.exp2(exponents))[:, :, None]


def reference_coefficients(matrix: torch.Tensor, integers: np.ndarray, classes: np.ndarray, step: float) -> np.ndarray:
    """V of one block as the equation reads, in fp64: ⌊|v|/Δ + offset⌋ with the sign of v, v by least squares."""
    exponents = np.array([grid_exponent(t, matrix.shape[1]) for t in classes.tolist()])
    U = integers / np.exp2(exponents)[:, None]
    V = np.linalg.lstsq(U.T, matrix.double().numpy(), rcond=None)[0] / step
    offsets = np.array([_offset(t) for t in classes.tolist()])
    return (np.floor(np.abs(V) + offsets[:, None]) * np.sign(V)).astype(np.int64)
