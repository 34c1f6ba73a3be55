"""Tasks, objectives, rollouts and training: everything that looks inside a policy."""

from __future__ import annotations

from hilosync.rl.evaluation import Evaluation, evaluate
from hilosync.rl.objectives import open_objective
from hilosync.rl.policy import TINY_MODELS, attach_adapter, load_model, load_tokenizer
from hilosync.rl.rollouts import RolloutBatch, RolloutEngine, RolloutSettings, prompts_of
from hilosync.rl.tasks import open_task
from hilosync.rl.training import StepReport, Trainer

__all__ = [
    "TINY_MODELS",
    "Evaluation",
    "RolloutBatch",
    "RolloutEngine",
    "RolloutSettings",
    "StepReport",
    "Trainer",
    "attach_adapter",
    "evaluate",
    "load_model",
    "load_tokenizer",
    "open_objective",
    "open_task",
    "prompts_of",
]
