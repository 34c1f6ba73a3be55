"""The lockstep loop: collect the rollouts of version v, make v + 1, until the run is done.

Staleness is 0: every token that a step learns from was drawn from the policy that the step starts at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hilosync.errors import MalformedRollouts
from hilosync.rl.evaluation import Evaluation, evaluate
from hilosync.rl.rollouts import RolloutBatch
from hilosync.rl.training import StepReport as BackwardReport
from hilosync.rl.training import Trainer
from hilosync.runtime import Learner, StepReport

__all__ = ["Collect", "Progress", "lockstep"]

Collect = Callable[[int], Sequence[bytes]]
"""Returns the encoded rollouts of a policy version, one delivery per batch."""


@dataclass(frozen=True)
class Progress:
    """One version of a run.

    Attributes:
        version: the policy version.
        backward: what the objective saw on the way to this version; None at the start.
        step: what publishing it took; None at the start.
        evaluation: held-out pass@1 and pass@4 of this version, where it was evaluated.
    """

    version: int
    backward: BackwardReport | None
    step: StepReport | None
    evaluation: Evaluation | None


def lockstep(
    learner: Learner,
    trainer: Trainer,
    collect: Collect,
    *,
    versions: int,
    evaluate_every: int = 10,
    problems: int = 200,
) -> Iterator[Progress]:
    """Yields the start and then every version as it is made.

    Args:
        learner: publishes the steps; its model is the trainer's student.
        trainer: turns rollouts into gradients.
        collect: gathers the rollouts of the current version.
        versions: number of versions to make.
        evaluate_every: versions between evaluations; first and last are always evaluated.
        problems: held-out problems per evaluation.

    Raises:
        MalformedRollouts: a worker served another policy than the learner's.
    """

    def measure() -> Evaluation:
        return evaluate(trainer.student, trainer.tokenizer, trainer.task, problems=problems, seed=trainer.settings.seed)

    yield Progress(learner.version, None, None, measure())
    for _ in range(versions):
        batches = [trainer.accept(content) for content in collect(learner.version)]
        for batch in batches:
            _check_policy(batch, learner)
        backward = trainer.backward(batches, learner.version)
        step = learner.step()
        due = step.version % evaluate_every == 0 or step.version == versions
        yield Progress(step.version, backward, step, measure() if due else None)


def _check_policy(batch: RolloutBatch, learner: Learner) -> None:
    if batch.version != learner.version or batch.state_digest != learner.digest:
        raise MalformedRollouts(
            f"worker {batch.worker!r} served version {batch.version} with digest {batch.state_digest.hex()[:16]}…, "
            f"the learner's is version {learner.version} with digest {learner.digest.hex()[:16]}…"
        )
