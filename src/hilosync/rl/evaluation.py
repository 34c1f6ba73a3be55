"""Held-out pass@1 and pass@k, with noise that is the same at every version of every run."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

from hilosync.errors import ConfigurationError
from hilosync.rl.merging import merged
from hilosync.rl.noise import generator
from hilosync.rl.sampling import end_tokens, sample
from hilosync.rl.tasks.base import Task

__all__ = ["Evaluation", "evaluate", "pass_at_k"]


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right (Chen et al., 2107.03374, eq. 1).

    1 − C(samples − solved, k) / C(samples, k), for one problem with `solved` right samples.
    """
    if not 1 <= k <= samples:
        raise ConfigurationError(f"pass@{k} needs at least {k} samples per problem, got {samples}")
    return 1.0 - comb(samples - solved, k) / comb(samples, k)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over held-out problems.

    Attributes:
        pass_at_1: chance that one sample is right.
        pass_at_4: chance that at least one of four is. Guessing roles alone scores high here, so it
            is never reported without pass@1.
        problems: how many problems.
        samples: samples per problem.
    """

    pass_at_1: float
    pass_at_4: float
    problems: int
    samples: int


def evaluate(
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    problems: int = 200,
    samples: int = 4,
    seed: int = 0,
    prompts_at_once: int = 100,
) -> Evaluation:
    """Answers the first `problems` held-out problems `samples` times each at temperature 1.

    The noise depends on `seed` alone, so two versions are compared on the same draws.
    """
    if not 1 <= problems <= task.held_out:
        raise ConfigurationError(f"expected 1 to {task.held_out} held-out problems of {task.name}, got {problems}")
    model, ends, solved = merged(model), end_tokens(model, tokenizer), []
    for start in range(0, problems, prompts_at_once):
        indices = range(start, min(start + prompts_at_once, problems))
        prompts = [tokenizer.encode(task.prompt(index), add_special_tokens=False) for index in indices]
        answers = sample(
            model,
            prompts,
            samples=samples,
            length=task.answer_tokens,
            noise=generator("evaluation", seed, start),
            ends=ends,
            padding=tokenizer.pad_token_id,
        ).tokens
        for row, index in enumerate(indices):
            texts = tokenizer.batch_decode(answers[row * samples : (row + 1) * samples], skip_special_tokens=True)
            solved.append(sum(task.judge(index, text).solved for text in texts))
    rates = [[pass_at_k(samples, count, k) for count in solved] for k in (1, 4)]
    return Evaluation(sum(rates[0]) / problems, sum(rates[1]) / problems, problems, samples)
