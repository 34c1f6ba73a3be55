"""The replica's state machine: it folds records, one after the other, and never serves a wrong bit.

Sans-IO: whoever drives it reads record `machine.version + 1` from wherever it likes and hands the
bytes in. Nothing is applied before every hash has been checked; nothing is served after a digest
has differed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hilosync.arithmetic.digest import differing_tensors
from hilosync.errors import ChainBroken, Diverged, MalformedPayload, TornState
from hilosync.optim import PolicyState
from hilosync.protocol.origin import read_record
from hilosync.protocol.run import Position, Run, replay
from hilosync.wire import Record, record_hash

__all__ = ["Applied", "ReplicaMachine"]


@dataclass(frozen=True)
class Applied:
    """What became of a record that was handed in.

    Attributes:
        record: the decoded record.
        new: False for a duplicate of a version that the replica already holds, which changes nothing.
    """

    record: Record
    new: bool


class ReplicaMachine:
    """Folds the records of one run.

    Attributes:
        run: what the genesis fixes.
        state: parameters and slots at `version`. Engines get copies of it, never these tensors.
        version: the newest version applied.
        digest: the digest of `version`.
        epoch: the learner epoch of the newest record.
        failure: what stopped this replica (`Diverged`, `TornState`); None while its bits are the learner's.
    """

    def __init__(self, run: Run, initial: torch.Tensor | None = None):
        self.run = run
        self.state, self.digest = run.initial_state(initial)
        self.version = 0
        self.epoch = 0
        self.failure: Diverged | TornState | None = None
        self._previous = run.origin

    @property
    def position(self) -> Position:
        """Where in the log `state` stands."""
        return Position(self.version, self.digest, self._previous, self.epoch)

    def rebase(self, state: PolicyState, position: Position) -> None:
        """Goes on from a verified state of another origin (a snapshot, a checkpoint), whatever was held or failed.

        Args:
            state: parameters and slots at `position`; the machine's own from here on.
            position: where in the log they stand.
        """
        self.state = state
        self.version, self.digest, self.epoch = position.version, position.digest, position.epoch
        self._previous = position.previous
        self.failure = None

    def receive(self, data: bytes) -> Applied:
        """Verifies and applies the bytes of a record.

        Raises:
            MalformedRecord: the bytes are damaged, or exceed the run's budget. Nothing was applied.
            RunMismatch, PlanMismatch: the record belongs elsewhere. Nothing was applied.
            BadSignature: the run's learner did not sign it. Nothing was applied.
            ChainBroken: the record does not follow the version held. Nothing was applied.
            Diverged: the record was applied and the result has other bits than the learner's. The
                machine refuses all further records and must not be served from.
            TornState: an earlier call was interrupted while it applied a record.
        """
        if self.failure is not None:
            raise self.failure
        record = read_record(self.run, data)
        if record.version <= self.version:
            return Applied(record, new=False)
        self._check_chain(record)
        try:
            done = replay(self.run, self.state, self.digest, record.version, record.payload, record.scalars)
        except MalformedPayload:
            raise  # decoding comes before the first change
        except BaseException as error:
            self.failure = TornState(
                f"version {record.version} was being applied when it was interrupted ({type(error).__name__}): this "
                "replica holds no version any more; join the run again"
            )
            raise
        if done.digest != record.digest:
            names = self.run.plan.tensors_at(differing_tensors(record.tags, done.tags))
            self.failure = Diverged(record.version, names, expected=record.digest, found=done.digest)
            raise self.failure
        self.version, self.digest, self.epoch = record.version, done.digest, record.epoch
        self._previous = record_hash(data)
        return Applied(record, new=True)

    def _check_chain(self, record: Record) -> None:
        if record.version != self.version + 1:
            raise ChainBroken(
                f"expected record {self.version + 1}, got {record.version}: records are applied in order, one by one"
            )
        if record.previous != self._previous:
            raise ChainBroken(
                f"record {record.version} follows a record with hash {record.previous.hex()[:16]}…, this replica "
                f"applied {self._previous.hex()[:16]}… as version {self.version}: the log was rewritten"
            )
        if record.epoch < self.epoch:
            raise ChainBroken(
                f"record {record.version} has learner epoch {record.epoch} after epoch {self.epoch}: "
                "it was written by a learner that had been replaced"
            )
