import hashlib

import numpy as np
import pytest

from hilosync.arithmetic.initial import initial_parameters
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan((Block("a.lora_A", 4, 33, fan_in=33), Block("a.lora_B", 9, 4), Block("b.lora_A", 3, 7, fan_in=7)))


def test_the_same_seed_gives_the_same_bits_as_on_the_machine_that_wrote_this():
    flat = initial_parameters(PLAN, 7).numpy()
    assert hashlib.sha256(flat.tobytes()).hexdigest()[:16] == "5fe6f56b2774b433"


def test_blocks_are_uniform_within_their_bound_or_zero():
    plan = AdapterPlan((Block("A", 64, 500, fan_in=500), Block("B", 30, 64)))
    a, b = (view.numpy() for view in plan.views(initial_parameters(plan, 3)))
    bound = plan.initial_bound(plan.blocks[0])
    assert np.abs(a).max() <= bound and np.abs(a).max() > 0.99 * bound
    assert abs(a.mean()) < 0.02 * bound
    assert a.var() == pytest.approx(bound**2 / 3, rel=0.02)
    assert not b.any()


def test_blocks_and_seeds_have_streams_of_their_own():
    plan = AdapterPlan((Block("x", 8, 9, fan_in=9), Block("y", 8, 9, fan_in=9)))
    x, y = plan.views(initial_parameters(plan, 0))
    other, _ = plan.views(initial_parameters(plan, 1))
    assert len({x.numpy().tobytes(), y.numpy().tobytes(), other.numpy().tobytes()}) == 3
