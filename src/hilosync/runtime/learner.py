"""`Learner`: in the place of `optimizer.step()`, encode, publish and replay."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.compress import Compressor, SparRD
from hilosync.errors import ConfigurationError, LogNotFound, PlanMismatch
from hilosync.log import Log, open_log
from hilosync.optim import Optimizer
from hilosync.optim.schedules import Schedule
from hilosync.plan import bind
from hilosync.protocol import LearnerMachine, Run, new_epoch
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.beginning import describe_run
from hilosync.runtime.checkpoint import Checkpoints
from hilosync.runtime.disk import Disk, FileDisk
from hilosync.runtime.publisher import StepPublisher
from hilosync.runtime.resumption import Resumption, check_same_run, restore_learner
from hilosync.wire import public_key_of, signer

__all__ = ["Learner"]


class Learner(StepPublisher):
    """Publishes the steps of a PEFT model's LoRA adapter.

    >>> learner = Learner(peft_model, optimizer=AdamW(lr=1e-4), compressor=SparRD(budget="1.6%"), log="file:runs/demo")
    >>> loss.backward()
    >>> learner.step()

    Attributes:
        log: the run's stores.
        run: what the genesis fixes.
        resumed: what this learner went on from; None if it began the run.
    """

    resumed: Resumption | None = None

    def __init__(
        self,
        model: Any,
        *,
        optimizer: Optimizer,
        compressor: Compressor | None = None,
        log: str | Log,
        seed: int = 0,
        max_grad_norm: float | None = None,
        feedback_decay: float | None = None,
        residual_cap: float | None = None,
        schedule: Schedule | None = None,
        param_group: Callable[[str], int] | None = None,
        base_model: str | None = None,
        task: dict[str, Any] | None = None,
        on_gradient: Callable[[int, torch.Tensor], None] | None = None,
        anchor_interval: int | None = None,
        keep_recent: int | None = 2,
        checkpoint: str | Path | Disk | None = None,
        checkpoint_interval: int | None = None,
        extra: Any = None,
        signing_key: bytes | None = None,
    ):
        """Begins a run: writes its genesis and gives the model the policy of version 0.

        A fresh adapter (every B zero, PEFT's default initialization) starts from `seed`, which costs no
        bytes: A is drawn again from it, and the model's function stays that of the base model. Any other
        adapter is stored beside the log once.

        Args:
            model: a `peft.PeftModel` with one active LoRA adapter.
            optimizer: the transition that every replica replays.
            compressor: what makes payloads within its budget; None for `SparRD()`, one rank of every factor.
            log: where the run goes, such as ``file:runs/demo``.
            seed: of the initial adapter.
            max_grad_norm: clips G, before the error feedback, to this norm; None to leave it.
            feedback_decay: E ← decay·(G + E − Ĝ); None for the optimizer's default, 0 for no feedback.
            residual_cap: largest ‖E‖ that is kept, in units of the step's ‖G‖; None for no limit.
            schedule: learning rates by version; None for the optimizer's own, constant ones.
            param_group: the param group of a tensor by its name, for optimizers with settings per group.
            base_model: path or hub id of the base model, for workers that join.
            task: what workers need to generate, as JSON values.
            on_gradient: called with (version, G) before every step; G must not be changed or kept.
            anchor_interval: versions between two snapshots, from which others may start; None to write none.
            keep_recent: snapshots that stay, with the records after the oldest of them; older ones are removed
                as far as no live worker needs them. None keeps the whole run.
            checkpoint: folder that belongs to this learner alone, from which `resume` goes on; None for none.
            checkpoint_interval: versions between checkpoints; None for every one of a small adapter.
            extra: see the property.
            signing_key: Ed25519 private key, 32 bytes, that signs every record; its public half stands in the
                genesis, and a join ticket pins it. None for a run without signatures.

        Raises:
            ConfigurationError: an interval, or `keep_recent`, is below 1.
            PlanError: the adapter has parts that cannot be synchronized or served.
            BudgetTooSmall: no payload of the compressor fits the budget.
            RunMismatch: the log holds a run already, or the folder a checkpoint.
            UnsafeArithmetic: this process does not round as IEEE 754 asks.
        """
        check_arithmetic()
        compressor = compressor or SparRD()
        binding = bind(model, param_group=param_group)
        log = open_log(log, create=True) if isinstance(log, str) else log
        initial = None if binding.restartable else binding.read()
        genesis = describe_run(
            log,
            binding,
            optimizer,
            compressor,
            initial=initial,
            seed=seed,
            base_model=base_model,
            task=task,
            public_key=None if signing_key is None else public_key_of(signing_key),
        )
        run = Run.of(genesis)
        machine = LearnerMachine(
            replace(run, optimizer=optimizer, compressor=compressor),
            epoch=new_epoch(0, _entropy()),
            sign=None if signing_key is None else signer(signing_key),
            initial=initial,
            decay=feedback_decay,
            clip=max_grad_norm,
            residual_cap=residual_cap,
        )
        checkpoints = _checkpoints(checkpoint, run, checkpoint_interval)
        if checkpoints is not None:
            checkpoints.refuse_used()
        snapshots = None if anchor_interval is None else SnapshotWriter(log, run, anchor_interval, keep_recent)
        self._set_up(log, run, binding, machine, checkpoints, snapshots, schedule, on_gradient)
        self.extra = extra
        log.steps.append(0, genesis)
        self._save(due=True)

    @classmethod
    def resume(
        cls,
        model: Any,
        *,
        optimizer: Optimizer,
        compressor: Compressor | None = None,
        log: str | Log,
        max_grad_norm: float | None = None,
        feedback_decay: float | None = None,
        residual_cap: float | None = None,
        schedule: Schedule | None = None,
        param_group: Callable[[str], int] | None = None,
        on_gradient: Callable[[int, torch.Tensor], None] | None = None,
        anchor_interval: int | None = None,
        keep_recent: int | None = 2,
        checkpoint: str | Path | Disk | None = None,
        checkpoint_interval: int | None = None,
        signing_key: bytes | None = None,
    ) -> Learner:
        """Goes on with a run in the place of the learner that began or last resumed it, wherever that died.

        Replays the log from the learner's checkpoint to its newest version, takes a new epoch, and gives the
        model the policy of that version. Nothing that was published is lost or changed; `resumed` states what
        became of the error feedback. A learner that still lives is fenced by the first step that follows.
        torch's CPU generator and `extra` are as they were when the checkpoint's version was made.

        Args:
            model: as for `Learner`; its adapter's values do not matter.
            checkpoint: the folder that the learner before was given; without one the error feedback
                starts from zero.
            optimizer: as for `Learner`, and so is every other argument. What the genesis fixes must be the same.
            compressor: its settings and its budget are among that.
            log: where the run is.
            max_grad_norm: as for `Learner`.
            feedback_decay: as for `Learner`.
            residual_cap: as for `Learner`.
            schedule: as for `Learner`.
            param_group: as for `Learner`.
            on_gradient: as for `Learner`.
            anchor_interval: as for `Learner`.
            keep_recent: as for `Learner`.
            checkpoint_interval: as for `Learner`.
            signing_key: as for `Learner`; the run's own.

        Raises:
            ConfigurationError: the run is signed with another key, or one is missing or not wanted.
            LogNotFound: no run has begun at this address.
            RunMismatch: the run was begun with another optimizer, compressor or budget, with both values; the
                checkpoint is another run's, or of a version that the log has lost.
            PlanError, PlanMismatch: the model's adapter is not the run's.
            DiskUnavailable: the checkpoint cannot be read.
            Truncated, WireError, Diverged: the log cannot be replayed; see `Replica.advance`.
        """
        check_arithmetic()
        compressor = compressor or SparRD()
        log = open_log(log) if isinstance(log, str) else log
        genesis = log.steps.read(0)
        if genesis is None:
            raise LogNotFound(f"no run has begun at {log.url}: begin it with a `Learner`, or check the address")
        run = Run.of(genesis)
        bind(model, expected=run.plan, served_as=run.genesis.peft)
        binding = bind(model, param_group=param_group)
        if binding.plan.fingerprint != run.plan.fingerprint:
            raise PlanMismatch(
                f"{log.url} was begun with param groups {sorted({b.group for b in run.plan.blocks})} of its tensors, "
                f"this learner has {sorted({b.group for b in binding.plan.blocks})}: give `param_group` as before"
            )
        check_same_run(log, run, optimizer, compressor)
        if signing_key is not None and run.genesis.key not in (None, public_key_of(signing_key).hex()):
            raise ConfigurationError(
                f"{log.url} is signed with key {run.genesis.key}, this learner's key is "
                f"{public_key_of(signing_key).hex()}: give it the run's own private key"
            )
        own = replace(run, optimizer=optimizer, compressor=compressor)
        checkpoints = _checkpoints(checkpoint, run, checkpoint_interval)
        snapshots = None if anchor_interval is None else SnapshotWriter(log, run, anchor_interval, keep_recent)
        machine = LearnerMachine(
            own,
            sign=None if signing_key is None else signer(signing_key),
            decay=feedback_decay,
            clip=max_grad_norm,
            residual_cap=residual_cap,
        )
        restored = restore_learner(log, run, compressor, checkpoints, machine.decay)
        machine.epoch = new_epoch(restored.newest_epoch, _entropy())
        machine.rebase(restored.machine.state, restored.machine.position, restored.residual, restored.encoder)
        learner = cls.__new__(cls)
        learner._set_up(log, run, binding, machine, checkpoints, snapshots, schedule, on_gradient)
        learner.resumed = restored.report
        if restored.checkpoint is not None:
            learner.extra = restored.checkpoint.extra
            torch.set_rng_state(restored.checkpoint.tensors["generator"])
        return learner


def _checkpoints(place: str | Path | Disk | None, run: Run, interval: int | None) -> Checkpoints | None:
    disk = FileDisk(place) if isinstance(place, str | Path) else place
    return None if disk is None else Checkpoints(disk, "learner", run, interval)


def _entropy() -> int:
    return int.from_bytes(os.urandom(4), "little")
