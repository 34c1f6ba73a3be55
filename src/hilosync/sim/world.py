"""The simulated world: one thread, one clock that nobody waits for, one source of chance.

Real code runs unchanged inside events. Whenever it touches storage, a disk or the clock, the world may let
another process act first (that is how operations interleave on one thread), or end the process at
that very call. Everything follows from the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from random import Random
from unittest.mock import patch

__all__ = ["Chances", "Crash", "Hang", "Process", "World", "virtual"]

_DEEPEST = 8
"""Processes that may stand inside one another's calls; Python's stack is the limit."""

_LONGEST = 1000.0
"""Virtual seconds of which no call may see the end."""


class Crash(SystemExit):
    """The simulated process ends here; no handler of its own may run another operation."""


@dataclass
class Chances:
    """How likely each fault is at one operation (`at_operation`) or in one second (`event`)."""

    interleave: float = 0.15
    unavailable: float = 0.05
    lost_acknowledgement: float = 0.05
    duplicated: float = 0.05
    delayed: float = 0.03
    reordered: float = 0.05
    corrupted_copy: float = 0.02
    disk_full: float = 0.02
    crash: float = 0.008

    @classmethod
    def drawn(cls, random: Random) -> Chances:
        """Some faults on and some off, each as likely as chance says: unlike mixtures find unlike bugs."""
        return cls(**{f.name: random.choice((0.0, 0.5, 1.0, 2.0)) * getattr(cls, f.name) for f in fields(cls)})

    @classmethod
    def none(cls) -> Chances:
        """No fault, though processes still interleave."""
        return cls(**{f.name: 0.0 for f in fields(cls)} | {"interleave": 0.15})


class Hang(SystemExit):
    """Somebody waits for ever."""


class Process:
    """Something that acts on its own and can be killed.

    Attributes:
        name: of the process.
        alive: whether it runs.
        life: how often it has been started.
        inside: whether one of its calls stands on the stack.
        cut_off_until: moment until which no request of it reaches the log.
    """

    def __init__(self, world: World, name: str):
        self.world = world
        self.name = name
        self.alive = False
        self.life = 0
        self.inside = False
        self.cut_off_until = 0.0
        self._doomed = False

    def begin(self) -> None:
        """Starts a life, with an empty memory."""
        self.alive = True
        self.life += 1

    def kill(self) -> None:
        """Ends the process: at its next operation if it stands in a call, at once otherwise."""
        self._doomed = self.alive
        if not self.inside:
            self._bury()

    def act(self, action: Callable[[], None]) -> None:
        """Runs one event of this process, which may crash in it."""
        self.inside = True
        try:
            action()
        except Crash:
            pass
        finally:
            self.inside = False
        self._bury()

    def operation(self, what: str, life: int) -> None:
        """To be called before and after everything that others can see or a crash can separate.

        Args:
            what: what is being done, for the trace.
            life: of which life it is: threads of an earlier one end here.
        """
        self.world.operation()
        if self._doomed or not self.alive or life != self.life:
            raise Crash
        if self.world.strikes("crash"):
            self.world.note(self.name, f"is killed at: {what}")
            self._doomed = True
            raise Crash

    def ended(self) -> None:
        """Called when the process has died, to forget its memory."""

    def _bury(self) -> None:
        if self._doomed:
            self.alive = self._doomed = False
            self.world.count("crash")
            self.ended()


class _Thread(Process):
    """A thread of a process: it interleaves with it and dies with it."""

    def __init__(self, owner: Process):
        super().__init__(owner.world, f"{owner.name} thread")
        self._owner = owner
        self._life = owner.life
        self.done = False

    def act(self, action: Callable[[], None]) -> None:
        if self._owner.alive and self._owner.life == self._life:
            super().act(action)
        self.done = True
        if self._owner._doomed and not self._owner.inside:
            self._owner._bury()


class World:
    """Clock, chance, events and the record of what happened.

    Attributes:
        now: virtual seconds since the beginning.
        acting: processes whose calls stand on the stack, the innermost last.
        after_event: called after every event, to check.
        random: the only source of chance.
        chances: of each fault; replaced by `Chances.none()` at the end.
        counts: how often each kind of event occurred.
        trace: the newest lines of what happened.
    """

    def __init__(self, seed: int, keep: int | None = 60):
        self.now = 0.0
        self.random = Random(seed)
        self.chances = Chances.drawn(self.random)
        self.counts: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=keep)
        self.after_event: Callable[[Process | None], None] = lambda process: None
        self.acting: list[Process] = []
        self._queue: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._number = 0
        self._depth = 0

    def strikes(self, fault: str) -> bool:
        """Whether a fault befalls this operation."""
        chance: float = getattr(self.chances, fault)
        return chance > 0 and self.random.random() < chance

    def count(self, kind: str) -> None:
        """One more event of a kind."""
        self.counts[kind] += 1

    def note(self, who: str, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.now:9.3f} {who:10} {what}")

    def at(self, delay: float, process: Process | None, action: Callable[[], None]) -> None:
        """Schedules an event, of a process or (None) of nature."""
        self._number += 1
        self._queue.append((self.now + delay, self._number, process, action))

    def run_until(self, moment: float) -> None:
        """Lets every event happen that is due, and moves the clock."""
        while (event := self._next(moment)) is not None:
            self._happen(event)
        self.now = max(self.now, moment)

    def operation(self) -> None:
        """A process touches the world: time passes, and others may act first."""
        self.now += 0.001 * (1 + self.random.random())
        if self.now > _LONGEST:
            raise Hang(f"{' in a call of '.join(process.name for process in self.acting)} waits for ever")
        if self._depth < _DEEPEST and self.strikes("interleave"):
            event = self._next(self.now + 2.0)
            if event is not None:
                self.count("interleaving")
                self._happen(event)

    def pause(self, seconds: float) -> None:
        """What `time.sleep` is here: the others go on meanwhile."""
        self.run_until(self.now + max(0.0, seconds))

    def _next(self, moment: float) -> tuple[float, int, Process | None, Callable[[], None]] | None:
        """Takes the first event until `moment` whose process does not stand in a call."""
        due = [event for event in self._queue if event[0] <= moment and not (event[2] and event[2].inside)]
        if not due:
            return None
        event = min(due, key=lambda event: event[:2])
        self._queue.remove(event)
        return event

    def _happen(self, event: tuple[float, int, Process | None, Callable[[], None]]) -> None:
        moment, _, process, action = event
        self.now = max(self.now, moment)
        self._depth += 1
        try:
            if process is None:
                action()
            else:
                self.acting.append(process)
                try:
                    process.act(action)
                finally:
                    self.acting.pop()
        finally:
            self._depth -= 1
        self.after_event(process)


@contextmanager
def virtual(world: World) -> Iterator[None]:
    """Gives the whole Python process the world's clock and chance.

    Patched where they are looked up, so that code which measures time or draws an identifier repeats from the seed
    without knowing that it is simulated.
    """
    chance = Random(world.random.random())

    def clock() -> float:
        return world.now

    class Thread:
        """`threading.Thread`, as far as HiLo uses it: its target is one more event."""

        def __init__(self, target: Callable[..., None], args: tuple = (), name: str = "", daemon: bool = True):
            self._target = lambda: target(*args)
            self._thread: _Thread | None = None

        def start(self) -> None:
            self._thread = _Thread(world.acting[-1])
            world.at(world.random.uniform(0, 10.0), self._thread, self._target)

        def is_alive(self) -> bool:
            return self._thread is not None and not self._thread.done

        def join(self, timeout: float = 0.0) -> None:
            deadline = world.now + timeout
            while self.is_alive() and world.now < deadline:
                world.pause(0.5)

    with (
        patch.object(time, "monotonic", clock),
        patch.object(time, "perf_counter", clock),
        patch.object(time, "time", lambda: 1.7e9 + world.now),
        patch.object(time, "sleep", world.pause),
        patch.object(os, "urandom", chance.randbytes),
        patch.object(secrets, "token_hex", lambda count=16: chance.randbytes(count).hex()),
        patch.object(threading, "Thread", Thread),
    ):
        yield
