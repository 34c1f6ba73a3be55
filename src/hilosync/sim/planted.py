"""Bugs to put in on purpose: a simulation that cannot find them would prove nothing.

Each is a small substitution of one real part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from hilosync.protocol import Applied, ReplicaMachine, replay
from hilosync.sim.volume import Volume
from hilosync.wire import decode_record

__all__ = ["PLANTS", "Plant"]


@dataclass(frozen=True)
class Plant:
    """A bug: what stands in the place of which method, and which volume the machines have."""

    method: str | None = None
    substitute: Callable[..., Any] | None = None
    new_volume: Callable[[], Volume] = Volume

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Puts the bug in, and takes it out again."""
        if self.method is None:
            yield
        else:
            with patch.object(ReplicaMachine, self.method, self.substitute):
                yield


class _Hasty(Volume):
    """Says that content is durable before it is."""

    def sync(self, name: str) -> None:
        """See `Volume.sync`."""

    def sync_names(self) -> None:
        """See `Volume.sync_names`."""


_receive = ReplicaMachine.receive


def _receive_twice(machine: ReplicaMachine, data: bytes) -> Applied:
    """Makes the step of a duplicate once more, as a replica does whose cursor is not part of its state."""
    record = decode_record(data, machine.run.limits)
    if machine.failure is None and record.version == machine.version:
        replay(machine.run, machine.state, machine.digest, record.version, record.payload, record.scalars)
    return _receive(machine, data)


PLANTS = {
    "ack-before-fsync": Plant(new_volume=_Hasty),
    "apply-twice": Plant("receive", _receive_twice),
    "skip-chain-check": Plant("_check_chain", lambda machine, record: None),
}
"""By name: acknowledge what a power failure may still take; apply a record once more; trust the order of answers."""
