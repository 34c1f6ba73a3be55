"""The simulation repeats from its seed, finds nothing in the real code, and finds every bug that is put in."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from hilosync.cli.simulate import command
from hilosync.sim import PLANTS, simulate

SEEDS = range(40)


@pytest.fixture(scope="module")
def outcomes():
    """What some seeds lead to, with the real code."""
    return [simulate(seed, keep=None) for seed in SEEDS]


def test_no_seed_breaks_a_promise_of_the_real_code(outcomes):
    failures = {outcome.seed: outcome.failure for outcome in outcomes if outcome.failure is not None}
    assert failures == {}


def test_all_kinds_of_faults_are_met_and_survived(outcomes):
    counts = sum((outcome.counts for outcome in outcomes), Counter())
    for kind in (
        "bit flip",
        "corrupted copy",
        "crash",
        "delayed request",
        "disk full",
        "duplicated request",
        "fenced",
        "healed",
        "interleaving",
        "join",
        "leave",
        "lost acknowledgement",
        "partitioned request",
        "power failure of the storage",
        "recovery: truncated, snapshot",
        "reordered answer",
        "resumed, residual exact",
        "resumed, residual projected",
        "second learner",
        "snapshot loaded at the end",
        "truncation",
    ):
        assert counts[kind], kind


def test_a_seed_repeats_line_by_line(outcomes):
    assert simulate(3, keep=None).trace == outcomes[3].trace
    assert simulate(4, keep=5).trace == outcomes[4].trace[-5:]


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_bug_is_found_in_few_seeds_which_are_clean_without_it(plant, outcomes):
    found = next(outcome for seed in range(200) if (outcome := simulate(seed, plant)).failure is not None)
    clean = [*outcomes, *(simulate(seed) for seed in range(len(outcomes), found.seed + 1))]
    assert all(outcome.failure is None for outcome in clean[: found.seed + 1])


def test_the_command_names_the_seed_and_exits_with_one(tmp_path):
    result = CliRunner().invoke(command, ["faults", "--plant", "skip-chain-check", "--seeds", "200", "--json"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["failures"] == 1 and told["seeds"] == told["failed_seed"] + 1
    assert told["repeat"] in result.stderr.replace("\n", " ") and "was flipped" in told["failure"]
    repeated = CliRunner().invoke(command, told["repeat"].split()[2:])
    assert repeated.exit_code == 1 and told["failure"][:60] in repeated.stderr


def test_the_command_exits_with_zero_where_nothing_fails():
    result = CliRunner().invoke(command, ["faults", "--seeds", "2"])
    assert result.exit_code == 0 and "2 seeds" in result.stdout and "no failure" in result.stdout
