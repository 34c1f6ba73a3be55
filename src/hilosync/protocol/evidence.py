"""What the log says about the state of a version, so that a state from anywhere can be checked.

A snapshot or a checkpoint is somebody's claim. The records are the truth: record v holds the digest
of version v, which follows from the digest of v − 1, from the payload and from the state itself. So
two records suffice to check a state without replaying anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from hilosync.arithmetic.digest import differing_tensors, next_digest, state_sums, tensor_tags
from hilosync.errors import ChainBroken, Diverged
from hilosync.optim import PolicyState
from hilosync.protocol.origin import read_record
from hilosync.protocol.run import Position, Run
from hilosync.wire import record_hash

__all__ = ["Evidence", "gather_evidence"]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the records of versions v − 1 and v say about the state of version v.

    Attributes:
        run: the run.
        position: where in the log a state of version v stands.
        before: digest of version v − 1, 32 bytes.
        payload_hash: blake3 of the payload of record v, 32 bytes.
        tags: uint16 per block, as record v has them.
    """

    run: Run
    position: Position
    before: bytes
    payload_hash: bytes
    tags: np.ndarray

    def verify(self, state: PolicyState) -> None:
        """Checks that a state is the one that the learner published as this version.

        It finds what accidents do to a state. State sums are no cryptographic hash: of a state that was
        forged on purpose it finds a changed element once in 64 times here, and by the 64th version that
        is replayed on top of it for certain, since the digests of 64 versions hash every element.

        Raises:
            Diverged: the state has other bits; the error names the tensors.
        """
        plan, version = self.run.plan, self.position.version
        sums = state_sums(plan, state)
        found = next_digest(self.before, self.payload_hash, sums, plan, state, version)
        if found != self.position.digest:
            names = plan.tensors_at(differing_tensors(self.tags, tensor_tags(sums)))
            raise Diverged(version, names, expected=self.position.digest, found=found)


def gather_evidence(
    run: Run, version: int, record: bytes, predecessor: bytes | None, initial_digest: bytes | None
) -> Evidence:
    """Evidence about a version.

    Args:
        run: the run.
        version: v.
        record: record v.
        predecessor: record v − 1; None for v = 1.
        initial_digest: the digest of version 0, for v = 1; else None.

    Raises:
        MalformedRecord: a record is damaged.
        RunMismatch, PlanMismatch: a record belongs elsewhere.
        BadSignature: the run's learner did not sign one of them.
        ChainBroken: the two records do not follow each other.
    """
    made = read_record(run, record)
    if predecessor is None:
        hashed, before = run.origin, initial_digest
    else:
        earlier = read_record(run, predecessor)
        hashed, before = record_hash(predecessor), earlier.digest
    if made.version != version:
        raise ChainBroken(f"expected record {version}, got {made.version}: the log was rewritten")
    if made.previous != hashed or before is None:
        raise ChainBroken(
            f"record {made.version} follows a record with hash {made.previous.hex()[:16]}…, the log has "
            f"{hashed.hex()[:16]}… as version {made.version - 1}: the log was rewritten"
        )
    return Evidence(
        run=run,
        position=Position(made.version, made.digest, record_hash(record), made.epoch),
        before=before,
        payload_hash=blake3(made.payload).digest(),
        tags=made.tags,
    )
