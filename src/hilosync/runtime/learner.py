"""`Learner`: in the place of `optimizer.step()`, encode, publish and replay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_safetensors

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.compress import Compressor, budget_bytes
from hilosync.errors import RunMismatch
from hilosync.log import Log, open_log
from hilosync.optim import Optimizer
from hilosync.optim.schedules import Schedule
from hilosync.plan import AdapterPlan, bind
from hilosync.protocol import LearnerMachine, Proposal, Run
from hilosync.runtime.anchors import SnapshotReport, SnapshotWriter
from hilosync.wire import Genesis, PlanLayout, Setup, TensorLayout, encode_genesis

__all__ = ["Learner", "StepReport"]


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


class Learner:
    """Publishes the steps of a PEFT model's LoRA adapter.

    >>> learner = Learner(peft_model, optimizer=AdamW(lr=1e-4), compressor=Spar(budget="1.6%"), log="file:runs/demo")
    >>> loss.backward()
    >>> learner.step()

    Attributes:
        log: the run's stores.
        run: what the genesis fixes.
    """

    def __init__(
        self,
        model: Any,
        *,
        optimizer: Optimizer,
        compressor: Compressor,
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
    ):
        """Begins a run: writes its genesis and gives the model the policy of version 0.

        A fresh adapter (every B zero, PEFT's default initialization) starts from `seed`, which costs no
        bytes: A is drawn again from it, and the model's function stays that of the base model. Any other
        adapter is stored beside the log once.

        Args:
            model: a `peft.PeftModel` with one active LoRA adapter.
            optimizer: the transition that every replica replays.
            compressor: what makes payloads within its budget.
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

        Raises:
            ConfigurationError: `anchor_interval` or `keep_recent` is below 1.
            PlanError: the adapter has parts that cannot be synchronized or served.
            BudgetTooSmall: no payload of the compressor fits the budget.
            RunMismatch: the log holds a run already.
            UnsafeArithmetic: this process does not round as IEEE 754 asks.
        """
        check_arithmetic()
        self._binding = bind(model, param_group=param_group)
        self.log = open_log(log, create=True) if isinstance(log, str) else log
        if self.log.steps.read(0) is not None:
            raise RunMismatch(
                f"{self.log.url} holds a run already, at version {self.log.steps.head()}: "
                "give this run a log of its own, or remove that one"
            )
        plan = self._binding.plan
        initial = None if self._binding.restartable else self._binding.read()
        genesis = encode_genesis(
            Genesis(
                run=os.urandom(16).hex(),
                seed=seed,
                created_by=f"hilosync {version('hilosync')}",
                plan=PlanLayout(
                    tuple(TensorLayout(b.name, b.rows, b.columns, b.fan_in, b.group) for b in plan.blocks),
                    plan.bytes_per_element,
                ),
                optimizer=Setup(optimizer.name, optimizer.settings()),
                compressor=Setup(compressor.name, compressor.settings()),
                budget=None if compressor.budget is None else budget_bytes(compressor.budget, plan),
                base_model=base_model,
                peft=self._binding.peft_config,
                initial="seed" if initial is None else self.log.blobs.put(save_safetensors({"params": initial})),
                task=task or {},
            )
        )
        self.run = Run.of(genesis)
        self._machine = LearnerMachine(
            replace(self.run, optimizer=optimizer, compressor=compressor),
            initial=initial,
            decay=feedback_decay,
            clip=max_grad_norm,
            residual_cap=residual_cap,
        )
        self._snapshots = (
            None if anchor_interval is None else SnapshotWriter(self.log, self.run, anchor_interval, keep_recent)
        )
        self.log.steps.append(0, genesis)
        self._schedule = schedule
        self._on_gradient = on_gradient
        self._gradient = torch.empty(plan.size)
        self._binding.serve(self._machine.state.params)

    @property
    def plan(self) -> AdapterPlan:
        """The adapter's tensors."""
        return self.run.plan

    @property
    def version(self) -> int:
        """The newest version that the log has accepted."""
        return self._machine.version

    @property
    def digest(self) -> bytes:
        """The 32-byte digest of the newest version, or of the pending one while the log refuses it."""
        return self._machine.digest

    @property
    def params(self) -> torch.Tensor:
        """A copy of the fp32 master parameters, flat, shape (plan.size,)."""
        return self._machine.state.params.clone()

    def slot(self, name: str) -> torch.Tensor:
        """A copy of one of the optimizer's tensors, flat fp32, shape (plan.size,)."""
        return self._machine.state.slots[name].clone()

    def step(self, learning_rates: tuple[float, ...] | None = None) -> StepReport:
        """Publishes one optimizer step made from the model's gradients, and applies it to the model.

        A step whose record the log refused stays pending, and its gradient is used up: calling `step`
        again, without a backward pass in between, appends the same bytes once more.

        Args:
            learning_rates: one per param group; None for what the schedule says.

        Raises:
            NonFinite: a gradient holds NaN or Inf; nothing was changed or published.
            Fenced: another learner writes this log; this one must stop.
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
            Fenced, LogUnavailable: as `step`.
        """
        pending = self._machine.pending
        return None if pending is None else self._append(pending, 0.0)

    def _propose(self, gradient: torch.Tensor, learning_rates: tuple[float, ...] | None) -> Proposal:
        if learning_rates is None and self._schedule is not None:
            learning_rates = self._schedule(self.version + 1)
        return self._machine.propose(gradient, learning_rates)

    def _append(self, proposal: Proposal, encode_seconds: float) -> StepReport:
        start = time.perf_counter()
        self.log.steps.append(proposal.version, proposal.data)
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

    def close(self, wait: float = 60.0) -> list[SnapshotReport]:
        """Ends the learner's work: waits at most `wait` seconds for the snapshot that is being written.

        Returns:
            What became of the snapshots that no step has reported.
        """
        if self._snapshots is None:
            return []
        self._snapshots.close(wait)
        return self._snapshots.take_reports()
