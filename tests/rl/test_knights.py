from __future__ import annotations

import pytest

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.rl.tasks import open_task
from hilosync.rl.tasks.compact import CompactKnights, compact_tokenizer, enumeration, render
from hilosync.rl.tasks.knights import HELD_OUT, KnightsSource, Problem, assignments, holds
from hilosync.rl.tasks.natural import NaturalKnights

TRUTH, LIE = "telling-truth", "lying"


class ChatTokenizer:
    chat_template = "any"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>\n"


def test_a_problem_depends_on_its_index_and_seed_alone():
    one, other = KnightsSource(3, seed=5), KnightsSource(3, seed=5)
    other.problem(900)
    assert [one.problem(i) for i in (7, 300, 2**40)] == [other.problem(i) for i in (7, 300, 2**40)]
    assert one.problem(300) != KnightsSource(3, seed=6).problem(300)


@pytest.mark.parametrize("people", [2, 3, 5])
def test_exactly_the_stated_solution_fits(people):
    for index in range(30):
        problem = KnightsSource(people).problem(index)
        fitting = [
            roles
            for roles in assignments(people)
            if all(holds(s, roles) == role for s, role in zip(problem.statements, roles, strict=True))
        ]
        assert fitting == [problem.solution]


def test_a_training_problem_is_never_a_held_out_one():
    # Two people have few problems, so the same one is drawn again soon.
    source = KnightsSource(2)
    held_out = {source.problem(index).statements for index in range(HELD_OUT)}
    drawn = [source._draw(index, 0).statements for index in range(HELD_OUT, HELD_OUT + 200)]
    assert any(statements in held_out for statements in drawn), "the test must be able to fail"
    assert all(source.problem(HELD_OUT + index).statements not in held_out for index in range(200))


def test_the_compact_form_reads_as_documented():
    problem = Problem(
        statements=(("<=>", (TRUTH, 1), (LIE, 0)), ("not", (LIE, 2)), ("and", (TRUTH, 0), ("not", (LIE, 1)))),
        solution=(True, False, False),
        names=("X", "Y", "Z"),
        knight="saint",
        knave="sinner",
        question="",
    )
    assert render(problem) == ("kk A : B=knight iff A=knave ; B : not C=knave ; C : A=knight and ( not B=knave ) =>")
    assert enumeration(problem) == (
        "A=knight B=knight C=knight A:no A=knight B=knight C=knave A:no A=knight B=knave C=knight A:ok B:no "
        "A=knight B=knave C=knave A:ok B:ok C:ok => A=knight B=knave C=knave"
    )


def test_the_tiny_tokenizer_knows_every_word_and_gives_it_back():
    tokenizer = compact_tokenizer()
    for people in (2, 3, 8):
        task = CompactKnights(people)
        for index in range(5):
            for text in (task.prompt(index), task.demonstrations(index)[0]):
                tokens = tokenizer.encode(text)
                assert tokenizer.unk_token_id not in tokens
                assert len(tokens) == len(text.split())
                assert tokenizer.decode(tokens) == text


def test_a_right_answer_fits_the_room_and_is_rewarded():
    task, tokenizer = CompactKnights(), compact_tokenizer()
    for index in range(50):
        answer = task.demonstrations(index)[0]
        assert task.judge(index, answer).solved and task.judge(index, answer).reward == 1.0
        assert len(tokenizer.encode(answer)) < task.answer_tokens


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer.replace("=>", ""),
        lambda answer: answer + " A=knight",
        lambda answer: answer.rpartition(" ")[0],
        lambda answer: answer[:-6] + ("knave" if answer.endswith("knight") else "knight"),
        lambda answer: "",
        lambda answer: "=> => =>",
    ],
)
def test_a_spoiled_answer_earns_nothing(spoil):
    task = CompactKnights()
    for index in range(10):
        verdict = task.judge(index, spoil(task.demonstrations(index)[0]))
        assert not verdict.solved and verdict.reward == 0.0


def natural_answer(problem: Problem, flip: bool = False) -> str:
    lines = [
        f"({n}) {name} is a {problem.knight if role != flip else problem.knave}"
        for n, (name, role) in enumerate(zip(problem.names, problem.solution, strict=True), 1)
    ]
    return "Suppose …</think>\n<answer>\n" + "\n".join(lines) + "\n</answer>"


def test_the_natural_form_rewards_format_and_roles():
    task = NaturalKnights(ChatTokenizer())
    for index in range(30):
        problem = task.source.problem(index)
        right, wrong = natural_answer(problem), natural_answer(problem, flip=True)
        assert (task.judge(index, right).reward, task.judge(index, right).solved) == (3.0, True)
        assert (task.judge(index, "<think>" + right).reward, task.judge(index, right.upper()).reward) == (3.0, -3.0)
        assert (task.judge(index, wrong).reward, task.judge(index, wrong).solved) == (-0.5, False)
        both = right.replace("</answer>", wrong[wrong.index("(") : wrong.index("</answer>")] + "</answer>")
        assert task.judge(index, both).reward == -1.0
        assert task.judge(index, right.replace("</think>", "")).reward == -3.0
        assert task.judge(index, "</answer><answer></think>").reward == -3.0


def test_the_natural_prompt_opens_the_thought_and_asks_for_no_other_format():
    prompt = NaturalKnights(ChatTokenizer()).prompt(3)
    assert prompt.endswith("<think>")
    assert "Format your answer" not in prompt and "<answer>" in prompt


def test_a_task_that_cannot_be_is_refused_in_one_line():
    with pytest.raises(UnknownName, match="unknown task 'chess': expected one of knights, knights-compact"):
        open_task("chess", None)
    with pytest.raises(ConfigurationError, match="chat template"):
        open_task("knights", compact_tokenizer())
    with pytest.raises(ConfigurationError, match="2 to 8 people on the island, got 9"):
        open_task("knights-compact", None, people=9)
