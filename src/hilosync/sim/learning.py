"""A learner as a process of the simulation: the real `Learner`, begun, resumed, and fenced."""

from __future__ import annotations

from typing import Any

from hilosync.errors import Fenced, LogUnavailable, RunMismatch
from hilosync.optim import PolicyState
from hilosync.runtime import Dispatcher, Learner, Limits
from hilosync.sim.checker import Checker
from hilosync.sim.model import fresh_model, gradient
from hilosync.sim.node import Node, Setting
from hilosync.sim.rollouts import read_rollouts
from hilosync.sim.world import World

__all__ = ["LearnerProcess"]

_LIMITS = Limits(silence=12.0, lease=40.0, patience=30.0)
"""In virtual seconds; a replica says something every 5."""


class LearnerProcess(Node):
    """Begins or resumes the run, then publishes a step now and then until it is told to rest.

    Attributes:
        learner: the real one, while the process lives.
        resting: whether it makes no more steps.
    """

    def __init__(self, world: World, name: str, setting: Setting, checker: Checker):
        super().__init__(world, name, setting)
        self.learner: Learner | None = None
        self.resting = False
        self._checker = checker
        self._dispatcher: Dispatcher | None = None

    def ended(self) -> None:
        """See `Node.ended`."""
        self.learner = self._dispatcher = None
        super().ended()

    def tick(self) -> None:
        """One step; the first tick begins or resumes the run."""
        try:
            if self.learner is None:
                self.learner = self._begin_or_resume()
            elif self.resting:
                self.learner.flush()
            else:
                self._step(self.learner)
        except Fenced as error:
            self.world.count("fenced")
            self.world.note(self.name, f"is fenced and stops: {error}")
            self.wanted = False
            self.kill()

    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """See `Node.held`; nothing while a proposal waits for the log."""
        machine = None if self.learner is None else self.learner._machine
        if machine is None or machine.pending is not None:
            return None
        return machine.version, machine.digest, machine.state

    def _step(self, learner: Learner) -> None:
        if learner.flush() is None:
            if self._dispatcher is not None:
                used = self._dispatcher.collect(learner.version, read_rollouts)
                self._checker.plan_rollouts(learner._machine.epoch, learner.version, used)
                self.world.counts["rollouts used"] += len(used)
            learner.publish(gradient(self.setting.seed, learner.version + 1, self.life))
        self._checker.remember_residual(self.name, learner)

    def _begin_or_resume(self) -> Learner:
        log, disk = self.open()
        setting = self.setting
        shared: dict[str, Any] = {
            "optimizer": setting.optimizer,
            "compressor": setting.compressor,
            "log": log,
            "anchor_interval": setting.anchor_interval,
            "keep_recent": setting.keep_recent,
            "checkpoint": disk,
            "checkpoint_interval": setting.checkpoint_interval,
        }
        if log.steps.read(0) is None:
            try:
                learner = Learner(fresh_model(), seed=setting.seed, **shared)
            except RunMismatch as error:
                if log.steps.read(0) is None:
                    raise
                raise LogUnavailable(f"another learner has begun the run just now: {error}") from error
        else:
            learner = Learner.resume(fresh_model(), **shared)
            assert learner.resumed is not None
            self.world.count(f"resumed, residual {learner.resumed.residual}")
            self._checker.check_resumption(self.name, learner, lossless=self.lossless())
        if setting.pace is not None:
            self._dispatcher = Dispatcher(log.mailbox, setting.pace, _LIMITS, clock=lambda: self.world.now)
        self._checker.claim_epoch(learner._machine.epoch, f"{self.name} life {self.life}", self.name)
        return learner

    def lossless(self) -> bool:
        """Whether its disk holds all that it ever made: a checkpoint at every version, none of them damaged."""
        return self.setting.checkpoint_interval == 1 and not self.damaged
