"""How to come from a state to a version: replay records, or fetch a snapshot and replay the rest.

    replay     (target − held) · (read + apply)
    snapshot   bytes ⁄ bandwidth + (target − base) · (read + apply)

All four rates are measured by whoever asks. Sans-IO: the numbers are handed in.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hilosync.errors import Truncated

__all__ = ["Choice", "Measurements", "Rates", "choose", "new_epoch"]

_WINDOW = 64
"""Newest measurements that count: rates drift, and the first step of a process compiles its kernels."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What recovering costs here. The defaults are a local disk's and a small adapter's.

    Attributes:
        read_seconds: to read one record that is there.
        apply_seconds: to verify, decode and replay one record.
        bytes_per_second: of a snapshot's chunks, verified.
    """

    read_seconds: float = 0.001
    apply_seconds: float = 0.005
    bytes_per_second: float = 200e6

    @property
    def record_seconds(self) -> float:
        """To read and apply one record."""
        return self.read_seconds + self.apply_seconds


class Measurements:
    """Medians of the newest measurements, and the defaults of `Rates` for what has not been measured."""

    def __init__(self) -> None:
        self._read: deque[float] = deque(maxlen=_WINDOW)
        self._apply: deque[float] = deque(maxlen=_WINDOW)
        self._bandwidth: deque[float] = deque(maxlen=_WINDOW)

    def record_read(self, seconds: float) -> None:
        """One record was read without waiting for it."""
        self._read.append(seconds)

    def record_applied(self, seconds: float) -> None:
        """One record was verified, decoded and replayed."""
        self._apply.append(seconds)

    def chunk_read(self, size: int, seconds: float) -> None:
        """`size` bytes of a snapshot were fetched and verified."""
        self._bandwidth.append(size / max(seconds, 1e-9))

    @property
    def knows_bandwidth(self) -> bool:
        """Whether any chunk has been read."""
        return bool(self._bandwidth)

    @property
    def apply_seconds(self) -> float:
        """Median time to apply a record; 0 before the first."""
        return statistics.median(self._apply) if self._apply else 0.0

    @property
    def rates(self) -> Rates:
        """The rates to decide by."""
        defaults = Rates()
        return Rates(
            statistics.median(self._read) if self._read else defaults.read_seconds,
            self.apply_seconds if self._apply else defaults.apply_seconds,
            statistics.median(self._bandwidth) if self._bandwidth else defaults.bytes_per_second,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Which way to a version was taken.

    Attributes:
        kind: ``replay`` from what is held, or ``snapshot`` and replay of what follows it.
        base: the version that replaying starts from.
        target: the version to reach.
        replay_seconds: estimate of the first way; infinite if records are gone.
        snapshot_seconds: estimate of the second way; infinite if there is no snapshot on it.
    """

    kind: Literal["replay", "snapshot"]
    base: int
    target: int
    replay_seconds: float
    snapshot_seconds: float

    @property
    def why(self) -> str:
        """One line for people, with both estimates."""
        ways = (("replay", self.replay_seconds, "impossible"), ("snapshot", self.snapshot_seconds, "none"))
        estimates = ", ".join(
            f"{way} {missing if seconds == float('inf') else f'{seconds:.3g} s'}" for way, seconds, missing in ways
        )
        return f"{self.kind} from version {self.base} to {self.target} (estimates: {estimates})"


def choose(
    held: int, target: int, *, replayable: bool, snapshots: Sequence[int], state_bytes: int, rates: Rates
) -> Choice:
    """The cheaper way from version `held` to `target`.

    Args:
        held: the version held.
        target: the version to reach.
        replayable: whether the records after `held` are still there.
        snapshots: versions of which there are snapshots.
        state_bytes: bytes of a snapshot.
        rates: what the two ways cost here.

    Raises:
        Truncated: there is no way.
    """
    base = max((version for version in snapshots if held < version <= target), default=None)
    replay_seconds = (target - held) * rates.record_seconds if replayable else float("inf")
    snapshot_seconds = float("inf")
    if base is not None:
        snapshot_seconds = state_bytes / rates.bytes_per_second + (target - base) * rates.record_seconds
    if base is None and not replayable:
        raise Truncated(
            f"no way from version {held} to {target}: expected the records after {held} or a snapshot between the two, "
            f"got snapshots of {', '.join(map(str, snapshots)) or 'no version'}; join the run again when there is one"
        )
    if base is not None and snapshot_seconds < replay_seconds:
        return Choice("snapshot", base, target, replay_seconds, snapshot_seconds)
    return Choice("replay", held, target, replay_seconds, snapshot_seconds)


def new_epoch(newest: int, entropy: int) -> int:
    """The epoch of a learner that takes over from one of epoch `newest`; 0 for the first.

    The upper 32 bits count learners. The lower ones are random, so that two learners that take over
    from one version never write the same bytes: one append succeeds and the other is fenced.

    Args:
        newest: the epoch of the newest record.
        entropy: 32 random bits.
    """
    return ((newest >> 32) + 1) << 32 | entropy
