"""The rate model of spar_rd: which components a step Δ sends, on which grids, and about how many bytes they take.

Blocks of equal sides are handled together, as arrays of (blocks, m) components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hilosync.compress.entropy import CLASSES
from hilosync.compress.quantize import (
    basis_class,
    classes_of,
    component_bits,
    fitting_rows,
    grid_exponent,
    octaves_of,
    quantize_bases,
    smallest_class,
)
from hilosync.compress.spectra import Spectrum
from hilosync.plan import AdapterPlan, Block

__all__ = ["Choice", "Rate", "basis_classes", "grid_exponents", "sides"]

_HEADER_BYTES = 8
"""Of the coder's last words and the like, about."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is sent of one block, k components.

    Attributes:
        classes: t, int64, shape (k,), not increasing.
        basis: u·2^q, int32, shape (k, r).
        fit: the P of V = P·G in units of Δ, fp32, shape (k, r).
    """

    classes: np.ndarray
    basis: np.ndarray
    fit: np.ndarray


def sides(block: Block) -> tuple[int, int]:
    """Short and long side: r, n."""
    return min(block.rows, block.columns), max(block.rows, block.columns)


@cache
def grid_exponents(n: int) -> np.ndarray:
    """q by class, from the smallest class on, int64."""
    return np.array([grid_exponent(class_, n) for class_ in CLASSES])


@cache
def basis_classes(r: int, n: int) -> np.ndarray:
    """Class of the basis vector's entries by class of the component, from the smallest class on, int64."""
    return np.array([basis_class(q, r) for q in grid_exponents(n).tolist()])


@cache
def _bits(r: int, n: int) -> np.ndarray:
    """Bits of a component by class; 0 for classes that are not sent."""
    return np.array([component_bits(t, r, n) if t >= smallest_class(r, n) else 0.0 for t in CLASSES])


class Rate:
    """The spectra of a gradient, ready to be asked what a step would send.

    Args:
        plan: the adapter's tensors.
        found: the spectrum of each block, or its leading part.
    """

    def __init__(self, plan: AdapterPlan, found: Sequence[Spectrum]):
        self._found = found
        self._fixed = _HEADER_BYTES + sum(math.log2(1 + sides(block)[0]) for block in plan.blocks) / 8
        self._groups: dict[tuple[int, int, int], list[int]] = {}
        for index, (block, spectrum) in enumerate(zip(plan.blocks, found, strict=True)):
            self._groups.setdefault((*sides(block), len(spectrum.energies)), []).append(index)
        self._octaves = {
            group: octaves_of(np.stack([found[index].energies for index in members]), group[1])
            for group, members in self._groups.items()
        }

    def bytes(self, step: float) -> float:
        """Bytes of all coded integers, about."""
        bits = [_bits(r, n)[classes_of(octaves, step) - CLASSES[0]] for (r, n, _), octaves in self._octaves.items()]
        return self._fixed + sum(float(found.sum()) for found in bits) / 8

    def step(self, target: float, finest: float, coarsest: float) -> float:
        """The smallest Δ whose predicted bytes are within the target, by bisection."""
        low, high = math.log(finest), math.log(coarsest)
        if self.bytes(finest) <= target:
            return finest
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if self.bytes(math.exp(middle)) <= target else (middle, high)
        return math.exp(high)

    def exhausted(self, step: float) -> list[int]:
        """Blocks of which Δ sends all components of a leading part, and so might send more."""
        found = []
        for (r, n, m), members in self._groups.items():
            last = classes_of(self._octaves[r, n, m][:, -1], step)
            if m < r:
                found += [index for index, class_ in zip(members, last, strict=True) if class_ >= smallest_class(r, n)]
        return sorted(found)

    def choose(self, step: float) -> list[Choice]:
        """What Δ sends of each block, in plan order."""
        choices: dict[int, Choice] = {}
        for (r, n, m), members in self._groups.items():
            classes = classes_of(self._octaves[r, n, m], step)
            sent = classes >= smallest_class(r, n)
            counts = sent.sum(axis=1)
            most = int(counts.max())
            exponents = np.where(sent, grid_exponents(n)[classes - CLASSES[0]], -1)[:, :most]
            bases = np.stack([self._found[index].basis[:, :most].cpu().numpy() for index in members])
            integers = quantize_bases(bases, exponents)
            fits = fitting_rows(integers, exponents, step)
            for row, (index, k) in enumerate(zip(members, counts.tolist(), strict=True)):
                choices[index] = Choice(classes[row, :k], integers[row, :k], fits[row, :k])
        return [choices[index] for index in range(len(self._found))]
