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
        orders: (version, batch) of the orders whose rollouts were used, ascending.
        staleness_mean: versions between the policy that generated a batch and the current one, over batches.
        staleness_max: the same, at most.
        ratio_mean: π ⁄ β of current policy and policy that drew a token, mean over the tokens of stale
            batches; 1 if there are none. The expectation is 1, so what is far from it says that the
            rollouts are too few or too stale.
        seconds: wall time of forward and backward passes.
    """

    loss: float
    reward: float
    solved: float
    tokens: int
    completions: int
    orders: tuple[tuple[int, int], ...]
    staleness_mean: float
    staleness_max: int
    ratio_mean: float
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
        current = max(batch.policy_version for batch in batches) if version is None else version
        lags = [current - batch.policy_version for batch in batches]
        tokens, behaviour, advantages = self._tensors(batches)
        stale = torch.tensor([lag > 0 for batch, lag in zip(batches, lags, strict=True) for _ in batch.lengths])
        stale = stale.to(tokens.mask.device)[:, None] & tokens.mask
        total = int(tokens.mask.sum())
        vocabulary = self.student.config.vocab_size
        samples = self.settings.samples
        rows_at_once = samples * max(1, _LOGITS_AT_ONCE // (samples * tokens.length * vocabulary))

        self.student.zero_grad(set_to_none=True)
        loss = ratios = 0.0
        for start in range(0, len(tokens.ids), rows_at_once):
            rows = tokens.rows(start, start + rows_at_once)
            teacher_logits = None
            if self.teacher is not None:
                with torch.inference_mode():
                    teacher_logits = shared_prompt_logits(self.teacher, rows, samples).float()
            logits = shared_prompt_logits(self.student, rows, samples).float()
            old = behaviour[start : start + rows_at_once]
            behind = stale[start : start + rows_at_once]
            log_ratios = self._log_ratios(logits, rows.completions, old, behind)
            ratios += float(log_ratios[behind].exp().sum())
            scored = Scored(
                tokens=rows.completions,
                mask=rows.mask,
                logits=logits,
                teacher_logits=teacher_logits,
                behaviour_log_probs=old,
                log_ratios=log_ratios,
                advantages=advantages[start : start + rows_at_once],
            )
            part = self.objective.token_losses(scored)[rows.mask].sum() / total
            part.backward()
            loss += part.item()
        rewards = [reward for batch in batches for reward in batch.rewards]
        solved = [right for batch in batches for right in batch.solved]
        return StepReport(
            loss=loss,
            reward=sum(rewards) / len(rewards),
            solved=sum(solved) / len(solved),
            tokens=total,
            completions=len(rewards),
            orders=tuple((batch.version, batch.batch) for batch in batches),
            staleness_mean=sum(lags) / len(lags),
            staleness_max=max(lags),
            ratio_mean=ratios / int(stale.sum()) if stale.any() else 1.0,
            seconds=time.perf_counter() - started,
        )

    @torch.no_grad()
    def _log_ratios(
        self, logits: torch.Tensor, tokens: torch.Tensor, behaviour: torch.Tensor, stale: torch.Tensor
    ) -> torch.Tensor:
        """log π − log β of each token at the temperature it was drawn with, shape (N, T); 0 where it is not stale."""
        if not stale.any():
            return torch.zeros_like(behaviour)
        tempered = logits.detach() / self.settings.temperature
        current = tempered.gather(2, tokens.unsqueeze(2)).squeeze(2) - tempered.logsumexp(dim=-1)
        return torch.where(stale, current - behaviour, 0.0)

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
