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
from hilosync.compress.quantize import component_bits, quantize_coefficients
from hilosync.compress.rate import Choice, Rate, basis_classes, grid_exponents, sides
from hilosync.compress.spectra import completed, gram_matrices, leading_spectra, project
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

_USUAL_RANK = 16
"""Components to look for first; the usual budget seldom gives a block more."""

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
        components = (component_bits(CLASSES[len(CLASSES) // 2], *sides(block)) for block in plan.blocks)
        ranks = sum(np.log2(1 + sides(block)[0]) for block in plan.blocks)
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
        search = _Search(plan, gradient)
        if not search.largest > 0:
            return seal(Kind.SPAR_RD, bytes(_STEP_BYTES)), state
        matrices = plan.views(gradient)
        correction, best, step = state, None, 0.0
        for _ in range(_TRIES):
            previous, step = step, search.step(_TARGET * budget / correction)
            if step == previous:
                break
            payload = _encode_with_step(plan, matrices, search.rate.choose(step), step)
            correction = len(payload) / search.bytes(step)
            if len(payload) <= budget and (best is None or len(payload) > len(best)):
                best = payload
                if len(payload) >= _ENOUGH * budget or step == search.finest:
                    break
        while best is None:
            step = float(np.float32(step * _GROW))
            if step > _STEPS[1]:
                # No step that a payload may have is coarse enough: all of the gradient stays in E.
                return seal(Kind.SPAR_RD, bytes(_STEP_BYTES)), state
            payload = _encode_with_step(plan, matrices, search.rate.choose(step), step)
            best = payload if len(payload) <= budget else None
        return best, correction

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the integers; see `Compressor.decode`."""
        step, classes, reader = _open(plan, payload)
        if reader is None:
            return tuple(_empty_block(block) for block in plan.blocks)
        bases = _read_bases(reader, plan, classes)
        blocks = [
            _read_block(reader, block, found, U, step)
            for block, found, U in zip(plan.blocks, classes, bases, strict=True)
        ]
        reader.finish()
        for block, part in zip(plan.blocks, blocks, strict=True):
            require_finite_product(block, part)
        return tuple(blocks)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block; bytes are the payload's, shared out as the model predicts."""
        _, classes, _ = _open(plan, payload)
        bits = np.array(
            [
                sum(component_bits(t, *sides(block)) for t in block_classes.tolist())
                for block, block_classes in zip(plan.blocks, classes, strict=True)
            ]
        )
        share = (len(memoryview(payload)) - FRAME_BYTES - _STEP_BYTES) * bits / max(1.0, bits.sum())
        return [
            {"name": block.name, "rank": len(block_classes), "bytes": int(size)}
            for block, block_classes, size in zip(plan.blocks, classes, share, strict=True)
        ]


class _Search:
    """The spectra of a gradient, as many components of each block as a step asks for.

    Attributes:
        rate: what is known of the spectra.
        largest: the largest singular value.
        finest: the smallest Δ.
    """

    def __init__(self, plan: AdapterPlan, gradient: torch.Tensor):
        self._plan = plan
        self._grams = gram_matrices(plan, gradient)
        self._found = leading_spectra(self._grams, _USUAL_RANK)
        self.rate = Rate(plan, self._found)
        self.largest = float(np.sqrt(max(spectrum.energies[0] for spectrum in self._found)))
        self.finest = float(np.float32(max(self.largest * _SMALLEST_STEP, _STEPS[0])))

    def bytes(self, step: float) -> float:
        """Predicted bytes of a payload."""
        return FRAME_BYTES + _STEP_BYTES + self.rate.bytes(step)

    def step(self, target: float) -> float:
        """Δ, an fp32 value, whose predicted bytes are within the target."""
        while True:
            wanted = self.rate.step(target - FRAME_BYTES - _STEP_BYTES, self.finest, max(self.finest, self.largest))
            short = self.rate.exhausted(wanted)
            if not short:
                return float(np.float32(min(wanted, _STEPS[1])))
            self._found = completed(self._grams, self._found, short)
            self.rate = Rate(self._plan, self._found)


def _empty_block(block: Block) -> LowRankBlock:
    return LowRankBlock(torch.zeros(block.rows, 0), torch.zeros(0, block.columns))


def _read_block(reader: SymbolReader, block: Block, classes: np.ndarray, U: np.ndarray, step: float) -> LowRankBlock:
    """A block of Ĝ whose basis integers, fp32, shape (k, r), have been read."""
    k, n = len(classes), sides(block)[1]
    if not k:
        return _empty_block(block)
    wide = block.rows <= block.columns
    factor = np.empty((k, n) if wide else (n, k), dtype=np.float32)
    V = factor if wide else factor.T
    shapes = reader.uniform(k, 2).tolist()
    for row, class_, laplacian in zip(V, classes.tolist(), shapes, strict=True):
        reader.integers(row, "laplace" if laplacian else "gauss", class_)
    exponents = grid_exponents(n)[classes - CLASSES[0]]
    U *= np.exp2(exponents[0] - exponents, dtype=np.float32)[:, None]  # the first component has the finest grid
    scale = float(np.float32(step * 2.0 ** -int(exponents[0])))
    left, right = (np.ascontiguousarray(U.T), factor) if wide else (factor, U)
    return LowRankBlock(torch.from_numpy(left), torch.from_numpy(right), scale)


def _encode_with_step(plan: AdapterPlan, matrices: list[torch.Tensor], choices: list[Choice], step: float) -> bytes:
    """The payload for a given Δ, whatever its length."""
    writer = SymbolWriter()
    for block, choice in zip(plan.blocks, choices, strict=True):
        writer.uniform(np.array([len(choice.classes)]), sides(block)[0] + 1)
    classes = [choice.classes for choice in choices]
    present = [found for found in classes if len(found)]
    if present:
        writer.uniform(np.array([found[0] - CLASSES[0] for found in present]), len(CLASSES))
        writer.steps(np.concatenate([-np.diff(found) for found in present]), len(CLASSES))
    for class_, members in _by_basis_class(plan, classes):
        writer.integers(np.concatenate([choices[b].basis[i] for b, i in members]), "basis", class_)
    for matrix, choice in zip(matrices, choices, strict=True):
        if not len(choice.classes):
            continue
        V, laplacian = quantize_coefficients(project(choice.fit, matrix), choice.classes)
        writer.uniform(laplacian, 2)
        for row, class_, is_laplacian in zip(V, choice.classes.tolist(), laplacian.tolist(), strict=True):
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
    ranks = [int(reader.uniform(1, sides(block)[0] + 1)[0]) for block in plan.blocks]
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
    for index, (block, found) in enumerate(zip(plan.blocks, classes, strict=True)):
        for component, class_ in enumerate(basis_classes(*sides(block))[found - CLASSES[0]].tolist()):
            members.setdefault(class_, []).append((index, component))
    yield from sorted(members.items())


def _read_bases(reader: SymbolReader, plan: AdapterPlan, classes: list[np.ndarray]) -> list[np.ndarray]:
    """Basis integers of each block, fp32, shape (k, r)."""
    bases = [np.empty((len(c), sides(b)[0]), np.float32) for b, c in zip(plan.blocks, classes, strict=True)]
    for class_, members in _by_basis_class(plan, classes):
        values = np.empty(sum(bases[b].shape[1] for b, _ in members), np.float32)
        reader.integers(values, "basis", class_)
        start = 0
        for index, component in members:
            row = bases[index][component]
            row[:] = values[start : start + len(row)]
            start += len(row)
    return bases
