"""`Replica`: a process's copy of the policy, kept current from the log."""

from __future__ import annotations

import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.errors import LogNotFound, PeerSilent, WireError
from hilosync.log import Log, open_log
from hilosync.plan import AdapterBinding, AdapterPlan, bind, write_adapter_directory
from hilosync.protocol import ReplicaMachine, Run
from hilosync.runtime.initial import stored_parameters

__all__ = ["Replica"]


class Replica:
    """Follows a run: reads records by number, verifies and replays them.

    >>> replica = Replica.join("file:runs/demo")
    >>> replica.advance()
    >>> replica.load_into(peft_model)

    Attributes:
        log: the run's stores.
        run: what the genesis fixes.
        checks: digests compared so far, one per record applied.
    """

    def __init__(self, log: Log, run: Run, machine: ReplicaMachine):
        self.log = log
        self.run = run
        self.checks = 0
        self._machine = machine
        self._apply_seconds: deque[float] = deque(maxlen=1000)
        self._binding: tuple[Any, AdapterBinding] | None = None

    @classmethod
    def join(cls, log: str | Log, wait: float = 0.0) -> Replica:
        """Joins a run at version 0; `advance` does the rest.

        Args:
            log: where the run is, such as ``file:runs/demo``.
            wait: seconds to wait for the run to begin.

        Raises:
            LogNotFound: there is no run at this address within `wait` seconds.
            RunMismatch: the run replays on machines like its learner's only, and this is not one.
            UnsafeArithmetic: this process does not round as IEEE 754 asks.
        """
        check_arithmetic()
        opened = open_log(log, wait=wait) if isinstance(log, str) else log
        genesis = opened.steps.read(0, wait=wait)
        if genesis is None:
            raise LogNotFound(
                f"no run has begun at {opened.url} within {wait:.0f} s: start its learner, or check the address"
            )
        run = Run.of(genesis)
        return cls(opened, run, ReplicaMachine(run, stored_parameters(opened, run)))

    @property
    def plan(self) -> AdapterPlan:
        """The adapter's tensors."""
        return self.run.plan

    @property
    def version(self) -> int:
        """The policy version held."""
        return self._machine.version

    @property
    def digest(self) -> bytes:
        """The 32-byte digest of the version held."""
        return self._machine.digest

    @property
    def apply_seconds(self) -> float:
        """Median seconds to verify, decode and replay a record; 0 before the first."""
        return statistics.median(self._apply_seconds) if self._apply_seconds else 0.0

    @property
    def params(self) -> torch.Tensor:
        """A copy of the fp32 master parameters, flat, shape (plan.size,)."""
        return self._serving_state().params.clone()

    def slot(self, name: str) -> torch.Tensor:
        """A copy of one of the optimizer's tensors, flat fp32, shape (plan.size,)."""
        return self._serving_state().slots[name].clone()

    def advance(self, to: int | None = None, wait: float = 0.0) -> int:
        """Applies records up to version `to`, or to the newest there is, and returns the version held.

        Args:
            to: the version to reach; None for whatever is there now.
            wait: seconds to wait for the next record when it is not there yet.

        Raises:
            PeerSilent: version `to` did not appear in time; what was there has been applied.
            Diverged: a record gave other bits than the learner's; this replica must not serve.
            WireError: a record is damaged or does not follow; the version before it still holds.
        """
        while to is None or self.version < to:
            data = self.log.steps.read(self.version + 1, wait=wait)
            if data is None:
                if to is not None:
                    raise PeerSilent(f"version {to} did not appear within {wait:.0f} s; the newest is {self.version}")
                break
            start = time.perf_counter()
            self.checks += 1
            try:
                self._machine.receive(data)
            except WireError as error:
                raise type(error)(f"record {self.version + 1} of {self.log.url}: {error}") from error
            self._apply_seconds.append(time.perf_counter() - start)
            if to is None:
                wait = 0.0
        return self.version

    def load_into(self, model: Any) -> None:
        """Gives a PEFT model the version held, as bf16 copies; the replica's own tensors stay apart.

        Raises:
            PlanError, PlanMismatch: the model's adapter is not the run's.
            Diverged: this replica has diverged and must not serve.
        """
        state = self._serving_state()
        if self._binding is None or self._binding[0] is not model:
            self._binding = (model, bind(model, expected=self.plan, served_as=self.run.genesis.peft))
        self._binding[1].serve(state.params)

    def export(self, directory: str | Path) -> Path:
        """Writes the version held as an adapter directory for PEFT or vLLM, whole or not at all.

        Raises:
            ConfigurationError: the directory exists already.
            Diverged: this replica has diverged and must not serve.
        """
        state = self._serving_state()
        return write_adapter_directory(
            directory,
            self.plan,
            state.params,
            self.run.genesis.peft or {},
            metadata={
                "hilo_run": self.run.genesis.run,
                "hilo_version": str(self.version),
                "hilo_digest": self.digest.hex(),
            },
        )

    def _serving_state(self):
        if self._machine.failure is not None:
            raise self._machine.failure
        return self._machine.state
