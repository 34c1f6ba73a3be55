"""The rate model of spar_rd: which components a step Δ sends, on which grids, and about how many bytes they take.

The components of all blocks are handled together, as flat arrays in plan order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hilosync.arithmetic.compilation import kernel
from hilosync.compress.quantize import (
    basis_classes,
    classes_of,
    component_bits,
    fit_bases,
    grid_exponents,
    octaves_of,
    smallest_class,
)
from hilosync.compress.spectra import Spectrum
from hilosync.compress.tables import CLASSES
from hilosync.plan import AdapterPlan, Block

__all__ = ["RANK_BITS", "Choice", "Components", "Rate", "sides"]

RANK_BITS = 1.4
"""Of a block without components, about; each component takes another bit."""

_HEADER_BYTES = 8
"""Of the coder's last words and the like, about."""

_HALVINGS = 24
"""Of the range of Δ, in its logarithm."""


def sides(block: Block) -> tuple[int, int]:
    """Short and long side: r, n."""
    return min(block.rows, block.columns), max(block.rows, block.columns)


@dataclass(frozen=True, slots=True)
class Components:
    """Which components are sent of each block of a plan.

    Attributes:
        plan: the adapter's tensors.
        ranks: k of each block, int64, shape (blocks,).
        classes: t of each component, not increasing within a block, int64, shape (components,).
    """

    plan: AdapterPlan
    ranks: np.ndarray
    classes: np.ndarray

    def each(self, of_blocks: Sequence[int] | np.ndarray) -> np.ndarray:
        """One value per block as one per component."""
        return np.repeat(np.asarray(of_blocks, np.int64), self.ranks)

    def short_sides(self) -> np.ndarray:
        """r of each component's block."""
        return self.each(self.plan.sides[:, 0])

    def long_sides(self) -> np.ndarray:
        """n of each component's block."""
        return self.each(self.plan.sides[:, 1])

    def leads(self) -> np.ndarray:
        """Whether a component is its block's first, bool."""
        return np.diff(self.each(range(len(self.ranks))), prepend=-1) > 0

    def exponents(self) -> np.ndarray:
        """q of each component's basis vector, int64."""
        return grid_exponents(self.classes, self.short_sides(), self.long_sides(), self.each(self.ranks))

    def basis_classes(self) -> np.ndarray:
        """Class of the entries of each component's basis vector, int64."""
        return basis_classes(self.exponents(), self.short_sides())


@dataclass(frozen=True, slots=True)
class Choice:
    """What is sent of a gradient.

    Attributes:
        components: their ranks and classes.
        bases: u·2^q of one component after another, int32, flat.
        fits: the P of V = P·G in units of Δ, one row after another, fp32, flat.
    """

    components: Components
    bases: np.ndarray
    fits: np.ndarray


@cache
def _bits(r: int, n: int) -> np.ndarray:
    """Bits of a component by class; 0 for classes that are not sent."""
    return np.array([component_bits(t, r, n) if t >= smallest_class(r, n) else 0.0 for t in CLASSES])


@kernel
def _total_bits(octaves, kinds, times, bits, shift, smallest):
    """Bits of components of these octaves, each of them so many times, at 4·log₂(Δ) = shift.

    A row of `bits` is by class.
    """
    total = 0.0
    for i in range(len(octaves)):
        place = min(max(np.rint(octaves[i] - shift) - smallest, 0), bits.shape[1] - 1)
        total += times[i] * bits[kinds[i], int(place)]
    return total


class Rate:
    """Predicts what a step Δ sends and costs.

    Args:
        plan: the adapter's tensors.
        found: the spectrum of each block, or its leading part.
    """

    def __init__(self, plan: AdapterPlan, found: Sequence[Spectrum]):
        self._plan, self._found = plan, found
        of_blocks = [sides(block) for block in plan.blocks]
        distinct = sorted(set(of_blocks))
        self._fixed = _HEADER_BYTES + len(plan.blocks) * RANK_BITS / 8
        self._bits = np.stack([_bits(r, n) for r, n in distinct])
        self._counts = np.array([len(spectrum.energies) for spectrum in found])
        kinds = np.array([distinct.index(pair) for pair in of_blocks])
        self._smallest = np.array([smallest_class(r, n) for r, n in of_blocks])
        self._short, long = np.array(of_blocks).T
        energies = np.concatenate([spectrum.energies for spectrum in found])
        self._octaves = octaves_of(energies, np.repeat(long, self._counts))
        # What has not been looked for is taken as equal components, at most as large as the last that has been found.
        missing = self._short - self._counts
        largest = energies[np.cumsum(self._counts) - 1]
        rests = np.array([spectrum.rest for spectrum in found])
        mean = np.clip(rests / np.maximum(missing, 1), 0, largest)
        self._rests = octaves_of(mean, long)
        self._all = (
            np.concatenate([self._octaves, self._rests]),
            np.concatenate([np.repeat(kinds, self._counts), kinds]),
            np.concatenate([np.ones(len(energies), np.int64), missing]),
        )

    def bytes(self, step: float) -> float:
        """Bytes of all coded integers, about."""
        bits = _total_bits(*self._all, self._bits, 4 * math.log2(step), float(CLASSES[0]))
        return self._fixed + bits / 8

    def step(self, target: float, finest: float, coarsest: float) -> float:
        """The smallest Δ whose predicted bytes are within the target, by bisection."""
        low, high = math.log(finest), math.log(coarsest)
        if self.bytes(finest) <= target:
            return finest
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.bytes(math.exp(middle)) <= target else (middle, high)
        return math.exp(high)

    def exhausted(self, step: float) -> list[int]:
        """Blocks of which Δ might send more than their leading part.

        It sends all of that, or what has not been looked for is on average less than half a class below what is sent.
        """
        ranks = self._ranks(classes_of(self._octaves, step))
        near = self._rests - 4 * math.log2(step) >= self._smallest - 1
        return np.flatnonzero(((ranks == self._counts) | near) & (self._counts < self._short)).tolist()

    def choose(self, step: float) -> Choice:
        """What Δ sends of all blocks."""
        classes = classes_of(self._octaves, step)
        ranks = self._ranks(classes)
        # Of each block the leading ones.
        places = np.arange(len(classes)) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)
        components = Components(self._plan, ranks, classes[places < np.repeat(ranks, self._counts)])
        entries = int((ranks * self._short).sum())
        bases, fits = np.empty(entries, np.int32), np.empty(entries, np.float32)
        found = np.concatenate([spectrum.basis.T.cpu().numpy().ravel() for spectrum in self._found])
        fit_bases(found, self._short, self._counts, ranks, components.exponents(), step, bases, fits)
        return Choice(components, bases, fits)

    def _ranks(self, classes: np.ndarray) -> np.ndarray:
        """Components of each block that are worth their bits, all of them before all others."""
        worth = classes >= np.repeat(self._smallest, self._counts)
        return np.add.reduceat(worth.astype(np.int64), np.cumsum(self._counts) - self._counts)
