"""From a learner's checkpoint and the log to where a learner can go on, with E as far as it is known.

The log is the truth: what was published happened, and nothing of it is lost or changed. Only E, which
nobody publishes, depends on the checkpoint: it is exact when the checkpoint is of the newest version. A
learner writes its checkpoint *before* it appends, with the record in it, so that a checkpoint at every
version loses nothing, wherever the learner dies.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch

from hilosync.compress import Compressor, budget_bytes, project_out
from hilosync.errors import Diverged, Fenced, LogUnavailable, MalformedRecord, RunMismatch
from hilosync.log import Log
from hilosync.optim import Optimizer
from hilosync.protocol import Applied, ReplicaMachine, Run
from hilosync.runtime.checkpoint import Checkpoint, Checkpoints
from hilosync.runtime.initial import stored_parameters
from hilosync.runtime.recovery import Recovery, contradiction, refuse_hole
from hilosync.runtime.replica import Replica
from hilosync.wire import Setup, decode_record, record_hash

__all__ = ["ResumedState", "Resumption", "check_same_run", "restore_learner"]

_READS = 5
"""Times that a record is read before its damage counts as the log's."""

_logger = logging.getLogger("hilosync")


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a learner went on from.

    Attributes:
        version: the newest version of the log, from which the learner goes on.
        checkpoint: the version of the checkpoint that was used; None without one.
        completed: whether the checkpoint's own record was missing in the log and has been appended.
        residual: what became of E. ``exact``: that of `version`. ``projected``: that of `checkpoint`, less
            what later records shipped of it; what the gradients of those steps would have added is lost.
            ``zero``: lost altogether, because there was no checkpoint to use or a snapshot was taken instead.
        recoveries: how the replay from there to `version` went, where there was a choice.
    """

    version: int
    checkpoint: int | None
    completed: bool
    residual: Literal["exact", "projected", "zero"]
    recoveries: tuple[Recovery, ...]

    @property
    def summary(self) -> str:
        """One line for people, which states what is lost."""
        source = "no checkpoint" if self.checkpoint is None else f"the checkpoint of version {self.checkpoint}"
        lost = {
            "exact": "nothing is lost",
            "projected": f"of the residual, what steps after {self.checkpoint} would have added is lost",
            "zero": "the residual is lost and starts from zero",
        }[self.residual]
        completed = "; the record that was about to be appended has been appended" if self.completed else ""
        return f"the learner goes on from version {self.version} with {source}: {lost}{completed}"


@dataclass(frozen=True, eq=False)
class ResumedState:
    """What a `LearnerMachine` needs to go on, and what the checkpoint kept for others.

    Attributes:
        machine: a replica's machine at the newest version.
        residual: E, flat fp32, shape (plan.size,).
        encoder: the compressor's state.
        newest_epoch: the highest epoch that is known of.
        checkpoint: the checkpoint that was used, or None.
        report: for people.
    """

    machine: ReplicaMachine
    residual: torch.Tensor
    encoder: Any
    newest_epoch: int
    checkpoint: Checkpoint | None
    report: Resumption


class _Folding(Replica):
    """Folds the log and takes out of E what each record shipped."""

    def __init__(self, log: Log, run: Run, machine: ReplicaMachine, residual: torch.Tensor, decay: float):
        super().__init__(log, run, machine)
        self.residual = residual
        self.leapt = False
        self._decay = decay

    def _on_applied(self, applied: Applied) -> None:
        decoded = self.run.compressor.decode(self.run.plan, applied.record.payload)
        project_out(self.run.plan, self.residual, decoded, self._decay)

    def _on_leap(self) -> None:
        self.leapt = True
        self.residual.zero_()


def check_same_run(log: Log, run: Run, optimizer: Optimizer, compressor: Compressor) -> None:
    """Refuses to go on with a run under another configuration than it was begun with.

    Raises:
        RunMismatch: with both values.
    """
    genesis = run.genesis
    budget = None if compressor.budget is None else budget_bytes(compressor.budget, run.plan)
    for what, begun, given in (
        ("optimizer", genesis.optimizer, Setup(optimizer.name, optimizer.settings())),
        ("compressor", genesis.compressor, Setup(compressor.name, compressor.settings())),
        ("budget of bytes per record", genesis.budget, budget),
    ):
        begun, given = (msgspec.json.encode(value, order="sorted").decode() for value in (begun, given))
        if begun != given:
            raise RunMismatch(
                f"{log.url} was begun with {what} {begun}, this learner has {given}: resume it with the run's own, or "
                "begin another run"
            )


def restore_learner(
    log: Log, run: Run, compressor: Compressor, checkpoints: Checkpoints | None, decay: float
) -> ResumedState:
    """Finds the newest version of a run, and E as far as it is known.

    Args:
        log: the run's stores.
        run: the run.
        compressor: the learner's, which reads its encoder's state from the checkpoint.
        checkpoints: where the learner kept its checkpoint; None if it kept none.
        decay: of the error feedback.

    Raises:
        RunMismatch: the checkpoint is another run's, or holds a version that the log has lost.
        Truncated: records are gone, and no snapshot can be used.
        WireError: a record is damaged or does not follow.
        Diverged: this machine cannot replay the log.
        LogUnavailable: a record in the middle is missing, so that going on would change what was published.
    """
    checkpoint = None if checkpoints is None else checkpoints.load()
    completed = False
    if checkpoint is not None and checkpoints is not None:
        completed = _complete(log, run, checkpoint, checkpoints)
        why = contradiction(log, run, checkpoint.position)
        if why is not None:
            if log.steps.head() < checkpoint.position.version:
                raise RunMismatch(
                    f"the learner's checkpoint is ahead of its log: {why}; records have been lost: restore them, or "
                    "remove the checkpoint to go on from the newest version that is left"
                )
            checkpoints.discard(f"{why}, so another learner has written that version")
            checkpoint, completed = None, False
    machine = ReplicaMachine(run, stored_parameters(log, run))
    residual, encoder = torch.zeros(run.plan.size), compressor.init(run.plan)
    if checkpoint is not None:
        machine.rebase(checkpoint.state, checkpoint.position)
        residual = checkpoint.tensors["residual"]
        own = checkpoint.tensors.items()
        encoder = compressor.load_state(
            run.plan, {name.removeprefix("encoder."): value for name, value in own if name.startswith("encoder.")}
        )
    folding = _Folding(log, run, machine, residual, decay)
    try:
        folding.advance()
    except Diverged:
        folding.heal()
        folding.advance()
    # Another record in the place of one that was lost would be one that those after it do not follow.
    refuse_hole(log, folding.version + 1, log.steps.highest())
    held = None if checkpoint is None else checkpoint.position.version
    exact = held == folding.version or (checkpoint is None and folding.version == 0)
    report = Resumption(
        version=folding.version,
        checkpoint=held,
        completed=completed,
        residual="exact" if exact else "zero" if checkpoint is None or folding.leapt else "projected",
        recoveries=tuple(folding.recoveries),
    )
    _logger.info("%s: %s", log.url, report.summary)
    newest = max(machine.position.epoch, checkpoint.position.epoch if checkpoint is not None else 0)
    return ResumedState(machine, residual, encoder, newest, checkpoint, report)


def _complete(log: Log, run: Run, checkpoint: Checkpoint, checkpoints: Checkpoints) -> bool:
    """Appends the record that a learner had sealed and may have died before appending; False if it is there.

    The bytes are the very ones, so it does not matter who appends them, or how often.
    """
    version = checkpoint.position.version
    if not checkpoint.record or log.steps.head(at_least=version - 1) != version - 1:
        return False
    predecessor = _read_for_sure(log, run, version - 1)
    if decode_record(checkpoint.record, run.limits).previous != record_hash(predecessor):
        return False  # the log was restored or copied, and has gone on without this record
    # Its writer may have died between the new name and the sync of the folder: what was read here could
    # still be lost with the power, after the log has kept the record.
    checkpoints.save(checkpoint)
    try:
        log.steps.append(version, checkpoint.record)
    except Fenced:
        return False  # another learner has just written this version
    return True


def _read_for_sure(log: Log, run: Run, version: int) -> bytes:
    """Record `version`, read again while the answer is damaged or another record: much follows from its hash.

    Raises:
        LogUnavailable: no answer was the record.
    """
    for _ in range(_READS):
        data = log.steps.read(version) or b""
        with suppress(MalformedRecord):
            if version == 0 or decode_record(data, run.limits).version == version:
                return data
    raise LogUnavailable(f"{log.url} does not give record {version}, asked {_READS} times: resume once it does")
