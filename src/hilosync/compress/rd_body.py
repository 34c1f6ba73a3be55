"""The body of spar_rd's payload: what an encoder has chosen and quantized, as range coder words, and back.

The layout is that of `spar_rd`. What belongs to one table is coded in one stretch, over all blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.coefficients import quantize_coefficients, symbol_counts
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.entropy import LARGEST_INTEGER, SymbolReader, SymbolWriter
from hilosync.compress.finite import LARGEST_PRODUCT, require_finite_product
from hilosync.compress.rate import Choice, Components, sides
from hilosync.compress.symbols import escaped_places, fill_factors
from hilosync.compress.tables import CLASSES, Shape, grouping, groupings
from hilosync.errors import MalformedPayload
from hilosync.plan import AdapterPlan

__all__ = ["read_components", "read_factors", "write_body"]

_SHAPES: tuple[Shape, Shape] = ("gauss", "laplace")
"""Of a component's coefficients, by the bit that stands for it."""


def _rank_symbols(plan: AdapterPlan) -> int:
    """Ranks that some block of the plan may have."""
    return 1 + max(sides(block)[0] for block in plan.blocks)


def write_body(gradient: torch.Tensor | CorrectedGradient, choice: Choice) -> bytes:
    """The range coder's words for what is sent of a gradient."""
    parts = choice.components
    writer, leads = SymbolWriter(), parts.leads()
    writer.steps(parts.ranks, _rank_symbols(parts.plan))
    writer.uniform(parts.classes[leads] - CLASSES[0], len(CLASSES))
    writer.steps(-np.diff(parts.classes, prepend=0)[~leads], len(CLASSES))
    entries = np.cumsum(parts.short_sides())
    for class_, members in _stretches(parts.basis_classes()):
        writer.grouped(_slices(choice.bases, entries, members), "basis", class_)

    found = quantize_coefficients(gradient, choice)
    writer.uniform(found.laplacian, 2)
    for shape, class_, members in _kinds(parts, found.laplacian):
        writer.groups(_slices(found.symbols, found.ends, members), shape, class_)
    for c in sorted(found.escaped):
        writer.integers(found.escaped[c], _SHAPES[found.laplacian[c]], int(parts.classes[c]))
    return writer.finish()


def read_components(reader: SymbolReader, plan: AdapterPlan) -> Components:
    """Ranks and classes, the beginning of a body.

    Raises:
        MalformedPayload: a block cannot have them.
    """
    ranks = reader.steps(len(plan.blocks), _rank_symbols(plan)).astype(np.int64)
    for block, rank in zip(plan.blocks, ranks.tolist(), strict=True):
        if rank > sides(block)[0]:
            raise MalformedPayload(f"rank {rank} of {block.name} is beyond its {block.rows} × {block.columns}")
    blocks = np.repeat(np.arange(len(ranks)), ranks)
    leads = np.diff(blocks, prepend=-1) > 0
    first = reader.uniform(int(leads.sum()), len(CLASSES))
    changes = np.zeros(len(blocks), np.int64)
    changes[~leads] = -reader.steps(int((~leads).sum()), len(CLASSES))
    fallen = np.cumsum(changes)
    places = fallen + np.repeat(first - fallen[leads], ranks[ranks > 0])
    if len(below := np.flatnonzero(places < 0)):
        name = plan.blocks[blocks[below[0]]].name
        raise MalformedPayload(f"the components of {name} have classes below the smallest")
    return Components(plan, ranks, places + CLASSES[0])


