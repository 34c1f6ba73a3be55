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
from hilosync.runtime import Delivery, Learner, StepReport

__all__ = ["Collect", "Progress", "admit", "lockstep"]

Collect = Callable[[int], Sequence[RolloutBatch]]
"""Returns the rollouts of a policy version, one batch each."""


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

    """

    def measure() -> Evaluation:
        return evaluate(trainer.student, trainer.tokenizer, trainer.task, problems=problems, seed=trainer.settings.seed)

    yield Progress(learner.version, None, None, measure())
    for _ in range(versions):
        backward = trainer.backward(collect(learner.version), learner.version)
        step = learner.step()
        due = step.version % evaluate_every == 0 or step.version == versions
        yield Progress(step.version, backward, step, measure() if due else None)


def admit(trainer: Trainer, learner: Learner, delivery: Delivery) -> RolloutBatch:
    """Reads a worker's delivery.

    Raises:
        MalformedRollouts: it is no answer to its order, or was generated with another policy than the
            learner's.
    """
    batch = trainer.accept(delivery.content)
    if (batch.version, batch.batch) != (delivery.order.version, delivery.order.batch):
        raise MalformedRollouts(
            f"worker {batch.worker!r} answered batch {batch.batch} of version {batch.version}, it was asked for batch "
            f"{delivery.order.batch} of version {delivery.order.version}"
        )
    if batch.version != learner.version or batch.state_digest != learner.digest:
        raise MalformedRollouts(
            f"worker {batch.worker!r} served version {batch.version} with digest {batch.state_digest.hex()[:16]}…, "
            f"the learner's is version {learner.version} with digest {learner.digest.hex()[:16]}…"
        )
    return batch
