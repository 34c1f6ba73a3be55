"""PowerSGD, top-k and the dense warm-up."""

from __future__ import annotations

import pytest
import torch

from hilosync.arithmetic.decode import materialize
from hilosync.compress import Dense, PowerSGD, Spar, TopK, Warmup, budget_bytes, get_compressor
from hilosync.compress.powersgd import uniform_ranks
from hilosync.compress.spar import reference_spar
from hilosync.compress.topk import largest_elements, reference_largest_elements
from hilosync.errors import BudgetTooSmall, ConfigurationError


def test_powersgd_with_its_warm_start_finds_the_best_approximation_of_its_ranks(plan, gradient):
    compressor, budget = PowerSGD(), 3 * plan.one_rank_bytes()
    state = compressor.init(plan)
    payload = b""
    for _ in range(25):
        payload, state = compressor.encode(plan, state, gradient, budget)
    for matrix, block in zip(plan.views(gradient), compressor.decode(plan, payload), strict=True):
        best = reference_spar(matrix, block.left.shape[1])
        assert block.left.shape[1] >= 2
        torch.testing.assert_close(materialize(block).double(), best, atol=1e-2 * matrix.abs().max().item(), rtol=0)


def test_powersgd_gives_all_blocks_equal_ranks_and_the_rest_to_those_with_the_most_energy():
    assert uniform_ranks([4.0, 1.0, 9.0, 0.0], [10, 10, 10, 10], [5, 5, 5, 5], 75) == [2, 2, 3, 0]
    assert uniform_ranks([4.0, 1.0, 9.0], [10, 10, 30], [5, 5, 5], 15) == [1, 0, 0]
    assert uniform_ranks([4.0, 1.0], [10, 10], [2, 2], 10**9) == [2, 2]


def test_topk_takes_the_largest_elements_and_agrees_with_sorting(plan, gradient):
    assert largest_elements(gradient, 100).tolist() == reference_largest_elements(gradient, 100)
    budget = 4000
    payload, _ = TopK().encode(plan, None, gradient, budget)
    assert budget - 4 < len(payload) <= budget
    received = torch.cat([materialize(block).flatten() for block in TopK().decode(plan, payload)])
    sent = received != 0
    assert gradient[sent].abs().min() >= gradient[~sent].abs().max()
    torch.testing.assert_close(received[sent], gradient[sent], rtol=2**-8, atol=0)


def test_a_warm_up_is_dense_first_and_within_the_inner_budget_afterwards(plan, gradient):
    compressor = Warmup(Spar(budget="50%"), steps=2)
    state, payloads = compressor.init(plan), []
    for _ in range(4):
        payload, state = compressor.encode(plan, state, gradient, 8 * plan.size)
        payloads.append(payload)
    dense = Dense().smallest_payload(plan)
    assert [len(payload) for payload in payloads[:2]] == [dense, dense]
    assert all(len(payload) < budget_bytes("50%", plan) for payload in payloads[2:])
    replica = get_compressor(compressor.name, compressor.settings())
    for payload in payloads:
        assert len(replica.decode(plan, payload)) == len(plan.blocks)


def test_a_warm_up_of_a_warm_up_or_with_too_small_a_budget_afterwards_is_refused(plan, gradient):
    with pytest.raises(ConfigurationError, match="warm-up"):
        Warmup(Warmup(Spar()))
    compressor = Warmup(Spar(budget=100), steps=0)
    with pytest.raises(BudgetTooSmall, match="after the warm-up"):
        compressor.encode(plan, compressor.init(plan), gradient, 10**6)
