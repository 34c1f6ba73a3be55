"""spar_rd: the rate–distortion coder, Spar's singular bases with a transform coder's quantizer.

Each block's gradient is taken to its singular basis (the Karhunen–Loève transform of its columns),
all coefficients of all blocks are rounded with one step Δ, and the integers are range coded. Δ is
searched so that the payload just fits the budget; what rounding loses falls into the residual E.
`quantize` says how classes, grids and tables follow from Δ.

    Ĝ = Δ·2^−q · Σ_k u_k·v_k      u, v integers, q the finest grid exponent of the block

Body of the payload (frame in `payload`), little endian:

    f4          Δ; 0 for the zero gradient, and then nothing follows
    u4 …        range coder words (`entropy`), which hold
        rank k of each block, in plan order, a geometric model up to the largest r of the plan
        first class of each block that has components, uniform
        decrease of the class from each component to the next, a geometric model
        basis vectors of all components, those of one basis class together, classes ascending, grouped
        one bit per component, its coefficients' shape
        coefficients of all components, those of one class and shape together, classes ascending, Gaussian
            first; the n integers of each component grouped
        the integers of escaped groups, one by one, in the same order of components

Sums of |u·v| stay below 2^24 by the choice of Δ, so fp32 products of the integer factors are exact
in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.entropy import SymbolReader
from hilosync.compress.payload import FRAME_BYTES, Kind, seal, unseal
from hilosync.compress.quantize import component_bits
from hilosync.compress.rate import RANK_BITS, Rate, sides
from hilosync.compress.rd_body import read_components, read_factors, write_body
from hilosync.compress.spectra import completed, gram_matrices, leading_spectra
from hilosync.compress.state import require_names, saved_scalar, scalar_tensor
from hilosync.compress.tables import CLASSES
from hilosync.errors import BudgetTooSmall, MalformedPayload
from hilosync.plan import AdapterPlan

__all__ = ["SparRD"]


_STEP_BYTES = 4
_SMALLEST_STEP = 2.0**-14
"""Smallest Δ in units of the largest singular value, which no column's norm is beyond: with grids of 2^−9, |u·v| sums
stay near 2^23 at most, and below 2^24 for bases whose rounding the fit makes up for."""

_STEPS = (2.0**-115, 2.0**126)
"""Steps that a payload may have: Δ·2^−q is a normal fp32 value, and 1/Δ is finite.

