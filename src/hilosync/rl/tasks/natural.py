"""Knights and Knaves in natural language, in the format that Logic-RL (arXiv 2502.14768) rewards.

The answer must read ``<think>…</think><answer>(1) Zoey is a knight (2) …</answer>``. Reward: +1 for
the format and −1 without it; with it, +2 for the right roles, −1.5 for wrong ones, −2 for none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hilosync.errors import ConfigurationError
from hilosync.rl.tasks.base import Verdict
from hilosync.rl.tasks.knights import HELD_OUT, KnightsSource, Problem

__all__ = ["NaturalKnights"]

_MAX_ANSWER_CHARACTERS = 1 << 16
_INSTRUCTIONS = (
    "You solve logical puzzles. First think about the puzzle, then give the answer. Put the reasoning between "
    "<think> and </think> and the answer between <answer> and </answer>, one numbered line for each person, "
    "for example: <answer>\n(1) Zoey is a knight\n(2) Oliver is a knave\n</answer>. "
    "Use the puzzle's own words for the two kinds of people."
)


class NaturalKnights:
    """The `Task` of Knights and Knaves for a real model.

    Args:
        tokenizer: its chat template wraps the prompt.
        people: inhabitants of an island.
        seed: of the problem source.
        answer_tokens: room for an answer.

    Raises:
        ConfigurationError: the tokenizer has no chat template.
    """

    name = "knights"
    held_out = HELD_OUT

    def __init__(self, tokenizer: Any, people: int = 3, seed: int = 0, answer_tokens: int = 1024):
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                "the task knights needs a tokenizer with a chat template; for the tiny models use knights-compact"
            )
        self.tokenizer = tokenizer
        self.answer_tokens = answer_tokens
        self.source = KnightsSource(people, seed)

    def prompt(self, index: int) -> str:
        """The puzzle as a user's message; the assistant's turn is open, and so is its <think>."""
        messages = [
            {"role": "system", "content": _INSTRUCTIONS},
            {"role": "user", "content": self.source.problem(index).question},
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # Some templates (Qwen3's thinking ones) open the tag themselves.
        return text if text.rstrip().endswith("<think>") else f"{text}<think>"

    def judge(self, index: int, answer: str) -> Verdict:
        """Format and roles, as in the module's text."""
        if len(answer) > _MAX_ANSWER_CHARACTERS or not _well_formed(answer):
            return Verdict(-3.0, False)
        problem = self.source.problem(index)
        roles = _roles(answer[answer.index("<answer>") + 8 : answer.index("</answer>")], problem)
        if roles is None:
            return Verdict(1.0 - 2.0, False)
        solved = roles == problem.solution
        return Verdict(1.0 + 2.0 if solved else 1.0 - 1.5, solved)

    def demonstrations(self, index: int) -> Sequence[str]:
        """None: a real model needs no imitation."""
        return []


def _well_formed(answer: str) -> bool:
    """</think>, <answer> and </answer> once each in this order, the prompt having opened <think>."""
    tags = re.findall(r"</?think>|</?answer>", answer)
    return tags in (["</think>", "<answer>", "</answer>"], ["<think>", "</think>", "<answer>", "</answer>"])


def _roles(text: str, problem: Problem) -> tuple[bool, ...] | None:
    """The stated roles, or None unless every person is given exactly one."""
    roles = []
    for name in problem.names:
        pattern = rf"\b{re.escape(name)}\b\s+is\s+(?:an?\s+)?({re.escape(problem.knight)}|{re.escape(problem.knave)})\b"
        stated = {word.lower() for word in re.findall(pattern, text, re.IGNORECASE)}
        if len(stated) != 1:
            return None
        roles.append(stated.pop() == problem.knight.lower())
    return tuple(roles)
