"""A run as its genesis describes it, and the one function that everybody folds over the log.

Policy version v is a pure function of (initial state, records 1..v). `Run` holds what the genesis
fixes; `replay` is the function. The learner applies it to the record that it is about to publish,
every replica to the record that it has read: the same code on the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from blake3 import blake3

from hilosync.arithmetic import initial_parameters
from hilosync.arithmetic.digest import initial_digest, next_digest, tensor_tags
from hilosync.arithmetic.gradient import DecodedGradient
from hilosync.compress import Compressor, get_compressor
from hilosync.errors import PlanMismatch
from hilosync.optim import Optimizer, PolicyState, get_optimizer, init_state
from hilosync.plan import AdapterPlan, Block
from hilosync.wire import Genesis, Limits, configuration_fingerprint, decode_genesis, record_hash, record_overhead

__all__ = ["Position", "Replayed", "Run", "replay"]


@dataclass(frozen=True)
class Run:
    """What the genesis of a run fixes for all its versions.

    Attributes:
        genesis: the decoded record 0.
        origin: hash of record 0, the `previous` of record 1.
        plan: the adapter's tensors.
        optimizer: the transition that every replica replays.
        compressor: what reads Ĝ out of a payload.
        configuration: 16-byte fingerprint of everything that gives records their meaning.
    """

    genesis: Genesis
    origin: bytes
    plan: AdapterPlan
    optimizer: Optimizer
    compressor: Compressor
    configuration: bytes

    @classmethod
    def of(cls, record: bytes) -> Run:
        """Reads record 0.

        Raises:
            MalformedRecord: the bytes are not a genesis.
            UnknownName: this installation lacks the run's compressor or optimizer.
        """
        genesis = decode_genesis(record)
        plan = AdapterPlan(
            tuple(Block(t.name, t.rows, t.columns, t.fan_in, t.group) for t in genesis.plan.blocks),
            bytes_per_element=genesis.plan.bytes_per_element,
        )
        return cls(
            genesis=genesis,
            origin=record_hash(record),
            plan=plan,
            optimizer=get_optimizer(genesis.optimizer.name, genesis.optimizer.settings),
            compressor=get_compressor(genesis.compressor.name, genesis.compressor.settings),
            configuration=configuration_fingerprint(genesis),
        )

    @property
    def overhead(self) -> int:
        """Bytes of a record beyond its payload."""
        return record_overhead(
            blocks=len(self.plan.blocks),
            groups=self.plan.groups,
            scalars=len(self.optimizer.scalar_names),
            signed=self.genesis.key is not None,
        )

    @property
    def record_limit(self) -> int:
        """Bytes that no record exceeds: the run's budget, or twice an fp32 gradient where it has none."""
        return self.genesis.budget or self.overhead + 8 * self.plan.size

    @property
    def limits(self) -> Limits:
        """The lengths that a reader of this run's records believes."""
        return Limits(
            payload_bytes=self.record_limit - self.overhead,
            blocks=len(self.plan.blocks),
            groups=self.plan.groups,
            scalars=len(self.optimizer.scalar_names),
        )

    def initial_state(self, initial: torch.Tensor | None = None) -> tuple[PolicyState, bytes]:
        """The state of version 0 and its digest.

        The digest starts from the configuration, not from the run's id: two runs of one seed that
        publish the same steps have the same digests, wherever their logs are.

        Args:
            initial: fp32 parameters, flat, for a run that starts from a stored adapter; None where the
                genesis says that they follow from the seed.
        """
        if initial is None:
            initial = initial_parameters(self.plan, self.genesis.seed)
        if initial.numel() != self.plan.size:
            raise PlanMismatch(f"the run's initial adapter has {initial.numel()} elements, its plan {self.plan.size}")
        state = init_state(self.plan, self.optimizer, initial)
        return state, initial_digest(self.configuration, self.plan, state)


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the log a state stands: all that is needed beside the state to go on folding.

    Attributes:
        version: the newest version applied.
        digest: the digest of that version, 32 bytes.
        previous: hash of that version's record (of the genesis for version 0), 32 bytes.
        epoch: the learner epoch of that record; 0 for version 0.
    """

    version: int
    digest: bytes
    previous: bytes
    epoch: int


@dataclass(frozen=True)
class Replayed:
    """What a replay leaves behind beside the changed state.

    Attributes:
        gradient: Ĝ, which the step was made with.
        digest: 32 bytes over parameters, slots and the history of payloads.
        tags: uint16, one per block, to name the tensors that differ.
    """

    gradient: DecodedGradient
    digest: bytes
    tags: np.ndarray


def replay(
    run: Run, state: PolicyState, previous: bytes, version: int, payload: bytes | memoryview, scalars: np.ndarray
) -> Replayed:
    """Applies one step in place: decode the payload, replay the optimizer, digest the result.

    Args:
        run: the run.
        state: the state of version − 1, which becomes the state of `version`.
        previous: digest of version − 1.
        version: the version that the step makes.
        payload: the compressor's bytes.
        scalars: fp32, shape (groups, scalars), the step's scalars as the record carries them.

    Raises:
        MalformedPayload: the payload is not one of this compressor and plan; `state` is untouched.
    """
    gradient = run.compressor.decode(run.plan, payload)
    sums = run.optimizer.step(run.plan, state, gradient, scalars)
    digest = next_digest(previous, blake3(payload).digest(), sums, run.plan, state, version)
    return Replayed(gradient, digest, tensor_tags(sums))
