"""Quantization of a block in its singular basis, with one step for all coefficients of a gradient.

A component u·v of a block (short side r, long side n) has coefficients of variance σ²/n. Reverse
water-filling says: give every coefficient of every block the same distortion, that is one step Δ,
and drop what lies below. A component is therefore known by its class t = round(4·log₂(σ/(√n·Δ))),
the scale of its coefficients in steps, in quarter octaves: the class is coded, and from it alone
follow

    the table of its coefficients' integers      v = V/Δ, rounded with a dead zone
    the grid of its basis vector                 u = U·2^q, 2^q ≈ σ/Δ

The grid makes an error of u cost what an error of v costs: both move Ĝ by about Δ/√12 per entry. It is
coarser where most of a block's directions are sent, since u errs within their span at no cost.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch

from hilosync.arithmetic.compilation import kernel
from hilosync.compress.tables import CLASSES, COEFFICIENT_SHAPES, Grouping, Shape, grouping, joint_frequencies, rounding

__all__ = [
    "basis_classes",
    "classes_of",
    "component_bits",
    "fit_bases",
    "grid_exponents",
    "octaves_of",
    "reference_coefficients",
    "reference_rounded",
    "rounding_offset",
    "rounding_offsets",
    "smallest_class",
]

_GRID_EXPONENTS = (2, 9)
"""Coarsest and finest grid of a basis: 2^−2 and 2^−9."""

_BITS_PRICE = 2 * math.log(2) * 0.113
"""λ = −dD/dR in Δ² per bit: D falls fourfold per bit, and with groups of even sums it is about 0.113·Δ²."""

_EXCESS_BITS = 0.4
"""Bits per coefficient beyond the limit that a component must be worth. It takes about 0.2; what is left out for now is
worth more later, in E."""

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


def grid_exponents(classes: np.ndarray, r: np.ndarray, n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q of basis vectors, from class, sides and rank of each one's block, all int64.

    2^q ≈ √((r − k)/r)·σ/Δ, where σ/Δ = √n·2^(t/4): what rounding turns a vector towards the block's k others, the
    fit of the coefficients wins back. For that alone no grid becomes so coarse that vectors are no longer apart, or
    that what they win back from a large component outgrows their own coefficients.
    """
    quarters = classes + _bit_lengths(n * n) - 1
    won_back = _bit_lengths(4 * r * r // np.maximum(2 * (r - k), 1) ** 2) - 1
    least = np.maximum((_bit_lengths(r - 1) + 1) // 2 + 1, classes // 4 + 2)
    fine, coarse = ((octaves + 2) // 4 for octaves in (quarters, quarters - won_back))
    return np.clip(np.minimum(fine, np.maximum(coarse, least)), *_GRID_EXPONENTS)


def basis_classes(q: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Class of a unit vector's entries on the grid 2^−q: their scale is 2^q/√r."""
    return np.clip(4 * q + 1 - _bit_lengths(r * r), CLASSES[0], CLASSES[-1])


def _bit_lengths(values: np.ndarray) -> np.ndarray:
    """⌊log₂⌋ + 1 of integers below 2^53, and 0 of 0."""
    return np.frexp(np.asarray(values, np.float64))[1].astype(np.int64)


@cache
def rounding_offset(class_: int) -> float:
    """Offset of the coefficients' rounding; both shapes have the same."""
    numerator, denominator = rounding("gauss", class_)
    return numerator / denominator


@cache
def _bits_per_integer(shape: Shape, class_: int) -> float:
    """Entropy of a joint table."""
    p = joint_frequencies(shape, class_) / (1 << 24)
    return float(-(p * np.log2(p)).sum()) / grouping(shape, class_).size


@cache
def component_bits(class_: int, r: int, n: int) -> float:
    """Bits of a component of this class, about."""
    return n * _bits_per_integer("gauss", class_) + _basis_bits(class_, r, n) + _SIDE_BITS


def _basis_bits(class_: int, r: int, n: int) -> float:
    """Of the only component of a block; more of them need a few less."""
    classes, short, long, rank = np.array([[class_], [r], [n], [1]])
    (basis,) = basis_classes(grid_exponents(classes, short, long, rank), short).tolist()
    return r * _bits_per_integer("basis", basis)


@cache
def smallest_class(r: int, n: int) -> int:
    """The smallest class whose components save more distortion than their bits are worth elsewhere.

    With one price λ of a bit, a coefficient of variance s² is worth s² − θ − λ·½·log₂(s²/θ) at the rate–distortion
    limit, θ = λ/(2·ln 2); the coder needs some more bits.
    """
    water = _BITS_PRICE / (2 * math.log(2))
    for class_ in CLASSES:
        square = 2.0 ** (class_ / 2)
        bits = math.log2(square / water) / 2 + _EXCESS_BITS
        beside = _basis_bits(class_, r, n) + _SIDE_BITS
        if square > water and n * (square - water - _BITS_PRICE * bits) > _BITS_PRICE * beside:
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
            total = normal[c, d]
            for e in range(d):
                total -= normal[c, e] * normal[d, e]
            normal[c, d] = np.sqrt(total) if c == d else total / normal[d, d]
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


def reference_coefficients(
    matrix: torch.Tensor, integers: np.ndarray, classes: np.ndarray, laplacian: np.ndarray, step: float
) -> np.ndarray:
    """V of one block as the equations read, in fp64: V by least squares, in units of Δ, and `reference_rounded`."""
    exponents = grid_exponents(classes, *(np.full(len(classes), size) for size in (*matrix.shape, len(classes))))
    U = integers / np.exp2(exponents)[:, None]
    V = np.linalg.lstsq(U.T, matrix.double().numpy(), rcond=None)[0] / step
    shapes = [COEFFICIENT_SHAPES[bit] for bit in laplacian]
    rows = zip(V, classes.tolist(), shapes, strict=True)
    found = [reference_rounded(v, grouping(shape, t), rounding_offset(t)) for v, t, shape in rows]
    return np.array(found, dtype=np.int64).reshape(V.shape)


def reference_rounded(v: np.ndarray, together: Grouping, offset: float) -> np.ndarray:
    """⌊|v| + offset⌋ with the sign of v, fp64, shape (n,).

    Of a group that must have an even sum and has not, one integer is then rounded the other way, the one whose |v| is
    nearest to where the rounding changes.
    """
    count, size = -(-len(v) // together.size), together.size
    padded = np.pad(np.abs(v), (0, count * size - len(v))).reshape(size, count)
    rounded = np.floor(padded + offset)
    up, down = rounded + 1 - offset - padded, padded + offset - rounded
    up[rounded == together.reach] = up.ravel()[len(v) :] = np.inf
    down[rounded == 0] = np.inf
    if together.even:
        for group in np.flatnonzero((rounded.sum(axis=0) % 2 == 1) & (rounded.max(axis=0) <= together.reach)):
            place = np.minimum(up, down)[:, group].argmin()
            rounded[place, group] += 1 if up[place, group] < down[place, group] else -1
    return (rounded.ravel()[: len(v)] * np.sign(v)).astype(np.int64)
