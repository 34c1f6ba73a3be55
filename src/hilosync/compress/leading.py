"""The largest eigenvalues of small symmetric matrices, of many at once, on the CPU.

Subspace iteration from given directions, each round orthonormalized by Gram and Schmidt's process, and a
Rayleigh–Ritz step. Rounds after the first multiply with K − c: eigenvalues between 0 and 2·c, those of noise, then
fall behind faster, and c is no more than half of what is left out on average. The small matrices of the last step
are diagonalized by Jacobi's rotations with one matrix per lane of a vector. This is the encoder's side, whose
rounding is free.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numba.core import cgutils, types
from numba.extending import intrinsic

from hilosync.arithmetic.compilation import helper, kernel
from hilosync.compress.tiles import WIDTH, multiply
from hilosync.compress.vectors import FREE_ORDER, LANES, WORD, load, store

__all__ = ["leading_eigenvectors", "reference_leading_eigenvectors"]

_LANES = 32
"""Matrices whose rotations are made together."""

_SMALLEST_TRACE = np.float32(1e-20)
"""Traces below count as this one, so that the zero matrix keeps its zeros."""

_SWEEPS, _NEGLIGIBLE = 8, 1e-3
"""Sweeps of rotations at most, and the largest off-diagonal, of a trace of 1, that ends them. An eigenvalue is
the energy along its vector however many they were."""

_PASSES = 4
"""Of one vector's orthonormalization; what still cancels then lies within the others' span."""

_intrinsic: Any = intrinsic
_fast: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})


@_fast
def _dot(a, b):
    total = np.float32(0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@_fast
def _add(factor, a, out):
    for j in range(len(out)):
        out[j] += factor * a[j]


@_fast
def _scale(factor, out):
    for j in range(len(out)):
        out[j] *= factor


@helper
def _orthonormalize(rows):
    """Orthonormal rows that span the same, the first ones first; zeros for rows that depend on others."""
    for c in range(len(rows)):
        row = rows[c]
        before = _dot(row, row)
        for _ in range(_PASSES):
            if before > 0:
                _scale(np.float32(1 / np.sqrt(before)), row)
            for d in range(c):
                _add(-_dot(rows[d], row), rows[d], row)
            before = _dot(row, row)
            # Little cancelled: what is left is orthogonal to the others, up to fp32's rounding.
            if before > np.float32(0.25):
                break
        _scale(np.float32(1 / np.sqrt(before)) if before > np.float32(0.25) else np.float32(0), row)


@_fast
def _angle(app, aqq, apq, c, s):
    largest = np.float32(0)
    for lane in range(len(c)):
        d, twice = aqq[lane] - app[lane], np.float32(2) * apq[lane]
        root = np.sqrt(d * d + twice * twice) + abs(d) + np.float32(1e-30)
        t = (twice if d >= 0 else -twice) / root
        t = min(max(t, np.float32(-1)), np.float32(1))
        cosine = np.float32(1) / np.sqrt(t * t + np.float32(1))
        c[lane], s[lane] = cosine, t * cosine
        largest = max(largest, abs(apq[lane]))
    return largest


@_intrinsic
def _rotate(context: Any, first: Any, second: Any, step: Any, count: Any, cosines: Any, sines: Any) -> Any:
    """x, y ← c·x − s·y, s·x + c·y for `count` pairs of all lanes' numbers, `step` apart; addresses, in bytes."""

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:
        first, second, step, count, cosines, sines = arguments
        offsets = [WORD(4 * LANES * part) for part in range(_LANES // LANES)]
        angles = [(load(build, cosines, offset), load(build, sines, offset)) for offset in offsets]
        with cgutils.for_range(build, count) as loop:
            for offset, (c, s) in zip(offsets, angles, strict=True):
                place = build.add(build.mul(loop.index, step), offset)
                x, y = load(build, first, place), load(build, second, place)
                cx, sx, cy, sy = (build.fmul(*pair, flags=FREE_ORDER) for pair in ((c, x), (s, x), (c, y), (s, y)))
                store(build, build.fsub(cx, sy, flags=FREE_ORDER), first, place)
                store(build, build.fadd(sx, cy, flags=FREE_ORDER), second, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@helper
def _diagonalize(H, turns, c, s):
    """Jacobi's rotations of all lanes' H (m×m×lanes): H becomes diagonal, rows of `turns` its eigenvectors."""
    m = len(H)
    turns[:] = 0
    for p in range(m):
        turns[p, p] = 1
    matrix, vectors, angles = H.ctypes.data, turns.ctypes.data, (c.ctypes.data, s.ctypes.data)
    step, row = 4 * _LANES, 4 * _LANES * m
    for _ in range(_SWEEPS):
        largest = np.float32(0)
        for p in range(m - 1):
            for q in range(p + 1, m):
                largest = max(largest, _angle(H[p, p], H[q, q], H[p, q], c, s))
                _rotate(matrix + p * row, matrix + q * row, step, m, *angles)
                _rotate(vectors + p * row, vectors + q * row, step, m, *angles)
                _rotate(matrix + p * step, matrix + q * step, row, m, *angles)
        if largest < _NEGLIGIBLE:
            break


@helper
def _shift(basis, product, twice_missing):
    """From Q·K to Q·(K − c), c half the mean of the eigenvalues that Q leaves out, for a K with a trace of 1."""
    rest = np.float32(1)
    for p in range(len(basis)):
        rest -= _dot(basis[p], product[p])
    for p in range(len(basis)):
        _add(-max(rest, np.float32(0)) / twice_missing, basis[p], product[p])


@kernel
def _leading(matrices, start, rounds, values, vectors):
    count, r = len(matrices), matrices.shape[1]
    m, width = len(start), (r + WIDTH - 1) // WIDTH * WIDTH
    K, Q = np.zeros((r, width), np.float32), np.zeros((_LANES, m, width), np.float32)
    other = np.zeros((m, width), np.float32)
    H, turns = np.zeros((m, m, _LANES), np.float32), np.empty((m, m, _LANES), np.float32)
    c, s, turn, traces = (
        np.empty(_LANES, np.float32),
        np.empty(_LANES, np.float32),
        np.empty((m, m), np.float32),
        np.empty(_LANES, np.float32),
    )
    for first in range(0, count, _LANES):
        lanes = min(_LANES, count - first)
        for lane in range(lanes):
            matrix, basis = matrices[first + lane], Q[lane]
            traces[lane] = max(np.trace(matrix), _SMALLEST_TRACE)
            for i in range(r):
                K[i, :r] = matrix[i]
                _scale(1 / traces[lane], K[i])
            basis[:, :r] = start
            for number in range(rounds):
                multiply(
                    basis.ctypes.data, 4 * width, K.ctypes.data, 4 * width, m, r, width, other.ctypes.data, 4 * width
                )
                if number:
                    _shift(basis, other, np.float32(2 * (r - m)))
                basis[:] = other
                _orthonormalize(basis)
            multiply(basis.ctypes.data, 4 * width, K.ctypes.data, 4 * width, m, r, width, other.ctypes.data, 4 * width)
            for p in range(m):
                for q in range(p + 1):
                    H[p, q, lane] = H[q, p, lane] = _dot(basis[p], other[q])
        _diagonalize(H, turns, c, s)
        for lane in range(lanes):
            order = np.argsort(-np.diag(H[:, :, lane]))
            for p in range(m):
                values[first + lane, p] = H[order[p], order[p], lane] * traces[lane]
                turn[p] = turns[order[p], :, lane]
            basis = Q[lane]
            multiply(turn.ctypes.data, 4 * m, basis.ctypes.data, 4 * width, m, m, width, other.ctypes.data, 4 * width)
            vectors[first + lane] = other[:, :r]


def leading_eigenvectors(matrices: np.ndarray, start: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, descending, and the eigenvectors as rows.

    Args:
        matrices: symmetric, not negative, fp32, C order, shape (count, r, r).
        start: rows to begin with, fp32, shape (m, r), m < r.
        rounds: of subspace iteration.

    Returns:
        fp32, shapes (count, m) and (count, m, r). A matrix of a rank below m gets zeros for the vectors it lacks.
    """
    count, m, r = len(matrices), *start.shape
    values, vectors = np.empty((count, m), np.float32), np.empty((count, m, r), np.float32)
    _leading(matrices, start, rounds, values, vectors)
    return values, vectors


def reference_leading_eigenvectors(
    matrices: torch.Tensor, start: torch.Tensor, rounds: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by LAPACK's decompositions, on any device."""
    traces = matrices.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=float(_SMALLEST_TRACE))[:, None, None]
    unit = matrices / traces
    Q = start.mT.to(matrices.device).expand(len(matrices), -1, -1)
    for number in range(rounds):
        product = torch.bmm(unit, Q)
        if number:
            captured = (Q * product).sum(dim=(-2, -1))
            shift = (1 - captured).clamp(min=0) / (2 * (Q.shape[-2] - Q.shape[-1]))
            product = product - shift[:, None, None] * Q
        Q = torch.linalg.qr(product).Q
    ascending, turns = torch.linalg.eigh(torch.bmm(Q.mT, torch.bmm(unit, Q)))
    return (ascending * traces[:, 0]).flip(-1), torch.bmm(Q, turns).flip(-1).mT