def read_factors(reader: SymbolReader, parts: Components, step: float) -> DecodedGradient:
    """Ĝ, from a reader that stands behind the components; uses up its words.

    Raises:
        MalformedPayload: words are left over, or a product of factors may leave fp32's range.
    """
    plan, counts = parts.plan, symbol_counts(parts)
    short = parts.short_sides()
    bases, entries, end = np.empty(int(short.sum()), np.int32), np.empty(len(short), np.int64), 0
    for class_, members in _stretches(parts.basis_classes()):
        start, end = end, _append(end, short, members, entries)
        bases[start:end] = reader.grouped(end - start, "basis", class_)
    laplacian = reader.uniform(len(counts), 2)
    symbols, starts, end = np.empty(int(counts.sum()), np.int16), np.empty(len(counts), np.int64), 0
    for shape, class_, members in _kinds(parts, laplacian):
        start, end = end, _append(end, counts, members, starts)
        symbols[start:end] = reader.groups(end - start, shape, class_)

    exponents = parts.exponents()
    # A block's first component has its finest grid; powers of two are made from their exponents, exactly.
    finest = np.repeat(exponents[parts.leads()], parts.ranks[parts.ranks > 0])
    grids = np.ldexp(np.float32(1), finest - exponents)
    reaches, sizes = groupings()[:, parts.classes - CLASSES[0]]
    rows, columns = np.array([(block.rows, block.columns) for block in plan.blocks]).T.copy()
    row_ends, column_ends = np.cumsum(parts.ranks * rows), np.cumsum(parts.ranks * columns)
    # Two arrays rather than one: C libraries keep blocks of up to 32 MB at hand, and clear larger ones.
    lefts, rights = np.empty(row_ends[-1], np.float32), np.empty(column_ends[-1], np.float32)
    escaped = np.empty(len(counts), np.int32)
    fill_factors(
        symbols, starts, reaches, sizes, bases, entries, grids, parts.ranks, rows, columns, lefts, rights, escaped
    )

    scales = np.ones(len(plan.blocks))
    scales[parts.ranks > 0] = step * np.exp2(-exponents[parts.leads()])
    flat_left, flat_right = torch.from_numpy(lefts), torch.from_numpy(rights)
    # One call for each view: hundreds of splits take longer than some kernels.
    decoded = [
        LowRankBlock(
            flat_left.as_strided((block.rows, k), (k, 1), row_end - block.rows * k),
            flat_right.as_strided((k, block.columns), (block.columns, 1), column_end - k * block.columns),
            scale,
        )
        for block, k, scale, row_end, column_end in zip(
            plan.blocks, parts.ranks.tolist(), scales.tolist(), row_ends.tolist(), column_ends.tolist(), strict=True
        )
    ]

    blocks, places = parts.each(range(len(decoded))), parts.each(np.cumsum(parts.ranks) - parts.ranks)
    for c in np.flatnonzero(escaped).tolist():
        factors, class_ = decoded[blocks[c]], int(parts.classes[c])
        tall = factors.left.shape[0] > factors.right.shape[1]
        row = (factors.left[:, c - places[c]] if tall else factors.right[c - places[c]]).numpy()
        apart = escaped_places(symbols[starts[c] : starts[c] + counts[c]], grouping(class_).escape, sizes[c], len(row))
        row[apart] = reader.integers(len(apart), _SHAPES[laplacian[c]], class_)
    reader.finish()

    largest = LARGEST_INTEGER if escaped.any() else int(reaches.max(initial=0))
    bound = max(scales) * max(parts.ranks) * int(np.abs(bases).max(initial=0)) * largest
    if not bound < LARGEST_PRODUCT:
        for block, factors in zip(plan.blocks, decoded, strict=True):
            require_finite_product(block, factors)
    return tuple(decoded)


def _stretches(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Distinct keys, ascending, each with the positions that have it, ascending."""
    order = np.argsort(keys, kind="stable")
    distinct, counts = np.unique(keys, return_counts=True)
    for key, start, count in zip(distinct.tolist(), np.cumsum(counts) - counts, counts, strict=True):
        yield key, order[start : start + count]


def _kinds(parts: Components, laplacian: np.ndarray) -> Iterator[tuple[Shape, int, np.ndarray]]:
    """Classes and shapes that coefficients have, classes ascending, each with its components."""
    for kind, members in _stretches(2 * parts.classes + laplacian):
        yield _SHAPES[kind % 2], kind // 2, members


def _append(end: int, lengths: np.ndarray, members: np.ndarray, starts: np.ndarray) -> int:
    """Gives members their starts, one after another from `end` on; returns the new end."""
    ends = end + np.cumsum(lengths[members])
    starts[members] = ends - lengths[members]
    return int(ends[-1])


def _slices(values: np.ndarray, ends: np.ndarray, members: np.ndarray) -> np.ndarray:
    """What belongs to these members of a flat array, one after another, int32."""
    bounds = np.concatenate([[0], ends])
    starts, stops = bounds[members].tolist(), bounds[members + 1].tolist()
    return np.concatenate([values[a:b] for a, b in zip(starts, stops, strict=True)], dtype=np.int32)
