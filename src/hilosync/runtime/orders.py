"""Which batches are asked for at a version, and which answers make a step: a state machine without I/O.

In lockstep and pipelined pace the answers of a step are fixed before anybody works: all batches of a
run stand in one sequence, the step from version v takes the next B of it, and S · B more are out while
it does. Staleness is min(v, S), and a run repeats itself. In asynchronous pace a step takes the first B
answers that arrive, and what has become too old is withdrawn, so a slow worker slows nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.log import Order

__all__ = ["PACES", "Key", "OrderBook", "Pace"]

PACES = ("lockstep", "pipelined", "asynchronous")
"""How rollouts and steps may be interleaved."""

Answer = TypeVar("Answer")
Key = tuple[int, int]
"""A batch of a run: (version at dispatch, number within the version)."""


@dataclass(frozen=True)
class Pace:
    """How far rollouts may be behind the step that uses them.

    Attributes:
        mode: one of `PACES`.
        max_staleness: S, versions between the dispatch of a batch and the step that uses it; 0 in lockstep.
        batches: B, of a step.
    """

    mode: str = "lockstep"
    max_staleness: int = 0
    batches: int = 1

    def __post_init__(self) -> None:
        if self.mode not in PACES:
            raise UnknownName("mode", self.mode, PACES)
        least = 0 if self.mode == "lockstep" else 1
        if self.max_staleness < least or (self.mode == "lockstep" and self.max_staleness > 0):
            expected = "0" if self.mode == "lockstep" else "at least 1"
            raise ConfigurationError(
                f"expected a staleness of {expected} in mode {self.mode}, got {self.max_staleness}"
            )
        if self.batches < 1:
            raise ConfigurationError(f"expected at least one batch per step, got {self.batches}")

    @property
    def outstanding(self) -> int:
        """(S + 1) · B, batches that are out or waiting to be used at a time."""
        return (self.max_staleness + 1) * self.batches


class OrderBook(Generic[Answer]):
    """The batches of a run that were asked for and not yet used.

    Attributes:
        withdrawn: batches that became too old before a step could use them; each was asked for anew.
    """

    def __init__(self, pace: Pace):
        self.pace = pace
        self.withdrawn = 0
        self._version = -1
        self._begun = -1
        self._issued = 0
        self._open: dict[Key, Order] = {}
        self._ready: dict[Key, Answer] = {}

    def turn(self, version: int) -> list[Order]:
        """Goes to the step from `version` and returns the orders to issue for it; none the second time.

        The first version may be any: after a restart the book asks for what the step from there needs.
        In asynchronous pace nothing of before it is used, since nobody knows what an earlier step took.
        """
        if version == self._version:
            return []
        if self._begun < 0:
            self._begun = version
        self._version = version
        orders = self._arriving(version) if self.pace.mode == "asynchronous" else self._sequence(version)
        self._open |= {(order.version, order.batch): order for order in orders}
        return orders

    @property
    def oldest(self) -> int:
        """The oldest version whose orders may still be answered: older ones may be forgotten."""
        if self.pace.mode == "asynchronous":
            return max(self._begun, self._version - self.pace.max_staleness)
        return self._at(self._version * self.pace.batches).version

    @property
    def open(self) -> dict[Key, Order]:
        """The newest attempt of each batch that has not been answered, by (version, batch)."""
        return dict(self._open)

    def reissue(self, key: Key) -> Order:
        """The next attempt of an open batch."""
        order = self._open[key]
        self._open[key] = Order(order.version, order.batch, order.attempt + 1)
        return self._open[key]

    def answer(self, key: Key, answer: Answer) -> None:
        """An open batch was answered well."""
        del self._open[key]
        self._ready[key] = answer

    def take(self) -> list[Answer] | None:
        """The answers of the step from the current version, removed; None as long as some are missing."""
        batches = self.pace.batches
        if self.pace.mode == "asynchronous":
            keys = list(self._ready)[:batches]  # a dictionary keeps the order of arrival
        else:
            first = self._version * batches
            keys = [(order.version, order.batch) for order in map(self._at, range(first, first + batches))]
        if len(keys) < batches or any(key not in self._ready for key in keys):
            return None
        return [self._ready.pop(key) for key in keys]

    def _at(self, position: int) -> Order:
        """The order at a position of the run's sequence."""
        staleness, batches = self.pace.max_staleness, self.pace.batches
        if position < self.pace.outstanding:
            return Order(0, position)
        return Order(position // batches - staleness, position % batches)

    def _sequence(self, version: int) -> list[Order]:
        first = version * self.pace.batches
        positions = range(max(self._issued, first), first + self.pace.outstanding)
        self._issued = positions.stop
        return [self._at(position) for position in positions]

    def _arriving(self, version: int) -> list[Order]:
        late = [key for key in (*self._open, *self._ready) if key[0] < self.oldest]
        for key in late:
            self._open.pop(key, None)
            self._ready.pop(key, None)
        self.withdrawn += len(late)
        missing = self.pace.outstanding - len(self._open) - len(self._ready)
        return [Order(version, batch) for batch in range(missing)]
