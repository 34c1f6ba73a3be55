"""Knights and Knaves in a few dozen words, for a model small enough to train on a CPU in minutes.

A prompt is ``kk A : B=knight iff A=knave ; B : not C=knave ; C : A=knight =>``. An answer tries
the assignments in order and stops each at its first contradiction, then states the roles::

    A=knight B=knight C=knight A:no A=knight B=knight C=knave A:ok B:no … => A=knave B=knight C=knave

One token per atom (``B=knight``, ``A:ok``) matters: it makes the check of one statement a lookup
that a four-layer model learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hilosync.rl.tasks.base import Verdict
from hilosync.rl.tasks.knights import HELD_OUT, KnightsSource, Problem, Statement, assignments, holds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["CompactKnights", "compact_tokenizer", "enumeration", "render"]

_PEOPLE = "ABCDEFGH"
_OPERATORS = {"and": "and", "or": "or", "->": "implies", "<=>": "iff"}
_PADDING, _END, _UNKNOWN = "<pad>", "<eos>", "<unk>"


def compact_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the compact language, which pads on the left."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = [_PADDING, _END, _UNKNOWN, "kk", ":", ";", "=>", "(", ")", "not", *_OPERATORS.values()]
    for person in _PEOPLE:
        words += [person, f"{person}=knight", f"{person}=knave", f"{person}:ok", f"{person}:no"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PADDING,
        eos_token=_END,
        unk_token=_UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _role(person: int, knight: bool) -> str:
    return f"{_PEOPLE[person]}={'knight' if knight else 'knave'}"


def _words(statement: Statement) -> str:
    operator, *parts = statement
    if operator in ("telling-truth", "lying"):
        return _role(parts[0], operator == "telling-truth")
    inner = [_words(part) if part[0] in ("telling-truth", "lying") else f"( {_words(part)} )" for part in parts]
    return f"not {inner[0]}" if operator == "not" else f" {_OPERATORS[operator]} ".join(inner)


def render(problem: Problem) -> str:
    """The prompt of a problem."""
    says = (f"{_PEOPLE[i]} : {_words(statement)}" for i, statement in enumerate(problem.statements))
    return f"kk {' ; '.join(says)} =>"


def enumeration(
    problem: Problem, checks: Callable[[int, tuple[bool, ...], bool], bool] = lambda person, roles, right: right
) -> str:
    """The answer that tries all assignments in order.

    Args:
        problem: the problem.
        checks: what the writer believes about (person, roles) when the truth is `right`; anything but
            the identity makes a demonstration by somebody who errs.
    """
    words: list[str] = []
    for roles in assignments(len(problem.statements)):
        words += [_role(person, knight) for person, knight in enumerate(roles)]
        for person, statement in enumerate(problem.statements):
            consistent = checks(person, roles, holds(statement, roles) == roles[person])
            words.append(f"{_PEOPLE[person]}:{'ok' if consistent else 'no'}")
            if not consistent:
                break
        else:
            return " ".join([*words, "=>", *(_role(person, knight) for person, knight in enumerate(roles))])
    return " ".join([*words, "=>"])


class CompactKnights:
    """The `Task` of compact Knights and Knaves: reward 1 for the right roles after the last ``=>``, else 0."""

    name = "knights-compact"
    held_out = HELD_OUT

    def __init__(self, people: int = 3, seed: int = 0):
        self.source = KnightsSource(people, seed)
        # Every assignment with all its checks, the roles, "=>" and the end.
        self.answer_tokens = 2**people * 2 * people + people + 2

    def prompt(self, index: int) -> str:
        """The problem in the compact language."""
        return render(self.source.problem(index))

    def judge(self, index: int, answer: str) -> Verdict:
        """Compares the roles after the last ``=>``, word for word."""
        _, arrow, conclusion = answer.rpartition("=>")
        right = [_role(person, knight) for person, knight in enumerate(self.source.problem(index).solution)]
        solved = bool(arrow) and conclusion.split() == right
        return Verdict(float(solved), solved)

    def demonstrations(self, index: int) -> Sequence[str]:
        """The enumeration."""
        return [enumeration(self.source.problem(index))]