The largest is beyond what the coefficients of any gradient that may be encoded ask for: their scale
is at most 2^120·√r.
"""

_TARGET, _ENOUGH = 0.992, 0.98
"""Share of the budget that a search for Δ aims at, and that ends it."""

_TRIES = 5
"""Encodings of a gradient at most, while one fits the budget."""

_USUAL_RANK, _ROUNDS = 16, 3
"""Components to look for first, and in how many rounds; the usual budget seldom gives a block more."""

_GROW = 1.05
"""Growth of Δ when predictions find nothing that fits."""


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
    takes_sums = True

    def settings(self) -> dict[str, Any]:
        """Nothing: the plan says all that `decode` needs."""
        return {}

    def smallest_payload(self, plan: AdapterPlan) -> int:
        """Bytes within which a component of the cheapest block surely fits."""
        components = (component_bits(CLASSES[len(CLASSES) // 2], *sides(block)) for block in plan.blocks)
        ranks = len(plan.blocks) * RANK_BITS
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

    def encode(
        self, plan: AdapterPlan, state: float, gradient: torch.Tensor | CorrectedGradient, budget: int
    ) -> tuple[bytes, float]:
        """Searches Δ, quantizes and codes; see `Compressor.encode`."""
        if budget < (smallest := self.smallest_payload(plan)):
            raise BudgetTooSmall(
                f"spar_rd needs at least {smallest} bytes of payload for this plan, got {budget}; raise the budget"
            )
        search = _Search(plan, gradient)
        if not search.largest > 0:
            return _payload(0.0), state
        correction, best = state, None
        # The largest Δ that was too fine, and the smallest that fitted.
        over, fits = 0.0, math.inf
        for _ in range(_TRIES):
            step = search.step(_TARGET * budget / correction)
            if not over < step < fits:
                # Bytes change in jumps, so that a prediction may miss the same way again.
                if fits == math.inf:
                    step = _GROW * over
                else:
                    step = math.sqrt(over * fits) if over else max(fits / _GROW, search.finest)
                step = float(np.float32(step))
                if not over < step < min(fits, _STEPS[1]):
                    break
            payload = _payload(step, write_body(gradient, search.rate.choose(step)))
            correction = len(payload) / search.bytes(step)
            if len(payload) > budget:
                over = max(over, step)
                continue
            fits = min(fits, step)
            best = payload if best is None or len(payload) > len(best) else best
            if len(best) >= _ENOUGH * budget or step == search.finest:
                break
        step = over
        while best is None:
            step = float(np.float32(step * _GROW))
            if step > _STEPS[1]:
                # No step that a payload may have is coarse enough: all of the gradient stays in E.
                return _payload(0.0), state
            payload = _payload(step, write_body(gradient, search.rate.choose(step)))
            best = payload if len(payload) <= budget else None
        return best, correction

    def decode(self, plan: AdapterPlan, payload: bytes | memoryview) -> DecodedGradient:
        """Reads the integers; see `Compressor.decode`."""
        step, words = _open(payload)
        if step == 0.0:
            return tuple(LowRankBlock(torch.zeros(b.rows, 0), torch.zeros(0, b.columns)) for b in plan.blocks)
        reader = SymbolReader(words)
        return read_factors(reader, read_components(reader, plan), step)

    def describe(self, plan: AdapterPlan, payload: bytes | memoryview) -> list[dict[str, Any]]:
        """Rank and bytes of each block; bytes are the payload's, shared out as the model predicts."""
        step, words = _open(payload)
        ranks, classes = np.zeros(len(plan.blocks), np.int64), np.zeros(0, np.int64)
        if step != 0.0:
            parts = read_components(SymbolReader(words), plan)
            ranks, classes = parts.ranks, parts.classes
        bits = np.array(
            [
                sum(component_bits(class_, *sides(block)) for class_ in found.tolist())
                for block, found in zip(plan.blocks, np.split(classes, np.cumsum(ranks)[:-1]), strict=True)
            ]
        )
        share = (len(memoryview(payload)) - FRAME_BYTES - _STEP_BYTES) * bits / max(1.0, bits.sum())
        return [
            {"name": block.name, "rank": rank, "bytes": int(size)}
            for block, rank, size in zip(plan.blocks, ranks.tolist(), share, strict=True)
        ]


class _Search:
    """The spectra of a gradient, as many components of each block as a step asks for.

    Attributes:
        rate: what is known of the spectra.
        largest: the largest singular value.
        finest: the smallest Δ.
    """

    def __init__(self, plan: AdapterPlan, gradient: torch.Tensor | CorrectedGradient):
        self._plan = plan
        self._grams = gram_matrices(plan, gradient)
        self._found = leading_spectra(self._grams, _USUAL_RANK, _ROUNDS)
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


def _payload(step: float, words: bytes = b"") -> bytes:
    return seal(Kind.SPAR_RD, np.float32(step).astype("<f4").tobytes(), words)


def _open(payload: bytes | memoryview) -> tuple[float, memoryview]:
    """Δ, 0 for no gradient, and the range coder's words."""
    body = unseal(Kind.SPAR_RD, payload)
    if len(body) < _STEP_BYTES:
        raise MalformedPayload(f"expected a body of at least {_STEP_BYTES} bytes, got {len(body)}")
    step, words = float(np.frombuffer(body[:_STEP_BYTES], dtype="<f4")[0]), body[_STEP_BYTES:]
    if not _STEPS[0] <= step <= _STEPS[1] and not (step == 0.0 and not words):
        raise MalformedPayload(f"expected a step between {_STEPS[0]:.0e} and {_STEPS[1]:.0e}, got {step}")
    return step, words
