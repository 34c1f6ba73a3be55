"""One simulated run: processes, a storage, and what befalls them, all drawn from one seed.

Three phases of virtual time. First everything goes wrong that the seed has chosen. Then nothing new fails, the learner
goes on, and who has died is started again. At last the learner rests, and everybody must reach the head.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch

from hilosync.arithmetic.guards import check_arithmetic
from hilosync.errors import Diverged, HiLoError
from hilosync.protocol import Applied, ReplicaMachine
from hilosync.runtime import Pace, Replica
from hilosync.runtime.snapshots import load_snapshot
from hilosync.sim.checker import Checker, Violation
from hilosync.sim.following import ReplicaProcess
from hilosync.sim.learning import LearnerProcess
from hilosync.sim.model import choose_rules
from hilosync.sim.nature import Nature
from hilosync.sim.node import Node, Setting
from hilosync.sim.planted import PLANTS, Plant
from hilosync.sim.store import SimulatedStorage
from hilosync.sim.world import Chances, Hang, Process, World, virtual

__all__ = ["Outcome", "simulate"]

_FAULTS_LAST = 70.0
_CALM_LASTS = 30.0
_REST_LASTS = 40.0

_CHUNK_ELEMENTS = 30
"""Elements of each buffer in a chunk, so that a snapshot of the tiny adapter has three chunks."""

_AT_SIGHT = 2
"""Records after which a replica weighs replay against a snapshot; a run of a dozen versions is short."""


@dataclass(frozen=True)
class Outcome:
    """What one seed led to.

    Attributes:
        seed: repeats it.
        failure: what was broken, or None.
        trace: the newest lines of what happened, oldest first.
        counts: how often each kind of event occurred.
        versions: the newest version at the end.
    """

    seed: int
    failure: str | None
    trace: tuple[str, ...]
    counts: Counter[str]
    versions: int


def simulate(seed: int, plant: str | None = None, keep: int | None = 60) -> Outcome:
    """Runs the simulation of one seed.

    Args:
        seed: of everything.
        plant: a name in `PLANTS` of a bug to put in; None for the real code.
        keep: lines of the trace to keep; None for all.
    """
    check_arithmetic()
    # Threads start when the simulation says so, and a pool of real ones would wait for that for ever.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    world = World(seed, keep)
    failure: str | None = None
    simulation = _Simulation(world, seed, PLANTS[plant] if plant else Plant())
    try:
        with simulation.observed():
            simulation.run()
    except (Violation, Hang) as violation:
        failure = str(violation)
    except Exception as error:
        # Whatever the code under test raises without meaning to is a finding as well.
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    finally:
        torch.set_num_threads(threads)
    if failure is not None:
        world.note("checker", failure)
    return Outcome(seed, failure, tuple(world.trace), world.counts, simulation.checker.head)


class _Simulation:
    """The processes of one seed, and the order of its phases."""

    def __init__(self, world: World, seed: int, plant: Plant):
        self.world = world
        self.plant = plant
        random = world.random
        self.storage = SimulatedStorage(plant.new_volume())
        pace = random.choice((None, None, Pace(), Pace("pipelined", 1, 2), Pace("asynchronous", 2, 1)))
        self.checker = Checker(world, self.storage, pace)
        optimizer, compressor = choose_rules(random)
        setting = Setting(
            seed=seed,
            storage=self.storage,
            optimizer=optimizer,
            compressor=compressor,
            anchor_interval=random.randint(2, 5),
            keep_recent=random.randint(1, 3),
            checkpoint_interval=random.choice((1, 1, 2, 3)),
            pace=pace,
            new_volume=plant.new_volume,
        )
        self.learners = [LearnerProcess(world, f"learner-{name}", setting, self.checker) for name in "AB"]
        self.replicas = [
            ReplicaProcess(world, f"replica-{number}", setting, writes_snapshots=random.random() < 0.3)
            for number in range(1, 5)
        ]
        self.newcomer = ReplicaProcess(world, "newcomer", setting, writes_snapshots=False)
        self.nature = Nature(world, self.storage, self.learners, self.replicas)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """The world's clock and chance for all code, the plant put in, and an eye on every record applied."""
        with ExitStack() as stack:
            stack.enter_context(virtual(self.world))
            stack.enter_context(self.plant.planted())
            stack.enter_context(patch.object(ReplicaMachine, "receive", self._watched(ReplicaMachine.receive)))
            stack.enter_context(_logged(self.world))
            for name, value in (
                ("snapshots.elements_per_chunk", lambda buffers: _CHUNK_ELEMENTS),
                ("replica._AT_SIGHT", _AT_SIGHT),
                # It looks at the machine, which does not change from one life to the next, and takes milliseconds.
                ("learner.check_arithmetic", lambda: None),
                ("replica.check_arithmetic", lambda: None),
            ):
                stack.enter_context(patch(f"hilosync.runtime.{name}", value))
            yield

    def run(self) -> None:
        """All phases.

        Raises:
            Violation: a promise was broken.
        """
        world = self.world
        world.after_event = self._check
        self.nature.begin(until=_FAULTS_LAST)
        world.at(_FAULTS_LAST, None, self._calm)
        # Whoever stands in a call keeps what comes after it waiting, so the phases begin as events.
        while not self.learners[0].resting:
            world.run_until(world.now + _REST_LASTS)
        world.run_until(world.now + _REST_LASTS)
        self._check_the_end()

    def _calm(self) -> None:
        self.world.note("nature", "no more faults")
        self.world.chances = Chances.none()
        self.nature.calm()
        self.world.at(_CALM_LASTS, None, self._rest)

    def _rest(self) -> None:
        self.world.note("nature", "the learner rests")
        for learner in self.learners:
            learner.resting = True

    def _check(self, acted: Process | None) -> None:
        """After every event: the log, and whoever has acted; nobody else's state can have changed."""
        self.checker.look_at_the_log()
        if isinstance(acted, Node) and acted.alive and not acted.inside:
            held = acted.held()
            if held is not None:
                self.checker.check_state(acted.member, *held)

    def _check_the_end(self) -> None:
        head = self.checker.head
        # A learner that was replaced while it rested finds out at its next step.
        if not any(held[0] == head for learner in self.learners if (held := learner.held()) is not None):
            raise Violation(f"no learner holds version {head}, the newest: {self.learners[0].last_error}")
        for replica in self.replicas:
            held = replica.held()
            if replica.wanted and (held is None or held[0] != head):
                where = "nothing" if held is None else f"version {held[0]}"
                raise Violation(f"{replica.name} is stuck at {where}, the log ends at {head}: {replica.last_error}")
            self._check(replica)
        if not self.world.counts["damaged chunk"]:
            self.world.at(0.0, self.newcomer, self._join_late)
            self.world.run_until(self.world.now + 1.0)

    def _join_late(self) -> None:
        """A newcomer finds every snapshot whole and true, and joins from the log alone."""
        newcomer = self.newcomer
        newcomer.begin()
        log, _ = newcomer.open()
        try:
            replica = Replica.join(log)
            replica.advance()
            self.checker.check_state(newcomer.member, replica.version, replica.digest, replica._machine.state)
            if replica.version != self.checker.head:
                raise Violation(f"a newcomer reaches version {replica.version}, the log ends at {self.checker.head}")
            for version in log.snapshots.versions():
                state, position = load_snapshot(log, replica.run, version)
                self.checker.check_state(newcomer.member, position.version, position.digest, state)
                self.world.count("snapshot loaded at the end")
        except HiLoError as error:
            raise Violation(f"a newcomer cannot join from the log: {type(error).__name__}: {error}") from error

    def _watched(
        self, receive: Callable[[ReplicaMachine, bytes], Applied]
    ) -> Callable[[ReplicaMachine, bytes], Applied]:
        def watched(machine: ReplicaMachine, data: bytes) -> Applied:
            if self.checker.owns(machine) or machine.failure is not None:
                return receive(machine, data)
            node, before = self.world.acting[-1], machine.version
            assert isinstance(node, Node), "no thread applies records"
            member = node.member
            try:
                applied = receive(machine, data)
            except Diverged as error:
                self.checker.check_divergence(member, before, error)
                raise
            expected = before + 1 if applied.new else before
            if machine.version != expected:
                raise Violation(f"{member.name} went from version {before} to {machine.version}")
            return applied

        return watched


@contextmanager
def _logged(world: World) -> Iterator[None]:
    """What the code under test logs becomes part of the trace; an error that it only logs is a finding."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            who = world.acting[-1].name if world.acting else "log"
            world.note(who, f"logs: {record.getMessage()}")
            if record.levelno >= logging.ERROR:
                error = record.exc_info[1] if record.exc_info else None
                raise Violation(f"{who} hides an error: {record.getMessage()}: {type(error).__name__}: {error}")

    logger, handler = logging.getLogger("hilosync"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
