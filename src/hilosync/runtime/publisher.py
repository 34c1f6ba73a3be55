"""`StepPublisher`: encode, publish and replay the steps of a run that has been begun or resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hilosync.errors import ConfigurationError, Fenced, Truncated
from hilosync.log import Log
from hilosync.optim.schedules import Schedule
from hilosync.plan import AdapterBinding
from hilosync.protocol import LearnerMachine, Proposal, Run
from hilosync.runtime.anchors import SnapshotReport, SnapshotWriter
from hilosync.runtime.checkpoint import Checkpoint, Checkpoints
from hilosync.runtime.held import HeldPolicy
from hilosync.runtime.points import reach

__all__ = ["StepPublisher", "StepReport"]


@dataclass(frozen=True)
class StepReport:
    """What one `learner.step()` did.

    Attributes:
        version: the policy version that it made.
        record_bytes: bytes of the published record, header included.
        encode_seconds: time to gather, compress, replay and seal.
        publish_seconds: time until the log had accepted the record.
        residual_ratio: ‖E‖ ⁄ ‖G‖ of the error feedback.
        gradient_energies: ‖G‖² of each block before clipping, fp64, shape (blocks,).
        residual_energies: ‖E‖² of each block after the step, fp64, shape (blocks,).
        snapshots: what became of the snapshots that were finished, or failed, since the step before.
    """

    version: int
    record_bytes: int
    encode_seconds: float
    publish_seconds: float
    residual_ratio: float
    gradient_energies: np.ndarray = field(repr=False)
    residual_energies: np.ndarray = field(repr=False)
    snapshots: tuple[SnapshotReport, ...] = ()


class StepPublisher(HeldPolicy[LearnerMachine]):
    """What a learner does once it has a run: see `Learner`, which begins or resumes one.

    Attributes:
        log: the run's stores.
    """

    log: Log

    def _set_up(
        self,
        log: Log,
        run: Run,
        binding: AdapterBinding,
        machine: LearnerMachine,
        checkpoints: Checkpoints | None,
        snapshots: SnapshotWriter | None,
        schedule: Schedule | None,
        on_gradient: Callable[[int, torch.Tensor], None] | None,
    ) -> None:
        self.log = log
        self.run = run
        self._binding = binding
        self._machine = machine
        self._checkpoints = checkpoints
        self._snapshots = snapshots
        self._schedule = schedule
        self._on_gradient = on_gradient
        self._gradient = torch.empty(run.plan.size)
        self._extra: Any = None
        binding.serve(machine.state.params)

    @property
    def extra(self) -> Any:
        """The user's own state, JSON values (a data position, say), kept in every checkpoint.

        Set it before `step` to what is true once that step is done: after `resume` it is what it was when
        the checkpoint's version was made, or None without a checkpoint.
        """
        return self._extra

    @extra.setter
    def extra(self, value: Any) -> None:
        try:
            self._extra = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"a learner's extra state must consist of JSON values: {error}") from error

    def step(self, learning_rates: tuple[float, ...] | None = None) -> StepReport:
        """Publishes one optimizer step made from the model's gradients, and applies it to the model.

        A step whose record the log refused stays pending, and its gradient is used up: calling `step`
        again, without a backward pass in between, appends the same bytes once more.

        Args:
            learning_rates: one per param group; None for what the schedule says.

        Raises:
            NonFinite: a gradient holds NaN or Inf; nothing was changed or published.
            Fenced: another learner writes this log; this one must stop, and the model has the version before.
            TornState: a step was interrupted half-way; nothing was published, `resume` helps.
            LogUnavailable: the log did not accept the record.
        """
        flushed = self.flush()
        if flushed is not None and not self._binding.has_gradients:
            return flushed
        start = time.perf_counter()
        gradient = self._binding.gradients(self._gradient)
        if self._on_gradient is not None:
            self._on_gradient(self.version + 1, gradient)
        proposal = self._propose(gradient, learning_rates)
        self._binding.clear_gradients()
        return self._append(proposal, time.perf_counter() - start)

    def publish(self, gradient: torch.Tensor, learning_rates: tuple[float, ...] | None = None) -> StepReport:
        """`step` for a trainer that gathers the gradient itself (sharded training, say).

        After `LogUnavailable`, call `flush` until the pending record is accepted, then go on.

        Args:
            gradient: G in plan order, flat fp32 on the CPU, shape (plan.size,).
            learning_rates: as for `step`.
        """
        self.flush()
        start = time.perf_counter()
        proposal = self._propose(gradient, learning_rates)
        return self._append(proposal, time.perf_counter() - start)

    def flush(self) -> StepReport | None:
        """Appends the record that the log refused before, the same bytes; None if there is none.

        Raises:
            Fenced, TornState, LogUnavailable: as `step`.
        """
        if self._machine.failure is not None:
            raise self._machine.failure
        pending = self._machine.pending
        return None if pending is None else self._append(pending, 0.0)

    def _propose(self, gradient: torch.Tensor, learning_rates: tuple[float, ...] | None) -> Proposal:
        if learning_rates is None and self._schedule is not None:
            learning_rates = self._schedule(self.version + 1)
        reach("before apply")
        proposal = self._machine.propose(gradient, learning_rates)
        reach("after apply")
        return proposal

    def _append(self, proposal: Proposal, encode_seconds: float) -> StepReport:
        # The checkpoint comes first and holds the record, so that there is no moment at which the log has
        # a version whose residual nobody knows.
        self._save()
        start = time.perf_counter()
        reach("before append")
        try:
            self.log.steps.append(proposal.version, proposal.data)
        except Fenced as error:
            self._machine.failure = error
            raise
        reach("after append")
        publish_seconds = time.perf_counter() - start
        self._machine.accept(proposal.version)
        self._binding.serve(self._machine.state.params)
        if self._snapshots is not None:
            self._snapshots.offer(self._machine.state, proposal.version)
        return StepReport(
            version=proposal.version,
            record_bytes=len(proposal.data),
            encode_seconds=encode_seconds,
            publish_seconds=publish_seconds,
            residual_ratio=proposal.residual_ratio,
            gradient_energies=proposal.gradient_energies,
            residual_energies=proposal.residual_energies,
            snapshots=() if self._snapshots is None else tuple(self._snapshots.take_reports()),
        )

    def check_unfenced(self) -> None:
        """Asks whether another learner has gone on, as whoever waits in vain for rollouts wants to know.

        Raises:
            Fenced: it has; this learner must stop.
            LogUnavailable: the log did not answer.
        """
        if self._machine.pending is not None or self._machine.failure is not None:
            return
        version = self.version + 1
        try:
            gone_on = self.log.steps.read(version) is not None
        except Truncated:
            gone_on = True
        if gone_on:
            self._machine.failure = Fenced(
                f"{self.log.url}: another learner has written version {version}: expected none; this learner must "
                "stop, or start again from the log"
            )
            raise self._machine.failure

    def close(self, wait: float = 60.0) -> list[SnapshotReport]:
        """Ends the learner's work: waits at most `wait` seconds for the snapshot that is being written.

        Returns:
            What became of the snapshots that no step has reported.
        """
        if self._snapshots is None:
            return []
        self._snapshots.close(wait)
        return self._snapshots.take_reports()

    def _save(self, due: bool = False) -> None:
        machine, checkpoints = self._machine, self._checkpoints
        if checkpoints is None or not (due or checkpoints.due(machine.position.version)):
            return
        encoder = self.run.compressor.save_state(machine.encoder)
        own = {f"encoder.{name}": tensor for name, tensor in encoder.items()}
        own |= {"residual": machine.residual, "generator": torch.get_rng_state()}
        record = b"" if machine.pending is None else machine.pending.data
        checkpoints.save(Checkpoint(machine.state, machine.position, own, record, self.extra))
