"""The loop of a run: ask for rollouts, collect what the next step uses, make the next version, until it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hilosync.errors import MalformedRollouts
from hilosync.rl.evaluation import Evaluation, evaluate
from hilosync.rl.rollouts import RolloutBatch
from hilosync.rl.training import StepReport as BackwardReport
from hilosync.rl.training import Trainer
from hilosync.runtime import Delivery, Learner, StepReport

__all__ = ["Admission", "Collect", "Progress", "make_versions"]

Collect = Callable[[int], Sequence[RolloutBatch]]
"""Returns the rollouts that the step from a policy version uses."""


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


def make_versions(
    learner: Learner,
    trainer: Trainer,
    collect: Collect,
    *,
    versions: int,
    evaluate_every: int = 10,
    problems: int = 200,
    offer: Callable[[int], None] = lambda version: None,
) -> Iterator[Progress]:
    """Yields the start and then every version as it is made.

    Args:
        learner: publishes the steps; its model is the trainer's student.
        trainer: turns rollouts into gradients.
        collect: gathers the rollouts of the step from a version.
        versions: number of versions to make.
        evaluate_every: versions between evaluations; first and last are always evaluated.
        problems: held-out problems per evaluation.
        offer: called as soon as there is a version to step from, before it is evaluated, so that workers
            generate meanwhile.

    """

    def measure() -> Evaluation:
        return evaluate(trainer.student, trainer.tokenizer, trainer.task, problems=problems, seed=trainer.settings.seed)

    offer(learner.version)
    yield Progress(learner.version, None, None, measure())
    for remaining in reversed(range(versions)):
        backward = trainer.backward(collect(learner.version), learner.version)
        step = learner.step()
        if remaining:
            offer(step.version)
        due = step.version % evaluate_every == 0 or not remaining
        yield Progress(step.version, backward, step, measure() if due else None)


class Admission:
    """Reads workers' deliveries and refuses what was not generated with this learner's policies.

    Args:
        trainer: checks that a delivery answers this run's prompts.
        learner: whose policies are right.
        max_staleness: S, versions that rollouts may be behind.
        digests: those of versions before the learner's, which a learner that was started again has
            replayed; by version.
    """

    def __init__(
        self, trainer: Trainer, learner: Learner, max_staleness: int, digests: Mapping[int, bytes] | None = None
    ):
        self._trainer = trainer
        self._learner = learner
        self._max_staleness = max_staleness
        self._digests = dict(digests or {})

    def note(self) -> None:
        """Remembers the digest of the learner's version; to be called at every version."""
        self._digests[self._learner.version] = self._learner.digest
        oldest = self._learner.version - self._max_staleness
        self._digests = {version: digest for version, digest in self._digests.items() if version >= oldest}

    def __call__(self, delivery: Delivery) -> RolloutBatch:
        """The rollouts of a delivery.

        Raises:
            MalformedRollouts: it is no answer to its order, or was generated with a policy that is none of
                the learner's, older than its order, or too old.
        """
        batch = self._trainer.accept(delivery.content)
        order = delivery.order
        if (batch.version, batch.batch) != (order.version, order.batch):
            raise MalformedRollouts(
                f"worker {batch.worker!r} answered batch {batch.batch} of version {batch.version}, it was asked for "
                f"batch {order.batch} of version {order.version}"
            )
        oldest, newest = max(order.version, self._learner.version - self._max_staleness), self._learner.version
        if not oldest <= batch.policy_version <= newest:
            raise MalformedRollouts(
                f"worker {batch.worker!r} served version {batch.policy_version} for batch {order.batch} of version "
                f"{order.version}, expected a version from {oldest} to {newest}"
            )
        digest = self._digests.get(batch.policy_version)
        if digest is None:
            raise MalformedRollouts(
                f"the digest of version {batch.policy_version} is not known: expected it to be noted"
            )
        if batch.state_digest != digest:
            raise MalformedRollouts(
                f"worker {batch.worker!r} served version {batch.policy_version} with digest "
                f"{batch.state_digest.hex()[:16]}…, the learner's is {digest.hex()[:16]}…"
            )
        return batch
