"""From numbers to the range coder's symbols and back, in passes over whole components.

A component's n integers make m = ⌈n/g⌉ symbols of g integers each (`tables.grouping`). They are grouped
across, not along: symbol j holds the integers j, j + m, j + 2m, …, so all loops run over adjacent
numbers; beyond n there are zeros. The passes are written for 32-bit integers throughout, since a product
of two is 64 bits wide in Numba, and vectors of those are slow.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from hilosync.arithmetic.compilation import helper, kernel
from hilosync.compress.tables import Grouping

__all__ = [
    "count_escaped",
    "escaped_places",
    "fill_factors",
    "gather",
    "group",
    "group_coefficients",
    "symbol_counts",
    "ungroup",
]

_ESCAPED = np.int32(1 << 20)
"""Added to a symbol by each of its integers that is out of reach; more than any symbol."""

_RECIPROCAL_BITS = 20
"""Of 1/(2M + 1) as an integer; exact for quotients of 14-bit numbers by numbers below 64, within 32 bits."""

_MOST = np.float32(2)
"""More than it costs to round any integer the other way."""

_BETWEEN_SHAPES = 0.753
"""E|x|/√E[x²] is 0.798 for a Gaussian and 0.707 for a Laplacian variable; the middle decides."""

_LINE = 16
"""Numbers of 32 bits in a line of the cache."""

_sums: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})


@_sums
def _magnitudes(values):
    """Σ|x| and Σx²."""
    magnitudes, squares = np.float32(0), np.float32(0)
    for j in range(len(values)):
        magnitudes += abs(values[j])
        squares += values[j] * values[j]
    return magnitudes, squares


@helper
def _round_plane(values, offset, reach, weight, symbols):
    """Adds one integer to each symbol: ⌊|x| + offset⌋ with the sign of x."""
    widest = np.uint32(2 * reach)
    for j in range(len(values)):
        rounded = np.int32(abs(values[j]) + offset)
        digit = np.int32((rounded if values[j] >= 0 else np.int32(-rounded)) + reach)
        # As unsigned words, negative digits are the largest: one comparison finds both sides.
        part = np.int32(digit * weight) if np.uint32(digit) <= widest else _ESCAPED
        symbols[j] = np.int32(symbols[j] + part)


@helper
def _find_changes(values, offset, reach, weight, costs, changes):
    """Of each symbol the integer that is nearest to being rounded the other way, and what that adds to the symbol."""
    half = np.float32(0.5) - offset
    for j in range(len(values)):
        magnitude = abs(values[j])
        rounded = np.int32(magnitude + offset)
        # From the middle of what becomes this integer, −½ … ½; a zero has nothing below, and the reach nothing above.
        away = magnitude - np.float32(rounded) - half
        up = (away >= 0 and rounded < reach) or rounded == 0
        cost = np.float32(0.5) - (away if up else -away)
        change = np.int32(weight if up == (values[j] >= 0) else -weight)
        changes[j] = change if cost < costs[j] else changes[j]
        costs[j] = min(cost, costs[j])


@helper
def _make_even(symbols, changes, odd):
    """Makes the sums of groups even, and halves their symbols."""
    for j in range(len(symbols)):
        change = changes[j] if (symbols[j] & np.int32(1)) != odd else np.int32(0)
        whole = np.int32(symbols[j] + change)
        symbols[j] = np.int32(whole >> np.int32(1)) if symbols[j] < _ESCAPED else symbols[j]


@helper
def _group_plane(values, reach, weight, symbols):
    widest = np.uint32(2 * reach)
    for j in range(len(values)):
        digit = np.int32(values[j] + reach)
        part = np.int32(digit * weight) if np.uint32(digit) <= widest else _ESCAPED
        symbols[j] = np.int32(symbols[j] + part)


@helper
def _odd(reach, size, even):
    return np.int32(np.int32(size * reach) & even)


@helper
def _escape(reach, size, even):
    """See `Grouping`."""
    return np.int32(np.int32(np.int32((2 * reach + 1) ** size) + even - _odd(reach, size, even)) >> even)


@helper
def _pad(symbols, reach, weight):
    for j in range(len(symbols)):
        symbols[j] += reach * weight


@helper
def _finish(sums, escape, symbols):
    """Writes symbols, all marked ones as the escape; returns how many are."""
    escaped = np.int32(0)
    for j in range(len(sums)):
        beyond = sums[j] >= _ESCAPED
        symbols[j] = escape if beyond else sums[j]
        escaped += np.int32(beyond)
    return escaped


@kernel
def group_coefficients(fitted, offsets, kinds, symbols, laplacian, counts, escaped, apart):
    """Rounds the coefficients of a block to integers and groups them; returns how many are in escaped groups.

    Where only groups of an even sum have symbols, one integer of every other group is rounded the other way: the one
    nearest to it.

    Args:
        fitted: fp32, shape (k, n).
        offsets: of the rounding by component, fp32, shape (k,).
        kinds: reach, size and evenness of the groups by shape and component, int32, shape (2, 3, k).
        symbols: where the symbols go, one component after another, int16, flat.
        laplacian: 1 where the Laplacian table suits a component better, afterwards, int32, shape (k,).
        counts: symbols by component, afterwards, int64, shape (k,).
        escaped: integers of escaped groups by component, afterwards, int64, shape (k,).
        apart: where these integers go, group by group, one component after another, int32, flat.
    """
    n, start, beyond = fitted.shape[1], 0, 0
    scratch, costs, changes = np.empty(n, np.int32), np.empty(n, np.float32), np.zeros(n, np.int32)
    for c in range(len(fitted)):
        magnitudes, squares = _magnitudes(fitted[c])
        laplacian[c] = shape = np.int32(magnitudes < _BETWEEN_SHAPES * np.sqrt(np.float64(squares) * n))
        reach, size, even, weight = kinds[shape, 0, c], kinds[shape, 1, c], kinds[shape, 2, c], np.int32(1)
        counts[c] = count = (n + size - 1) // size
        sums = scratch[:count]
        sums[:] = 0
        costs[:count] = _MOST
        for first in range(0, count * size, count):
            values = fitted[c, first : min(first + count, n)]
            _round_plane(values, offsets[c], reach, weight, sums)
            if even:
                _find_changes(values, offsets[c], reach, weight, costs, changes)
            _pad(sums[len(values) :], reach, weight)
            weight = np.int32(weight * (2 * reach + 1))
        if even:
            _make_even(sums, changes, _odd(reach, size, even))
        escape, escaped[c] = _escape(reach, size, even), 0
        if _finish(sums, escape, symbols[start : start + count]):
            for j in range(count):
                if symbols[start + j] == escape:
                    for place in range(j, n, count):
                        rounded = np.int32(abs(fitted[c, place]) + offsets[c])
                        apart[beyond + escaped[c]] = rounded if fitted[c, place] >= 0 else -rounded
                        escaped[c] += 1
        beyond += escaped[c]
        start += count
    return beyond


@kernel
def group(values, reach, size, symbols):
    """Groups integers, int32, shape (n,), into symbols, int32, shape (⌈n/g⌉,); returns how many are escaped."""
    n, count = len(values), len(symbols)
    symbols[:] = 0
    reach, weight = np.int32(reach), np.int32(1)
    for first in range(0, count * size, count):
        plane = values[first : min(first + count, n)]
        _group_plane(plane, reach, weight, symbols)
        _pad(symbols[len(plane) :], reach, weight)
        weight = np.int32(weight * (2 * reach + 1))
    return _finish(symbols, weight, symbols)


@helper
def _split(symbols, reach, size, even, rests, out):
    """Takes symbols apart into n numbers; returns how many are escaped."""
    n, count, width = len(out), len(symbols), np.int32(2 * reach + 1)
    odd, escape, escaped = _odd(reach, size, even), _escape(reach, size, even), np.int32(0)
    for j in range(count):
        rests[j] = np.int32(np.int32(np.int32(symbols[j]) << even) + odd)
        escaped += np.int32(symbols[j] >= escape)
    reciprocal = np.uint32((1 << _RECIPROCAL_BITS) // width + 1)
    for plane in range(size):
        values = out[plane * count : min((plane + 1) * count, n)]
        if plane == size - 1:
            for j in range(len(values)):
                values[j] = np.int32(rests[j] - reach)
        else:
            for j in range(len(values)):
                rest = np.int32(np.uint32(np.uint32(rests[j]) * reciprocal) >> np.uint32(_RECIPROCAL_BITS))
                values[j] = np.int32(np.int32(rests[j] - np.int32(rest * width)) - reach)
                rests[j] = rest
    return escaped


@kernel
def ungroup(symbols, reach, size, even, out):
    """Takes symbols of a `Grouping` apart; returns how many are escaped, whose integers in `out` have no meaning."""
    return _split(symbols, np.int32(reach), np.int32(size), np.int32(even), np.empty_like(symbols), out)


@kernel
def count_escaped(symbols, starts, kinds, long, escaped):
    """Integers of escaped groups by component.

    Args:
        symbols, starts, kinds: as for `fill_factors`.
        long: integers of each component, int64, shape (components,).
        escaped: how many are in escaped groups afterwards, int64, shape (components,).
    """
    for c in range(len(long)):
        size = kinds[1, c]
        count = (long[c] + size - 1) // size
        of_component, found = symbols[starts[c] : starts[c] + count], 0
        escape = _escape(kinds[0, c], size, kinds[2, c])
        for j in range(count):
            found += of_component[j] == escape
        escaped[c] = found * size
        # The last places of a component are beyond its integers.
        for place in range(long[c], count * size):
            escaped[c] -= of_component[place % count] == escape


@helper
def _put_escaped(symbols, escape, integers, out):
    count, end = len(symbols), 0
    for j in range(count):
        if symbols[j] == escape:
            for place in range(j, len(out), count):
                out[place] = integers[end]
                end += 1


@kernel
def fill_factors(symbols, starts, kinds, integers, places, bases, entries, grids, ranks, rows, columns, lefts, rights):
    """Makes the factors of all blocks from symbols and basis integers.

    Args:
        symbols: of all components, int16, flat.
        starts: where those of each component begin, int64, shape (components,).
        kinds: reach, size and evenness of the groups by component, int32, shape (3, components).
        integers: of escaped groups of all components, int32, flat.
        places: where those of each component begin, int64, shape (components,).
        bases: basis integers of all components, int32, flat.
        entries: where those of each component begin, int64, shape (components,).
        grids: what to multiply them by, by component, fp32.
        ranks, rows, columns: of each block, int64, shape (blocks,).
        lefts, rights: factors (rows × k) and (k × columns) of one block after another, fp32, flat.
    """
    longest, largest = 0, 0
    for b in range(len(ranks)):
        longest = max(longest, rows[b], columns[b])
        largest = max(largest, ranks[b] * rows[b])
    rests, scratch = np.empty(longest, np.int32), np.empty(largest, np.float32)
    first, row, column = 0, 0, 0
    for b in range(len(ranks)):
        k, tall = ranks[b], rows[b] > columns[b]
        r, n = min(rows[b], columns[b]), max(rows[b], columns[b])
        left = lefts[row : row + rows[b] * k].reshape(rows[b], k)
        right = rights[column : column + k * columns[b]].reshape(k, columns[b])
        coefficients = scratch[: k * n].reshape(k, n) if tall else right
        for i in range(k):
            c = first + i
            reach, size, even = kinds[0, c], kinds[1, c], kinds[2, c]
            of_component = symbols[starts[c] : starts[c] + (n + size - 1) // size]
            if _split(of_component, reach, size, even, rests, coefficients[i]):
                _put_escaped(of_component, _escape(reach, size, even), integers[places[c] :], coefficients[i])
        if tall:
            # A line of the cache at a time: rows of equal length would push one another out of it.
            for line in range(0, n, _LINE):
                for i in range(k):
                    for j in range(line, min(line + _LINE, n)):
                        left[j, i] = coefficients[i, j]
        for i in range(k):
            basis, grid = bases[entries[first + i] : entries[first + i] + r], grids[first + i]
            for j in range(r):
                value = np.float32(basis[j]) * grid
                if tall:
                    right[i, j] = value
                else:
                    left[j, i] = value
        first, row, column = first + k, row + rows[b] * k, column + k * columns[b]


@kernel
def gather(values, starts, lengths, order, out):
    """Copies runs of a flat array, given by where they begin and their lengths, one after another in an order.

    Args:
        values: integers, flat.
        starts, lengths: of each run, int64, shape (runs,).
        order: of the runs, int64, shape (runs,).
        out: int32, of the size of all runs.
    """
    end = 0
    for run in order:
        source, target = values[starts[run] : starts[run] + lengths[run]], out[end : end + lengths[run]]
        for j in range(len(target)):
            target[j] = source[j]
        end += lengths[run]


def symbol_counts(n, sizes):
    """Symbols of n integers in groups of these sizes, element by element."""
    return -(-n // sizes)


def escaped_places(symbols: np.ndarray, together: Grouping, n: int) -> np.ndarray:
    """Positions among n integers of those in escaped groups, group by group."""
    groups = np.flatnonzero(symbols == together.escape)
    places = (groups[:, None] + len(symbols) * np.arange(together.size)).ravel()
    return places[places < n]
