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
from typing import Any

import numba
import numpy as np
import torch

from hilosync.arithmetic.compilation import kernel
from hilosync.compress.tables import CLASSES, Shape, frequencies, reach, rounding

__all__ = [
    "basis_class",
    "classes_of",
    "component_bits",
    "fit_bases",
    "grid_exponent",
    "octaves_of",
    "reference_coefficients",
    "rounding_offset",
    "rounding_offsets",
    "smallest_class",
]

_GRID_EXPONENTS = (2, 9)
"""Coarsest and finest grid of a basis: 2^−2 and 2^−9."""

_BITS_PRICE = 2 * math.log(2) / 9
"""−dD/dR in Δ² per bit: D falls fourfold per bit, and with the dead zone it is about Δ²/9."""

_SIDE_BITS = 3.7
"""Bits of a component's class and shape, and of its block's rank, about."""

_RIDGE = 1e-6
"""Keeps the fit regular where a coarse grid makes two basis vectors alike."""

_helper: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})


def octaves_of(energies: np.ndarray, n: int | np.ndarray) -> np.ndarray:
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


@cache
def rounding_offset(class_: int) -> float:
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
    low, high = (v - rounding_offset(class_)) / s, (v + 1 - rounding_offset(class_)) / s
    mean = s * (np.exp(-(low**2) / 2) - np.exp(-(high**2) / 2)) / np.sqrt(2 * np.pi)
    return float(2 * (2 * v * mean - v**2 * probabilities[M + 1 :]).sum())


@cache
def smallest_class(r: int, n: int) -> int:
    """The smallest class whose components save more distortion than their bits are worth elsewhere."""
    for class_ in CLASSES:
        if n * _reduction(class_) > _BITS_PRICE * component_bits(class_, r, n):
            return class_
    return CLASSES[-1]


@_helper
def _fit_basis(Q, normal):
    """Q ← (Q·Qᵀ)⁻¹·Q for an fp64 Q of shape (k, r), by Cholesky's factor of Q·Qᵀ, which `normal` then holds."""
    k, r = Q.shape
    for c in range(k):
        for d in range(c + 1):
            total = 0.0
            for i in range(r):
                total += Q[c, i] * Q[d, i]
            normal[c, d] = total
        normal[c, c] += _RIDGE
    for c in range(k):
        for d in range(c + 1):
            for e in range(d):
                normal[c, d] -= normal[c, e] * normal[d, e]
            normal[c, d] = np.sqrt(normal[c, c]) if c == d else normal[c, d] / normal[d, d]
        for d in range(c):
            for i in range(r):
                Q[c, i] -= normal[c, d] * Q[d, i]
        for i in range(r):
            Q[c, i] /= normal[c, c]
    for c in range(k - 1, -1, -1):
        for d in range(c + 1, k):
            for i in range(r):
                Q[c, i] -= normal[d, c] * Q[d, i]
        for i in range(r):
            Q[c, i] /= normal[c, c]


@kernel
def fit_bases(found, short, counts, ranks, exponents, step, bases, fits):
    """Rounds the bases of all blocks to their grids, and finds the P of V = P·G, in units of Δ.

    V is the least-squares fit of G on the quantized basis, *as decoders will have it*, so part of what
    rounding U lost is won back: P = (Q·Qᵀ)⁻¹·Q/Δ for the rounded U = Qᵀ.

    Args:
        found: Uᵀ of one block after another, shape (m, r), rows by descending energy; fp32, flat.
        short, counts, ranks: r, m and k ≤ m of each block, int64, shape (blocks,).
        exponents: q of each component that is sent, int64.
        step: Δ.
        bases: int32, flat, of the size of all (k, r); afterwards row i of a block is u_i·2^q, magnitudes
            at most 2^q.
        fits: fp32, likewise; P of each block afterwards.
    """
    source, target, component = 0, 0, 0
    for b in range(len(ranks)):
        r, m, k = short[b], counts[b], ranks[b]
        U = found[source : source + r * m].reshape(m, r)
        integers, fit = bases[target : target + k * r].reshape(k, r), fits[target : target + k * r].reshape(k, r)
        Q, grids = np.empty((k, r)), 2.0 ** exponents[component : component + k]
        for i in range(r):
            for c in range(k):
                rounded = np.rint(min(max(U[c, i], np.float32(-1)), np.float32(1)) * grids[c])
                integers[c, i] = np.int32(rounded)
                Q[c, i] = rounded / grids[c]
        _fit_basis(Q, np.empty((k, k)))
        for c in range(k):
            for i in range(r):
                fit[c, i] = np.float32(Q[c, i] / step)
        source, target, component = source + r * m, target + k * r, component + k


@cache
def rounding_offsets() -> np.ndarray:
    """Offset of the coefficients' rounding by class, from the smallest class on, fp32."""
    return np.array([rounding_offset(class_) for class_ in CLASSES], dtype=np.float32)


def reference_coefficients(matrix: torch.Tensor, integers: np.ndarray, classes: np.ndarray, step: float) -> np.ndarray:
    """V of one block as the equation reads, in fp64: ⌊|v|/Δ + offset⌋ with the sign of v, v by least squares."""
    exponents = np.array([grid_exponent(t, matrix.shape[1]) for t in classes.tolist()])
    U = integers / np.exp2(exponents)[:, None]
    V = np.linalg.lstsq(U.T, matrix.double().numpy(), rcond=None)[0] / step
    offsets = np.array([rounding_offset(t) for t in classes.tolist()])
    return (np.floor(np.abs(V) + offsets[:, None]) * np.sign(V)).astype(np.int64)
