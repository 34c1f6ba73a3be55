import numpy as np
import pytest
import torch

from hilosync.arithmetic import specification
from hilosync.arithmetic.digest import (
    SLICES,
    differing_tensors,
    full_digest,
    initial_digest,
    next_digest,
    state_sums,
    tensor_tags,
)
from hilosync.arithmetic.state import PolicyState
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan((Block("a", 3, 7), Block("b", 1, 1), Block("c", 13, 5)))


def random_state(seed: int = 0) -> PolicyState:
    generator = torch.Generator().manual_seed(seed)
    p, m, v = (torch.randn(PLAN.size, generator=generator) for _ in range(3))
    return PolicyState(p, {"m": m, "v": v})


def test_state_sums_equal_the_specification():
    state = random_state()
    expected = [
        specification.state_sum(
            [buffer[start : start + block.size].numpy().reshape(block.rows, -1) for buffer in state.buffers()]
        )
        for start, block in zip(PLAN.offsets, PLAN.blocks, strict=False)
    ]
    assert state_sums(PLAN, state).tolist() == expected


def test_the_order_in_which_slots_were_added_does_not_matter():
    state = random_state()
    turned = PolicyState(state.params, {"v": state.slots["v"], "m": state.slots["m"]})
    assert (state_sums(PLAN, state) == state_sums(PLAN, turned)).all()
    assert full_digest(PLAN, state) == full_digest(PLAN, turned)


@pytest.mark.parametrize("position", [0, 20, 21, 22, 86])
@pytest.mark.parametrize("buffer", ["params", "m", "v"])
@pytest.mark.parametrize("bit", [0, 13, 31])
def test_one_flipped_bit_changes_the_sum_of_its_block_alone(position, buffer, bit):
    state = random_state()
    before = state_sums(PLAN, state)
    target = state.params if buffer == "params" else state.slots[buffer]
    target.numpy().view(np.uint32)[position] ^= np.uint32(1 << bit)
    block = sum(position >= offset for offset in PLAN.offsets) - 1
    assert np.flatnonzero(before != state_sums(PLAN, state)).tolist() == [block]


def test_exchanged_positions_and_exchanged_slots_are_seen():
    before = state_sums(PLAN, random_state())
    state = random_state()
    state.params[[2, 9]] = state.params[[9, 2]]
    assert state_sums(PLAN, state)[0] != before[0]
    state = random_state()
    state.slots["m"][30], state.slots["v"][30] = state.slots["v"][30].clone(), state.slots["m"][30].clone()
    assert state_sums(PLAN, state)[2] != before[2]


def test_the_sign_of_zero_is_part_of_the_digest():
    state = random_state()
    state.params[0] = 0.0
    negative = state.clone()
    negative.params[0] = -0.0
    assert state_sums(PLAN, state)[0] != state_sums(PLAN, negative)[0]


def test_tags_name_the_tensors_that_differ():
    sums = state_sums(PLAN, random_state())
    other = sums.copy()
    other[1] += np.uint64(1)
    assert tensor_tags(sums).dtype == np.uint16
    assert differing_tensors(tensor_tags(sums), tensor_tags(other)) == [1]
    assert differing_tensors(tensor_tags(sums), tensor_tags(sums)) == []


def test_sixty_four_steps_hash_every_element():
    state = random_state()
    sums = state_sums(PLAN, state)
    for position in range(0, PLAN.size, 5):
        changed = state.clone()
        changed.slots["v"][position] += 1
        # The sums are held fixed, so that only the rolling slice can see the change.
        seen = [
            next_digest(b"p" * 32, b"b" * 32, sums, PLAN, state, version)
            != next_digest(b"p" * 32, b"b" * 32, sums, PLAN, changed, version)
            for version in range(1, SLICES + 1)
        ]
        assert sum(seen) == 1, position


def test_the_digest_depends_on_everything_it_chains():
    state = random_state()
    sums = state_sums(PLAN, state)
    base = next_digest(b"p" * 32, b"b" * 32, sums, PLAN, state, 5)
    assert len(base) == 32
    assert base != next_digest(b"q" * 32, b"b" * 32, sums, PLAN, state, 5)
    assert base != next_digest(b"p" * 32, b"c" * 32, sums, PLAN, state, 5)
    assert base != next_digest(b"p" * 32, b"b" * 32, sums + np.uint64(1), PLAN, state, 5)
    assert initial_digest(b"g" * 32, PLAN, state) != initial_digest(b"h" * 32, PLAN, state)


def test_the_full_digest_sees_any_bit():
    state = random_state()
    before = full_digest(PLAN, state)
    state.slots["m"].numpy().view(np.uint32)[-1] ^= np.uint32(1)
    assert full_digest(PLAN, state) != before
