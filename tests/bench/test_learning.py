"""The learning bench: what it remembers of finished runs, and what its table says."""

from __future__ import annotations

import pytest

from hilosync.bench import learning
from hilosync.bench.learning import WAYS, Way, learning_table, read_journal, run_learning

SMALL = {"versions": (1,), "problems": 4, "processes": 1}


def run_of(way: str, seed: int, first: float, last: float) -> dict:
    return {
        "way": way,
        "seed": seed,
        "record_bytes_median": 100,
        "ratio": 0.02,
        "pass_at_1": {0: first, 20: last},
        "pass_at_4": {0: first, 20: last},
    }


def test_a_finished_run_is_read_from_the_journal_and_not_made_again(tmp_path):
    journal, said = tmp_path / "runs.jsonl", []
    first = run_learning(journal, WAYS[1:2], (0,), **SMALL)
    assert [(run["way"], run["seed"]) for run in first] == [("spar 1×", 0)]
    with journal.open("a") as lines:
        lines.write('{"key": "an interruption leaves half a li')

    def progress(finished: int, total: int, message: str) -> None:
        said.append((finished, total))

    assert run_learning(journal, WAYS[1:2], (0,), progress=progress, **SMALL) == first
    assert said == [(1, 1)]


def test_runs_with_other_settings_are_not_mistaken_for_these():
    keys = {
        learning._key(way, seed, {"versions": [20], "lr": lr, "problems": 200})
        for way in (WAYS[2], WAYS[3], Way("spar_rd 1×", "spar"))
        for seed in (0, 1)
        for lr in (1e-3, 2e-3)
    }
    assert len(keys) == 12


def test_a_journal_that_is_not_there_holds_nothing(tmp_path):
    assert read_journal(tmp_path / "none.jsonl") == {}


def test_the_table_has_means_and_standard_errors_over_seeds():
    runs = [run_of("a", 0, 0.1, 0.4), run_of("a", 1, 0.1, 0.6), run_of("b", 0, 0.1, 0.3), run_of("c", 7, 0.1, 0.3)]
    rows = learning_table(runs)
    assert [row["way"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["pass_at_1"][20] == pytest.approx(0.5)
    assert rows[0]["pass_at_1_error"] == {0: 0.0, 20: pytest.approx(0.1)}
    assert rows[1]["pass_at_1_error"][20] is None
    assert (rows[0]["gain"][20], rows[0]["gain_error"][20]) == (0.0, 0.0)
    assert rows[1]["gain"][20] == pytest.approx(-0.1)
    assert rows[2]["gain"][20] is None
