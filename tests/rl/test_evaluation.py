from __future__ import annotations

import itertools

import pytest

from hilosync.errors import ConfigurationError
from hilosync.rl.evaluation import evaluate, pass_at_k
from hilosync.rl.policy import load_model, load_tokenizer
from hilosync.rl.tasks import open_task


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_sample(k):
    for solved in range(7):
        samples = [True] * solved + [False] * (6 - solved)
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(6, solved, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_more_than_was_sampled_is_refused():
    with pytest.raises(ConfigurationError, match="at least 4 samples"):
        pass_at_k(3, 1, 4)


def test_an_evaluation_repeats_itself(model, tokenizer, task):
    first = evaluate(model, tokenizer, task, problems=10)
    assert evaluate(model, tokenizer, task, problems=10) == first
    assert 0.0 <= first.pass_at_1 <= first.pass_at_4 <= 1.0
    with pytest.raises(ConfigurationError, match="held-out problems"):
        evaluate(model, tokenizer, task, problems=10_000)


def test_the_teacher_knows_what_the_student_has_to_learn():
    tokenizer = load_tokenizer("tiny-kk-teacher")
    task = open_task("knights-compact", tokenizer)
    teacher, student = (
        evaluate(load_model(name), tokenizer, task, problems=80) for name in ("tiny-kk-teacher", "tiny-kk-student")
    )
    assert teacher.pass_at_1 >= 0.88
    assert 0.08 <= student.pass_at_1 <= 0.28
