"""spar_rd: the rate–distortion coder, Spar's singular bases with a transform coder's quantizer.

Each block's gradient is taken to its singular basis (the Karhunen–Loève transform of its columns),
all coefficients of all blocks are rounded with one step Δ, and the integers are range coded. Δ is
searched so that the payload just fits the budget; what rounding loses falls into the residual E.
`quantize` says how classes, grids and tables follow from Δ.

    Ĝ = Δ·2^−q · Σ_k u_k·v_k      u, v integers, q the finest grid exponent of the block

Body of the payload (frame in `payload`), little endian:

    f4          Δ; 0 for the zero gradient, and then nothing follows
    u4 …        range coder words (`entropy`), which hold, over all blocks in plan order:
        rank k of each block, uniform in 0 … r
        first class of each block that has components, uniform
        decrease of the class from each component to the next, a geometric model
        basis vectors of all components, those of one basis class together, classes ascending
        per block: one bit per component, its coefficients' shape, then the coefficients of each
        component, n integers with the table of its class and shape

Sums of |u·v| stay below 2^24 by the choice of Δ, so fp32 products of the integer factors are exact
in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.entropy import CLASSES, SymbolReader, SymbolWriter
from hilosync.compress.finite import require_finite_product
from hilosync.compress.payload import FRAME_BYTES, Kind, seal, unseal
from hilosync.compress.quantize import (
    basis_class,
    classes_of,
    component_bits,
    grid_exponent,
    quantize_basis,
    quantize_coefficients,
    smallest_class,
)
from hilosync.compress.spectra import Spectrum, short_side_first, spectra
from hilosync.compress.state import require_names, saved_scalar, scalar_tensor
from hilosync.errors import BudgetTooSmall, MalformedPayload
from hilosync.plan import AdapterPlan, Block

__all__ = ["SparRD"]


_STEP_BYTES = 4
_SMALLEST_STEP = 2.0**-13
"""Smallest Δ in units of the largest singular value: with grids of 2^−9, |u·v| sums stay below 2^24."""

_STEPS = (2.0**-115, 2.0**126)
"""Steps that a payload may have: Δ·2^−q is a normal fp32 value, and 1/Δ is finite.

