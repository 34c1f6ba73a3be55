"""The learner's state machine: it turns a gradient into the next record.

Sans-IO: `propose` compresses, replays its own payload and seals the record; whoever drives the
machine appends those bytes to the log and then calls `accept`. Until then the machine makes no other
record, so that a failed append is retried with the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hilosync.compress import CorrectedGradient, correct, default_decay, encode_corrected, retain
from hilosync.errors import BudgetTooSmall, ConfigurationError, Fenced, MalformedPayload, TornState
from hilosync.optim import PolicyState
from hilosync.protocol.run import Position, Run, replay
from hilosync.wire import Record, Signer, encode_record, record_hash

__all__ = ["LearnerMachine", "Proposal"]


@dataclass(frozen=True)
class Proposal:
    """A sealed record that waits for the log's acceptance.

    Attributes:
        version: the version that the record makes.
        data: the record's bytes, at most the run's budget.
        gradient_energies: ‖G‖² of each block before clipping, fp64, shape (blocks,).
        residual_energies: ‖E‖² of each block after the step, fp64, shape (blocks,).
    """

    version: int
    data: bytes
    gradient_energies: np.ndarray
    residual_energies: np.ndarray

    @property
    def residual_ratio(self) -> float:
        """‖E‖ ⁄ ‖G‖; 0 without error feedback."""
        energy = float(self.gradient_energies.sum())
        return (float(self.residual_energies.sum()) / energy) ** 0.5 if energy else 0.0


class LearnerMachine:
    """Makes the records of one run.

    Attributes:
        run: what the genesis fixes.
        state: parameters and slots of the newest proposal.
        version: the newest accepted version.
        digest: the digest of the newest proposal.
        pending: the proposal that has not been accepted yet, or None.
        residual: E, flat fp32, shape (plan.size,); all zero without error feedback.
        encoder: the compressor's state, after the newest proposal.
        failure: what stopped this learner for good (`Fenced`, `TornState`), or None.
    """

    def __init__(
        self,
        run: Run,
        *,
        epoch: int = 1,
        sign: Signer | None = None,
        initial: torch.Tensor | None = None,
        decay: float | None = None,
        clip: float | None = None,
        residual_cap: float | None = None,
    ):
        """Starts at version 0.

        Args:
            run: what the genesis fixes.
            epoch: this learner's epoch, higher than that of any learner before it.
            sign: signs every record; needed exactly where the genesis names a key.
            initial: the initial parameters where the genesis names a stored adapter.
            decay: of the error feedback, E ← decay·(G + E − Ĝ); None for the optimizer's default.
            clip: largest norm of G that enters a step, before E is added; None for no limit.
            residual_cap: largest ‖E‖ that is kept, in units of the step's ‖G‖; None for no limit.

        Raises:
            ConfigurationError: decay, clip or cap are out of range, or the optimizer has settings for
                another number of param groups than the plan.
            BudgetTooSmall: no payload of the compressor fits into the budget beside the header.
        """
        for name, value, allowed, expected in (
            ("decay of the residual", decay, lambda x: 0 <= x <= 1, "a number from 0 to 1"),
            ("clip norm", clip, lambda x: 0 < x < float("inf"), "a finite number above 0"),
            ("cap of the residual", residual_cap, lambda x: 0 <= x < float("inf"), "a finite number of 0 or more"),
        ):
            if value is not None and not allowed(value):
                raise ConfigurationError(f"{name}: expected {expected}, or None for the default, got {value}")
        if (sign is None) != (run.genesis.key is None):
            raise ConfigurationError(
                "the run's records are signed: give the learner the run's private key"
                if sign is None
                else "this run's records are not signed: begin another run to sign them"
            )
        _scalars(run, 1, None)
        self.run = run
        self._sign = sign
        self.epoch = epoch
        self.state, self.digest = run.initial_state(initial)
        self.version = 0
        self.pending: Proposal | None = None
        self.failure: Fenced | TornState | None = None
        self.decay = default_decay(run.optimizer.name) if decay is None else decay
        self.clip = clip
        self.residual_cap = residual_cap
        self.residual = torch.zeros(run.plan.size)
        self.encoder: Any = run.compressor.init(run.plan)
        self._accepted = Position(0, self.digest, run.origin, 0)
        self._payload_budget = run.record_limit - run.overhead
        smallest = run.compressor.smallest_payload(run.plan)
        if self._payload_budget < smallest:
            raise BudgetTooSmall(
                f"a budget of {run.record_limit} bytes per record leaves {max(0, self._payload_budget)} for the "
                f"payload after {run.overhead} of header, scalars and tags; {run.compressor.name} needs at least "
                f"{smallest}: set a budget of {smallest + run.overhead} bytes or more "
                f"({100 * (smallest + run.overhead) / run.plan.adapter_bytes:.2f}% of this adapter)"
            )

    @property
    def position(self) -> Position:
        """Where in the log `state` stands once the pending proposal, if there is one, has been accepted."""
        if self.pending is None:
            return self._accepted
        return Position(self.pending.version, self.digest, record_hash(self.pending.data), self.epoch)

    def rebase(self, state: PolicyState, position: Position, residual: torch.Tensor, encoder: Any) -> None:
        """Goes on from a version that is in the log, in the place of the learner that wrote it.

        Args:
            state: parameters and slots at `position`; the machine's own from here on.
            position: where in the log they stand.
            residual: E, flat fp32, shape (plan.size,); the machine's own from here on.
            encoder: the compressor's state.
        """
        self.state, self.digest, self.version = state, position.digest, position.version
        self.residual, self.encoder = residual, encoder
        self._accepted = position

    def propose(self, gradient: torch.Tensor, learning_rates: tuple[float, ...] | None = None) -> Proposal:
        """Compresses a gradient and replays the result; the machine is then at the new version's state.

        All or nothing: whatever is raised before the optimizer's step, here or in the compressor, E, the
        encoder's state, parameters and digest are as they were, and the next gradient may be proposed.

        Args:
            gradient: G, flat fp32 on the CPU, shape (plan.size,).
            learning_rates: one per param group; None for the optimizer's configured ones.

        Raises:
            NonFinite: G or G + E holds NaN, Inf or a value beyond 2^120; the message names the tensor.
            ConfigurationError: the learning rates are not such rates.
            Fenced, TornState: this learner has been stopped before; resume the run from the log.
        """
        if self.failure is not None:
            raise self.failure
        if self.pending is not None:
            raise ConfigurationError(
                f"version {self.pending.version} is proposed and not accepted: append its bytes and accept it first"
            )
        run, version = self.run, self.version + 1
        scalars = _scalars(run, version, learning_rates)
        corrected = correct(run.plan, gradient, self.residual, self.clip)
        payload, encoder = encode_corrected(run.compressor, run.plan, self.encoder, corrected, self._payload_budget)
        if len(payload) > self._payload_budget:
            raise BudgetTooSmall(
                f"{run.compressor.name} made a payload of {len(payload)} bytes for a budget of {self._payload_budget}: "
                "the compressor is at fault, nothing was published"
            )
        try:
            self.pending = self._seal(version, payload, scalars, corrected, encoder)
        except MalformedPayload:
            raise  # decoding comes before the first change
        except BaseException as error:
            self.failure = TornState(
                f"version {version} was being made when it was interrupted ({type(error).__name__}: {error}): "
                f"parameters and slots are those of no version, and nothing was published; resume the run, whose "
                f"newest version is {self.version}"
            )
            raise
        return self.pending

    def accept(self, version: int) -> None:
        """The log holds the pending record; the machine may go on to the next version."""
        if self.pending is None or self.pending.version != version:
            pending = "none" if self.pending is None else str(self.pending.version)
            raise ConfigurationError(f"version {version} is not the pending proposal ({pending})")
        self._accepted = self.position
        self.version = version
        self.pending = None

    def _seal(
        self, version: int, payload: bytes, scalars: np.ndarray, corrected: CorrectedGradient, encoder: Any
    ) -> Proposal:
        """Replays the payload, seals the record, and only then changes E."""
        run = self.run
        done = replay(run, self.state, self.digest, version, payload, scalars)
        record = Record(
            run=run.genesis.run_id,
            epoch=self.epoch,
            version=version,
            previous=self._accepted.previous,
            plan=run.plan.fingerprint,
            configuration=run.configuration,
            scalars=scalars,
            tags=done.tags,
            payload=payload,
            digest=done.digest,
        )
        data = encode_record(record, self._sign)
        sent, left = retain(run.plan, corrected, done.gradient, self.decay, self.residual_cap)
        self.encoder = encoder
        self.digest = done.digest
        return Proposal(
            version=version,
            data=data,
            gradient_energies=sent,
            residual_energies=left,
        )


def _scalars(run: Run, version: int, learning_rates: tuple[float, ...] | None) -> np.ndarray:
    """The step's scalars, fp32, shape (1 or groups, scalars): what a record can carry and every replica takes.

    Raises:
        ConfigurationError: they are for another number of param groups, or not finite.
    """
    scalars = run.optimizer.scalars(version, learning_rates)
    groups, columns = run.plan.groups, len(run.optimizer.scalar_names)
    if scalars.shape not in ((1, columns), (groups, columns)):
        raise ConfigurationError(
            f"optimizer {run.optimizer.name}: expected scalars for {'1' if groups == 1 else f'1 or {groups}'} param "
            f"groups, {columns} each, got shape {scalars.shape}: give one learning rate, or one per group of the plan"
        )
    if scalars.dtype != np.float32 or not np.isfinite(scalars).all():
        raise ConfigurationError(
            f"optimizer {run.optimizer.name}: expected finite fp32 scalars for version {version}, got "
            f"{scalars.tolist()} of {scalars.dtype}"
        )
    return scalars
