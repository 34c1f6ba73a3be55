"""What the sum of a block sees; all of it by `specification.state_sum`, which the other forms equal."""

from itertools import pairwise

import numpy as np
import pytest

from hilosync.arithmetic import specification
from hilosync.arithmetic.digest import state_sums
from hilosync.arithmetic.specification import rotation, state_sum
from hilosync.arithmetic.state import PolicyState
from hilosync.plan import AdapterPlan, Block

ROWS, COLUMNS = 48, 100
PARAMS, M, V = range(3)


@pytest.fixture
def block(rng):
    """Parameters, m and v as AdamW holds them, with zeros of both signs in the first two."""
    p, m = (rng.standard_normal((ROWS, COLUMNS), np.float32) * width for width in (np.float32(0.02), np.float32(1e-3)))
    for buffer in (p, m):
        buffer[rng.random((ROWS, COLUMNS)) < 0.1] = 0.0
        buffer[rng.random((ROWS, COLUMNS)) < 0.1] = -0.0
    return [p, m, m * m]


def sees(block, change) -> bool:
    """Whether the sum differs after `change` has altered a copy of the block, which it must."""
    changed = [buffer.copy() for buffer in block]
    change(changed)
    assert any(a.tobytes() != b.tobytes() for a, b in zip(block, changed, strict=True))
    return state_sum(block) != state_sum(changed)


def positions(rng, count: int) -> list[tuple[int, int]]:
    """Different positions."""
    chosen = rng.choice(ROWS * COLUMNS, count, replace=False)
    return [divmod(int(position), COLUMNS) for position in chosen]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 1), (7, 8), (3, 23), (2, 4096), (300, 1024)])
@pytest.mark.parametrize("slots", [0, 1, 2, 4])
def test_the_torch_form_equals_the_specification(rng, shape, slots):
    import torch

    buffers = [rng.standard_normal(shape, np.float32) for _ in range(1 + slots)]
    flat = [torch.from_numpy(buffer.reshape(-1)) for buffer in buffers]
    state = PolicyState(flat[0], {f"slot {index}": slot for index, slot in enumerate(flat[1:])})
    assert state_sums(AdapterPlan((Block("a", *shape),)), state).tolist() == [int(state_sum(buffers))]


@pytest.mark.parametrize("buffer", [PARAMS, M, V])
def test_any_changed_bit_is_seen(rng, block, buffer):
    for bit in range(32):
        for at in positions(rng, 4):

            def flip(changed, at=at, bit=bit):
                changed[buffer].view(np.uint32)[at] ^= np.uint32(1 << bit)

            assert sees(block, flip), (at, bit)


def test_exchanged_words_are_seen(rng, block):
    for a, b in pairwise(positions(rng, 300)):
        for first, second in [(PARAMS, PARAMS), (M, M), (V, V), (PARAMS, M), (M, V)]:
            x, y = block[first][a].copy(), block[second][b].copy()
            if x.tobytes() == y.tobytes():
                continue

            def exchange(changed, a=a, b=b, first=first, second=second, x=x, y=y):
                changed[first][a], changed[second][b] = y, x

            assert sees(block, exchange), (a, b, first, second)


def flip_signs(count, columns=slice(None)):
    def flip(changed, rng):
        zeros = np.argwhere(changed[PARAMS][:, columns] == 0)
        for row, column in zeros[rng.choice(len(zeros), count, replace=False)]:
            part = changed[PARAMS][:, columns]
            part[row, column] = -part[row, column]

    return flip


@pytest.mark.parametrize("columns", [slice(None), slice(0, None, 2), slice(1, None, 2), slice(1, None, 8)])
@pytest.mark.parametrize("count", [2, 4, 8, 64])
def test_signs_of_zeros_are_seen_in_pairs_and_in_crowds(rng, block, count, columns):
    assert all(sees(block, lambda changed: flip_signs(count, columns)(changed, rng)) for _ in range(50))


def test_without_the_rotation_half_of_the_sign_pairs_would_pass(monkeypatch, rng, block):
    monkeypatch.setattr(specification, "rotation", lambda buffer: 0)
    seen = [sees(block, lambda changed: flip_signs(2, slice(1, None, 2))(changed, rng)) for _ in range(50)]
    assert not all(seen)


def test_opposite_changes_by_one_unit_in_the_last_place_are_seen(rng, block):
    for a, b in pairwise(positions(rng, 200)):
        for first, second in [(PARAMS, PARAMS), (M, M), (V, V), (PARAMS, M), (PARAMS, V), (M, V)]:
            for other in (a, b) if first != second else (b,):

                def nudge(changed, a=a, other=other, first=first, second=second):
                    for buffer, at, by in ((changed[first], a, 1), (changed[second], other, -1)):
                        words = buffer.view(np.uint32)
                        words[at] = (int(words[at]) + by) % 2**32

                assert sees(block, nudge), (a, other, first, second)


def test_roundings_that_go_both_ways_are_seen(rng, block):
    for count in (3, 5, 10, 100, 1000):
        for _ in range(20):

            def nudge(changed, count=count):
                for buffer in changed:
                    words = buffer.view(np.int32).reshape(-1)
                    words[rng.choice(words.size, count, replace=False)] += rng.choice([-1, 1], count).astype(np.int32)

            assert sees(block, nudge), count


def wholesale(changed, name):
    p, m, v = changed
    match name:
        case "zeroed m":
            m[:] = 0
        case "zeroed v":
            v[:] = 0
        case "exchanged slots":
            changed[M], changed[V] = v, m
        case "exchanged with the parameters":
            changed[PARAMS], changed[M] = m, p
        case "rows shifted":
            p[:] = np.roll(p, 1, axis=0)
        case "columns shifted":
            m[:] = np.roll(m, 1, axis=1)
        case "rows exchanged":
            v[[3, 4]] = v[[4, 3]]
        case "all doubled":
            v *= 2
        case "two rows doubled":
            v[[3, 19]] *= 2
        case "all negated":
            p *= -1


WHOLESALE = (
    "zeroed m",
    "zeroed v",
    "exchanged slots",
    "exchanged with the parameters",
    "rows shifted",
    "columns shifted",
    "rows exchanged",
    "all doubled",
    "two rows doubled",
    "all negated",
)


@pytest.mark.parametrize("name", WHOLESALE)
def test_wholesale_changes_are_seen(block, name):
    assert sees(block, lambda changed: wholesale(changed, name))


def test_the_rows_may_be_summed_in_any_order(rng, block):
    """Words and weights are those of the text, whichever part of the rows is summed at a time."""
    total, width = 0, -(-COLUMNS // 8) * 4
    for row in rng.permutation(ROWS):
        for index, buffer in enumerate(block):
            padded = np.zeros(2 * width, np.float32)
            padded[:COLUMNS] = buffer[row]
            for place, word in enumerate(padded.view(np.uint64).tolist()):
                left = rotation(index)
                rotated = (word << left | word >> (64 - left)) % 2**64
                total += (2 * (int(row) * width + place) + 1) * rotated
    assert total % 2**64 == int(state_sum(block))
