"""Whether a record is the run's own: its run, plan and configuration, and its learner's signature."""

from __future__ import annotations

from hilosync.errors import PlanMismatch, RunMismatch
from hilosync.protocol.run import Run
from hilosync.wire import Record, decode_record, verify_signature

__all__ = ["read_record"]


def read_record(run: Run, data: bytes) -> Record:
    """Reads a record of this run and verifies all that can be verified without the records before it.

    Raises:
        MalformedRecord: the bytes are damaged, or exceed the run's budget.
        RunMismatch, PlanMismatch: the record belongs elsewhere; with both values.
        BadSignature: the run's records are signed, and this one is not, or not with the run's key.
    """
    record = decode_record(data, run.limits)
    _check_origin(run, record)
    if run.genesis.key is not None:
        verify_signature(data, record, bytes.fromhex(run.genesis.key))
    return record


def _check_origin(run: Run, record: Record) -> None:
    if record.run != run.genesis.run_id:
        raise RunMismatch(
            f"record {record.version} belongs to run {record.run.hex()}, this replica to {run.genesis.run}: "
            "join the log of the run that you want to follow"
        )
    if record.plan != run.plan.fingerprint:
        raise PlanMismatch(
            f"record {record.version} was written for plan {record.plan.hex()}, this replica holds "
            f"{run.plan.fingerprint.hex()}"
        )
    if record.configuration != run.configuration:
        raise RunMismatch(
            f"record {record.version} was written under configuration {record.configuration.hex()}, this "
            f"replica runs {run.configuration.hex()}"
        )
    rows, names = record.scalars.shape
    wanted = len(run.optimizer.scalar_names)
    if rows not in (1, run.plan.groups) or names != wanted or len(record.tags) != len(run.plan.blocks):
        raise PlanMismatch(
            f"record {record.version} carries {names} scalars for {rows} param groups and {len(record.tags)} tags; "
            f"the run has {wanted} scalars, {run.plan.groups} groups and {len(run.plan.blocks)} tensors"
        )
