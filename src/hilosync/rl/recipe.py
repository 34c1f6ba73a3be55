"""`Recipe`: what a learning run trains on what, so that learner and workers build the same objects.

The learner writes it into the genesis; a worker needs nothing but the log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hilosync.errors import RunMismatch
from hilosync.rl.objectives import open_objective
from hilosync.rl.policy import attach_adapter, load_model, load_tokenizer
from hilosync.rl.rollouts import RolloutEngine, RolloutSettings
from hilosync.rl.tasks import open_task
from hilosync.rl.training import Trainer
from hilosync.runtime import Pace

__all__ = ["Recipe"]


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models, task and sizes of a run.

    Attributes:
        student: base model of the policy: a tiny model's name, a local path or a hub id.
        teacher: model whose distribution is distilled.
        objective: one of `hilosync.rl.objectives.OBJECTIVES`.
        task: one of `hilosync.rl.tasks.TASKS`.
        people: inhabitants of a Knights and Knaves island.
        rank: of the LoRA adapter.
        alpha: of the LoRA adapter.
        batches: orders per policy version, shared out among the workers.
        prompts: prompts per batch.
        samples: completions per prompt.
        temperature: of sampling.
        mode: how rollouts and steps may be interleaved: one of `hilosync.runtime.PACES`.
        max_staleness: versions that rollouts may be behind the step that uses them; 0 in lockstep.
        seed: of prompts, sampling noise and the initial adapter.
        device: where learner and workers compute, as torch names it.
    """

    student: str = "tiny-kk-student"
    teacher: str = "tiny-kk-teacher"
    objective: str = "opd"
    task: str = "knights-compact"
    people: int = 3
    rank: int = 64
    alpha: int = 64
    batches: int = 2
    prompts: int = 8
    samples: int = 4
    temperature: float = 1.0
    mode: str = "lockstep"
    max_staleness: int = 0
    seed: int = 0
    device: str = "cpu"

    def to_json(self) -> dict[str, Any]:
        """As the genesis carries it."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, task: dict[str, Any]) -> Recipe:
        """Reads the recipe out of a genesis.

        Raises:
            RunMismatch: the run was not begun by `hilo learn` or `hilo demo`.
        """
        try:
            return msgspec.convert(task, cls)
        except msgspec.ValidationError as error:
            raise RunMismatch(
                f"the run's genesis has no recipe that this program knows ({error}): "
                "`hilo work` serves runs begun by `hilo learn` or `hilo demo`"
            ) from error

    @property
    def settings(self) -> RolloutSettings:
        """What learner and workers must agree on about rollouts."""
        return RolloutSettings(self.seed, self.prompts, self.samples, self.temperature)

    @property
    def pace(self) -> Pace:
        """How far rollouts may be behind, and how many a step uses.

        Raises:
            ConfigurationError: there is no such mode, or it has no such staleness.
        """
        return Pace(self.mode, self.max_staleness, self.batches)

    def engine(self) -> RolloutEngine:
        """A rollout engine around a fresh PEFT model of the student.

        Raises:
            ModelNotFound: there is no such student.
        """
        tokenizer = load_tokenizer(self.student)
        model = attach_adapter(load_model(self.student, device=self.device), self.rank, self.alpha)
        return RolloutEngine(model, tokenizer, open_task(self.task, tokenizer, self.people), self.settings)

    def trainer(self, engine: RolloutEngine) -> Trainer:
        """What computes the objective's gradient for the engine's model.

        Raises:
            ModelNotFound: there is no such teacher.
        """
        teacher = load_model(self.teacher, device=self.device)
        return Trainer(
            engine.model, engine.tokenizer, engine.task, self.settings, open_objective(self.objective), teacher
        )