The largest is beyond what the coefficients of any gradient that may be encoded ask for: their scale
is at most 2^120·√r.
"""

_TARGET, _ENOUGH = 0.992, 0.98
"""Share of the budget that a search for Δ aims at, and that ends it."""

_TRIES = 5
"""Encodings of a gradient at most, while one fits the budget."""

_GROW = 1.05
"""Growth of Δ when a search that ended has found nothing that fits."""


@dataclass(frozen=True, slots=True)
class SparRD:
    """The rate–distortion coder.

    Its encoder state is one float: bytes found over bytes predicted in the step before, which
    usually makes the first Δ the right one.

    Attributes:
        budget: bytes of a whole record; see `hilosync.compress.budget`.
    """

    budget: str | int | None = "rank 1"
    name = "spar_rd"

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes within which a component of the cheapest block surely fits."""
        components = (component_bits(CLASSES[len(CLASSES) // 2], *_sides(block)) for block in plan.blocks)
        ranks = sum(np.log2(1 + _sides(block)[0]) for block in plan.blocks)
        return FRAME_BYTES + _STEP_BYTES + 16 + int((ranks + min(components)) / 8)

    def init(self, plan: AdapterPlan) -> float:
        """Predictions are taken as they are."""
        return 1.0

    def save_state(self, state: float) -> dict[str, torch.Tensor]:
        """The one number."""
        return {"correction": scalar_tensor(state)}

    def load_state(self, plan: AdapterPlan, tensors: dict[str, torch.Tensor]) -> float:
        """The one number; see `Compressor.load_state`."""
        require_names(self.name, tensors, ["correction"])
        return saved_scalar(tensors, "correction")

    def encode(self, plan: AdapterPlan, state: float, gradient: torch.Tensor, budget: int) -> tuple[bytes, float]:
        """Searches Δ, quantizes and codes; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"spar_rd needs at least {smallest} bytes of payload for this plan, got {budget}; raise the budget"
            )
        found = spectra(plan, gradient)
        largest = np.sqrt(max(spectrum.energies[0] for spectrum in found))
        if not largest > 0:
            return seal(Kind.SPAR_RD, bytes(_STEP_BYTES)), state
        rate = _Rate(plan, found)
        matrices = [short_side_first(matrix) for matrix in plan.views(gradient)]
        finest = max(largest * _SMALLEST_STEP, _STEPS[0])
        correction, best, step = state, None, 0.0
        for _ in range(_TRIES):
            previous, step = step, rate.step(_TARGET * budget / correction, finest, largest)
            if step == previous:
                break
            payload = _encode_with_step(plan, matrices, found, step)
            correction = len(payload) / rate.bytes(step)
            if len(payload) <= budget and (best is None or len(payload) > len(best)):
                best = payload
                if len(payload) >= _ENOUGH * budget or step == finest:
                    break
        while best is None:
            step *= _GROW
            if step > _STEPS[1]:
                # No step that a payload may have is coarse enough: all of the gradient stays in E.
                return seal(Kind.SPAR_RD, bytes(_STEP_BYTES)), state
            payload = _encode_with_step(plan, matrices, found, step)
            best = payload if len(payload) <= budget else None
        return best, correction

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the integers; see `Compressor.decode`."""
        step, classes, reader = _open(plan, payload)
        if reader is None:
            return tuple(_low_rank(block, *_empty(block), 1.0) for block in plan.blocks)
        bases = _read_bases(reader, plan, classes)
        blocks = []
        for block, block_classes, U in zip(plan.blocks, classes, bases, strict=True):
            k, n = len(block_classes), _sides(block)[1]
            V = np.empty((k, n), dtype=np.float32)
            shapes = reader.uniform(k, 2).tolist()
            for row, class_, laplacian in zip(V, block_classes.tolist(), shapes, strict=True):
                row[:] = reader.integers(n, "laplace" if laplacian else "gauss", class_)
            exponents = np.array([grid_exponent(t, n) for t in block_classes.tolist()], dtype=np.int32)
            finest = int(exponents.max(initial=0))
            U = np.ldexp(U.astype(np.float32), (finest - exponents)[:, None])
            blocks.append(_low_rank(block, U, V, float(np.float32(step * 2.0**-finest))))
        reader.finish()
        for block, part in zip(plan.blocks, blocks, strict=True):
            require_finite_product(block, part)
        return tuple(blocks)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block; bytes are the payload's, shared out as the model predicts."""
        _, classes, _ = _open(plan, payload)
        bits = np.array(
            [
                sum(component_bits(t, *_sides(block)) for t in block_classes.tolist())
                for block, block_classes in zip(plan.blocks, classes, strict=True)
            ]
        )
        share = (len(memoryview(payload)) - FRAME_BYTES - _STEP_BYTES) * bits / max(1.0, bits.sum())
        return [
            {"name": block.name, "rank": len(block_classes), "bytes": int(size)}
            for block, block_classes, size in zip(plan.blocks, classes, share, strict=True)
        ]


class _Rate:
    """Predicts bytes from spectra and Δ, without quantizing anything."""

    def __init__(self, plan: AdapterPlan, found: list[Spectrum]):
        self._groups: dict[tuple[int, int], np.ndarray] = {}
        for block, spectrum in zip(plan.blocks, found, strict=True):
            sides = _sides(block)
            joined = [self._groups[sides]] if sides in self._groups else []
            self._groups[sides] = np.concatenate([*joined, spectrum.energies[spectrum.energies > 0]])
        self._tables = {
            (r, n): np.array([component_bits(t, r, n) if t >= smallest_class(r, n) else 0.0 for t in CLASSES])
            for r, n in self._groups
        }
        self._fixed = FRAME_BYTES + _STEP_BYTES + 8 + sum(np.log2(1 + _sides(b)[0]) for b in plan.blocks) / 8

    def bytes(self, step: float) -> float:
        bits = sum(
            self._tables[sides][classes_of(energies, sides[1], step) - CLASSES[0]].sum()
            for sides, energies in self._groups.items()
        )
        return self._fixed + bits / 8

    def step(self, target: float, finest: float, coarsest: float) -> float:
        """The smallest Δ (as an fp32 value) whose predicted bytes are within the target, by bisection."""
        low, high = np.log(finest), np.log(coarsest)
        if self.bytes(finest) <= target:
            high = low
        for _ in range(24 if high > low else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if self.bytes(float(np.exp(middle))) <= target else (middle, high)
        return float(np.float32(np.clip(np.exp(high), *_STEPS)))


def _sides(block: Block) -> tuple[int, int]:
    """Short and long side: r, n."""
    return min(block.rows, block.columns), max(block.rows, block.columns)


def _empty(block: Block) -> tuple[np.ndarray, np.ndarray]:
    r, n = _sides(block)
    return np.zeros((0, r), dtype=np.float32), np.zeros((0, n), dtype=np.float32)


def _low_rank(block: Block, U: np.ndarray, V: np.ndarray, scale: float) -> LowRankBlock:
    """Puts U (k×r) and V (k×n) where the block's orientation wants them."""
    left, right = (U.T, V) if block.rows <= block.columns else (V.T, U)
    return LowRankBlock(
        torch.from_numpy(np.ascontiguousarray(left)), torch.from_numpy(np.ascontiguousarray(right)), scale
    )


def _encode_with_step(plan: AdapterPlan, matrices: list[torch.Tensor], found: list[Spectrum], step: float) -> bytes:
    """The payload for a given Δ, whatever its length."""
    classes = []
    for matrix, spectrum in zip(matrices, found, strict=True):
        every = classes_of(spectrum.energies, matrix.shape[1], step)
        classes.append(every[(every >= smallest_class(*matrix.shape)) & (spectrum.energies > 0)])
    bases = [
        quantize_basis(spectrum.basis, block_classes, matrix.shape[1])
        for matrix, spectrum, block_classes in zip(matrices, found, classes, strict=True)
    ]
    writer = SymbolWriter()
    for block, block_classes in zip(plan.blocks, classes, strict=True):
        writer.uniform(np.array([len(block_classes)]), _sides(block)[0] + 1)
    present = [block_classes for block_classes in classes if len(block_classes)]
    if present:
        writer.uniform(np.array([c[0] - CLASSES[0] for c in present]), len(CLASSES))
        writer.steps(np.concatenate([-np.diff(c) for c in present]), len(CLASSES))
    for class_, members in _by_basis_class(plan, classes):
        writer.integers(np.concatenate([bases[b][i] for b, i in members]), "basis", class_)
    for matrix, block_classes, U in zip(matrices, classes, bases, strict=True):
        if not len(block_classes):
            continue
        V, laplacian = quantize_coefficients(matrix, U, block_classes, step)
        writer.uniform(laplacian, 2)
        for row, class_, is_laplacian in zip(V, block_classes.tolist(), laplacian.tolist(), strict=True):
            writer.integers(row, "laplace" if is_laplacian else "gauss", class_)
    return seal(Kind.SPAR_RD, np.float32(step).astype("<f4").tobytes(), writer.finish())


def _open(plan: AdapterPlan, payload: bytes | memoryview) -> tuple[float, list[np.ndarray], SymbolReader | None]:
    """Δ, the classes of each block's components, and a reader that stands at the bases (None: no gradient)."""
    body = unseal(Kind.SPAR_RD, payload)
    if len(body) < _STEP_BYTES:
        raise MalformedPayload(f"expected a body of at least {_STEP_BYTES} bytes, got {len(body)}")
    step = float(np.frombuffer(body[:_STEP_BYTES], dtype="<f4")[0])
    if step == 0.0 and len(body) == _STEP_BYTES:
        return step, [np.zeros(0, dtype=np.int64)] * len(plan.blocks), None
    if not _STEPS[0] <= step <= _STEPS[1]:
        raise MalformedPayload(f"expected a step between {_STEPS[0]:.0e} and {_STEPS[1]:.0e}, got {step}")
    reader = SymbolReader(body[_STEP_BYTES:])
    ranks = [int(reader.uniform(1, _sides(block)[0] + 1)[0]) for block in plan.blocks]
    first = iter(reader.uniform(sum(k > 0 for k in ranks), len(CLASSES)).tolist())
    decreases = reader.steps(sum(max(0, k - 1) for k in ranks), len(CLASSES))
    classes, start = [], 0
    for block, k in zip(plan.blocks, ranks, strict=True):
        found = np.zeros(k, dtype=np.int64)
        if k:
            found[0] = next(first)
            found[1:] = found[0] - np.cumsum(decreases[start : start + k - 1])
            start += k - 1
            if found[-1] < 0:
                raise MalformedPayload(f"the components of {block.name} have classes below the smallest")
        classes.append(found + CLASSES[0])
    return step, classes, reader


def _by_basis_class(plan: AdapterPlan, classes: list[np.ndarray]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Basis classes, ascending, each with its components as (block, component), in order."""
    members: dict[int, list[tuple[int, int]]] = {}
    for index, (block, block_classes) in enumerate(zip(plan.blocks, classes, strict=True)):
        r, n = _sides(block)
        for component, class_ in enumerate(block_classes.tolist()):
            members.setdefault(basis_class(grid_exponent(class_, n), r), []).append((index, component))
    yield from sorted(members.items())


def _read_bases(reader: SymbolReader, plan: AdapterPlan, classes: list[np.ndarray]) -> list[np.ndarray]:
    """Basis integers of each block, int32, shape (k, r)."""
    bases = [np.empty((len(c), _sides(b)[0]), np.int32) for b, c in zip(plan.blocks, classes, strict=True)]
    for class_, members in _by_basis_class(plan, classes):
        values = reader.integers(sum(bases[b].shape[1] for b, _ in members), "basis", class_)
        start = 0
        for index, component in members:
            row = bases[index][component]
            row[:] = values[start : start + len(row)]
            start += len(row)
    return bases
