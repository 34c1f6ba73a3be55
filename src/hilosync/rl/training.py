"""What the learner does with the rollouts of a version: losses and gradients, never a step.

The loop that offers orders, collects deliveries and steps the learner is elsewhere; this turns
collected rollouts into `.grad` of the adapter's parameters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hilosync.errors import ConfigurationError, MalformedRollouts
from hilosync.rl.objectives.base import Objective, Scored
from hilosync.rl.prefix import shared_prompt_logits
from hilosync.rl.rollouts import RolloutBatch, RolloutSettings
from hilosync.rl.tasks.base import Task
from hilosync.rl.tokens import TokenBatch

__all__ = ["StepReport", "Trainer"]

_LOGITS_AT_ONCE = 1 << 26
"""Logits held per forward pass: rows are processed in groups that stay below it."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one backward pass saw.

    Attributes:
        loss: mean of the objective over generated tokens.
        reward: mean reward over completions.
        solved: share of completions that are right.
        tokens: generated tokens.
        completions: rows.
        staleness: current version minus the oldest version at dispatch, in versions.
        seconds: wall time of forward and backward passes.
    """

    loss: float
    reward: float
    solved: float
    tokens: int
    completions: int
    staleness: int
    seconds: float


class Trainer:
    """Computes the gradient of an objective on a version's rollouts.

    Args:
        student: the PEFT model whose trainable parameters receive gradients.
        tokenizer: of the student.
        task: gives the prompts back from their indices.
        settings: of the run; deliveries that do not fit them are refused.
        objective: the loss.
        teacher: a model of the same vocabulary, where the objective needs one.

    Raises:
        ConfigurationError: the objective needs a teacher and has none, or its vocabulary differs.
    """

    def __init__(
        self,
        student: Any,
        tokenizer: Any,
        task: Task,
        settings: RolloutSettings,
        objective: Objective,
        teacher: Any = None,
    ):
        if objective.needs_teacher:
            if teacher is None:
                raise ConfigurationError(f"the objective {objective.name!r} needs a teacher model")
            if teacher.config.vocab_size != student.config.vocab_size:
                raise ConfigurationError(
                    f"student and teacher need one vocabulary, got {student.config.vocab_size} and "
                    f"{teacher.config.vocab_size} tokens"
                )
        self.student = student
        self.tokenizer = tokenizer
        self.task = task
        self.settings = settings
        self.objective = objective
        self.teacher = teacher if objective.needs_teacher else None

    def accept(self, content: bytes) -> RolloutBatch:
        """Decodes a delivery and checks that it answers this run's order.

        Raises:
            MalformedRollouts: it does not.
        """
        batch = RolloutBatch.decode(content)
        batch.check(self.settings, self.task, self.student.config.vocab_size)
        return batch

    def backward(self, batches: Sequence[RolloutBatch], version: int | None = None) -> StepReport:
        """Accumulates the gradient of all batches; clears what gradients were there before.

        Batches are put in (version, batch) order, so the gradient does not depend on who delivered first.

        Args:
            batches: at least one, no (version, batch) twice.
            version: the policy version that the student holds; None is that of the newest batch.
        """
        started = time.perf_counter()
        batches = sorted(batches, key=lambda batch: (batch.version, batch.batch))
        keys = {(batch.version, batch.batch) for batch in batches}
        if not batches or len(keys) != len(batches):
            raise MalformedRollouts(f"expected at least one batch and none twice, got {len(batches)}")
        tokens, behaviour, advantages = self._tensors(batches)
        total = int(tokens.mask.sum())
        vocabulary = self.student.config.vocab_size
        samples = self.settings.samples
        rows_at_once = samples * max(1, _LOGITS_AT_ONCE // (samples * tokens.length * vocabulary))

        self.student.zero_grad(set_to_none=True)
        loss = 0.0
        for start in range(0, len(tokens.ids), rows_at_once):
            rows = tokens.rows(start, start + rows_at_once)
            teacher_logits = None
            if self.teacher is not None:
                with torch.inference_mode():
                    teacher_logits = shared_prompt_logits(self.teacher, rows, samples).float()
            scored = Scored(
                tokens=rows.completions,
                mask=rows.mask,
                logits=shared_prompt_logits(self.student, rows, samples).float(),
                teacher_logits=teacher_logits,
                behaviour_log_probs=behaviour[start : start + rows_at_once],
                advantages=advantages[start : start + rows_at_once],
            )
            part = self.objective.token_losses(scored)[rows.mask].sum() / total
            part.backward()
            loss += part.item()
        rewards = [reward for batch in batches for reward in batch.rewards]
        solved = [right for batch in batches for right in batch.solved]
        current = batches[-1].version if version is None else version
        return StepReport(
            loss=loss,
            reward=sum(rewards) / len(rewards),
            solved=sum(solved) / len(solved),
            tokens=total,
            completions=len(rewards),
            staleness=current - batches[0].version,
            seconds=time.perf_counter() - started,
        )

    def _tensors(self, batches: Sequence[RolloutBatch]) -> tuple[TokenBatch, torch.Tensor, torch.Tensor]:
        """Padded tokens, behaviour log-probabilities (N, T) and advantages (N,) in batch order."""
        device, padding = self.student.device, self.tokenizer.pad_token_id
        prompts, completions, log_probs, advantages = [], [], [], []
        for batch in batches:
            for index in batch.prompts:
                prompt = self.tokenizer.encode(self.task.prompt(index), add_special_tokens=False)
                prompts += [prompt] * batch.samples
            completions += batch.completions()
            log_probs += batch.behaviour_log_probs()
            rewards = torch.tensor(batch.rewards, dtype=torch.float32).view(-1, batch.samples)
            advantages.append(self.objective.advantages(rewards).flatten())
        tokens = TokenBatch.join(prompts, completions, padding, device)
        behaviour = torch.zeros(tokens.mask.shape, dtype=torch.float32)
        for row, values in enumerate(log_probs):
            behaviour[row, : len(values)] = torch.tensor(values)
        return tokens, behaviour.to(device), torch.cat(advantages).to(device)
