"""Budgets and the registry: what a user types."""

from __future__ import annotations

import pytest

from hilosync.compress import UNLIMITED, budget_bytes, compressor_names, get_compressor
from hilosync.errors import ConfigurationError, UnknownName


def test_budgets_are_fractions_ranks_or_bytes(plan):
    assert budget_bytes("50%", plan) == plan.adapter_bytes // 2
    assert budget_bytes(" 1.5 % ", plan) == int(0.015 * plan.adapter_bytes)
    assert budget_bytes("rank 1", plan) == plan.one_rank_bytes()
    assert budget_bytes("rank 0.25", plan) == plan.one_rank_bytes() // 4
    assert budget_bytes(12345, plan) == 12345
    assert budget_bytes("12345", plan) == 12345
    assert budget_bytes(None, plan) == UNLIMITED


@pytest.mark.parametrize("nonsense", ["", "much", "%", "-1%", "rank", "rank -1", "1.5", 1.5, True, 0, -3, "0%"])
def test_a_budget_that_is_none_of_these_is_refused(nonsense, plan):
    with pytest.raises(ConfigurationError, match="expected"):
        budget_bytes(nonsense, plan)


def test_compressors_are_built_by_name_and_settings():
    compressor = get_compressor("spar", {"budget": "0.8%"})
    assert (compressor.name, compressor.budget) == ("spar", "0.8%")
    assert {"dense", "spar"} <= set(compressor_names())


def test_an_unknown_compressor_or_setting_is_refused():
    with pytest.raises(UnknownName, match="spar"):
        get_compressor("spra")
    with pytest.raises(ConfigurationError, match="colour"):
        get_compressor("spar", {"colour": "red"})
