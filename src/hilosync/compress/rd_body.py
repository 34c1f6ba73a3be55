"""The body of spar_rd's payload: what an encoder has chosen and quantized, as range coder words, and back.

The layout is that of `spar_rd`. What belongs to one table is coded in one stretch, over all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hilosync.arithmetic.gradient import DecodedGradient, LowRankBlock
from hilosync.compress.coefficients import quantize_coefficients, symbol_counts
from hilosync.compress.corrected import CorrectedGradient
from hilosync.compress.entropy import SymbolReader, SymbolWriter
from hilosync.compress.finite import LARGEST_PRODUCT, require_finite_product
from hilosync.compress.rate import Choice, Components
from hilosync.compress.symbols import count_escaped, fill_factors, gather
from hilosync.compress.tables import CLASSES, COEFFICIENT_SHAPES, groupings
from hilosync.errors import MalformedPayload
from hilosync.plan import AdapterPlan

__all__ = ["read_components", "read_factors", "write_body"]


def _rank_symbols(plan: AdapterPlan) -> int:
    """Ranks that some block of the plan may have."""
    return 1 + int(plan.sides[:, 0].max())


def write_body(gradient: torch.Tensor | CorrectedGradient, choice: Choice) -> bytes:
    """The range coder's words for what is sent of a gradient."""
    parts = choice.components
    writer, leads = SymbolWriter(), parts.leads()
    writer.steps(parts.ranks, _rank_symbols(parts.plan))
    writer.uniform(parts.classes[leads] - CLASSES[0], len(CLASSES))
    writer.steps(-np.diff(parts.classes, prepend=0)[~leads], len(CLASSES))
    short = parts.short_sides()
    entries = _stretches(parts.basis_classes(), short)
    bases = _gathered(choice.bases, short, entries.order)
    for class_, run in entries.runs:
        writer.bases(bases[run], class_)

    found = quantize_coefficients(gradient, choice)
    writer.uniform(found.laplacian, 2)
    places = _stretches(2 * parts.classes + found.laplacian, found.counts)
    symbols = _gathered(found.symbols, found.counts, places.order)
    for kind, run in places.runs:
        writer.groups(symbols[run], COEFFICIENT_SHAPES[kind % 2], kind // 2)
    places = _stretches(2 * parts.classes + found.laplacian, found.escaped)
    integers = _gathered(found.apart, found.escaped, places.order)
    for kind, run in places.runs:
        writer.integers(integers[run], COEFFICIENT_SHAPES[kind % 2], kind // 2)
    return writer.finish()


def read_components(reader: SymbolReader, plan: AdapterPlan) -> Components:
    """Ranks and classes, the beginning of a body.

    Raises:
        MalformedPayload: a block cannot have them.
    """
    ranks = reader.steps(len(plan.blocks), _rank_symbols(plan)).astype(np.int64)
    for index in np.flatnonzero(ranks > plan.sides[:, 0]).tolist():
        block = plan.blocks[index]
        raise MalformedPayload(f"rank {ranks[index]} of {block.name} is beyond its {block.rows} × {block.columns}")
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
    plan, short = parts.plan, parts.short_sides()
    entries, bases = _stretches(parts.basis_classes(), short), np.empty(int(short.sum()), np.int32)
    for class_, run in entries.runs:
        bases[run] = reader.bases(run.stop - run.start, class_)
    laplacian = reader.uniform(len(short), 2)
    counts = symbol_counts(parts, laplacian)
    tables, kinds = 2 * parts.classes + laplacian, groupings()[laplacian, :, parts.classes - CLASSES[0]].T.copy()
    places, symbols = _stretches(tables, counts), np.empty(int(counts.sum()), np.int16)
    for kind, run in places.runs:
        symbols[run] = reader.groups(run.stop - run.start, COEFFICIENT_SHAPES[kind % 2], kind // 2)
    escaped = np.empty(len(short), np.int64)
    count_escaped(symbols, places.starts, kinds, parts.long_sides(), escaped)
    apart, integers = _stretches(tables, escaped), np.empty(int(escaped.sum()), np.int32)
    for kind, run in apart.runs:
        integers[run] = reader.integers(run.stop - run.start, COEFFICIENT_SHAPES[kind % 2], kind // 2)
    reader.finish()

    exponents = parts.exponents()
    # A block's first component has its finest grid; powers of two are made from their exponents, exactly.
    finest = np.repeat(exponents[parts.leads()], parts.ranks[parts.ranks > 0])
    grids = np.ldexp(np.float32(1), finest - exponents)
    rows, columns = np.array([(block.rows, block.columns) for block in plan.blocks]).T.copy()
    row_ends, column_ends = np.cumsum(parts.ranks * rows), np.cumsum(parts.ranks * columns)
    # Two arrays rather than one: C libraries keep blocks of up to 32 MB at hand, and clear larger ones.
    lefts, rights = np.empty(row_ends[-1], np.float32), np.empty(column_ends[-1], np.float32)
    fill_factors(
        symbols,
        places.starts,
        kinds,
        integers,
        apart.starts,
        bases,
        entries.starts,
        grids,
        parts.ranks,
        rows,
        columns,
        lefts,
        rights,
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

    largest = max(int(kinds[0].max(initial=0)), int(np.abs(integers).max(initial=0)))
    widest = int(np.abs(bases).max(initial=0)) * float(grids.max(initial=1))
    bound = max(scales) * max(parts.ranks) * widest * largest
    if not bound < LARGEST_PRODUCT:
        for block, factors in zip(plan.blocks, decoded, strict=True):
            require_finite_product(block, factors)
    return tuple(decoded)


@dataclass(frozen=True, slots=True)
class _Stretches:
    """How numbers of components are lined up so that those of one table follow each other.

    Attributes:
        order: of the components, int64.
        starts: where the numbers of each component begin, int64.
        runs: each table's key, ascending, and the extent of its numbers.
    """

    order: np.ndarray
    starts: np.ndarray
    runs: list[tuple[int, slice]]


def _stretches(keys: np.ndarray, lengths: np.ndarray) -> _Stretches:
    """From the key of each component's table, and how many numbers it has."""
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(lengths[order])
    starts = np.empty_like(ends)
    starts[order] = ends - lengths[order]
    distinct, counts = np.unique(keys, return_counts=True)
    bounds = [0, *ends[np.cumsum(counts) - 1].tolist()]
    runs = [(key, slice(*bounds[i : i + 2])) for i, key in enumerate(distinct.tolist()) if bounds[i] < bounds[i + 1]]
    return _Stretches(order, starts, runs)


def _gathered(values: np.ndarray, lengths: np.ndarray, order: np.ndarray) -> np.ndarray:
    """What lies component after component, in this order of components, int32."""
    out = np.empty(len(values), np.int32)
    gather(values, np.cumsum(lengths) - lengths, lengths, order, out)
    return out
