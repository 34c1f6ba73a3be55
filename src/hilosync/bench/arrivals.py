"""What was sent and what arrived: when each record had reached everybody, and whether anything was lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

__all__ = ["Arrivals", "Sent"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that the learner appended.

    Attributes:
        hash: its `record_hash`, hex.
        size: bytes.
        begun: when the append was called, in seconds of the monotonic clock.
        appended: when it returned.
    """

    hash: str
    size: int
    begun: float
    appended: float


@dataclass
class Arrivals:
    """The records of a run by version, and for every worker what it read, in the order in which it did.

    Attributes:
        workers: their names.
        sent: by version.
        read: by worker: (version, hash, time) of each record.
    """

    workers: tuple[str, ...]
    sent: dict[int, Sent] = field(default_factory=dict)
    read: dict[str, list[tuple[int, str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read = {worker: [] for worker in self.workers}
        self._newest = dict.fromkeys(self.workers, -1)

    def add(self, worker: str, version: int, found: str, at: float) -> None:
        """Notes that a worker has read and verified a record."""
        self.read[worker].append((version, found, at))
        self._newest[worker] = max(self._newest[worker], version)

    def newest(self) -> int:
        """The newest version that no worker is behind, −1 at first."""
        return min(self._newest.values())

    def seconds(self, version: int) -> list[float]:
        """Seconds from the call of append until each worker had the record, ascending; those who lack it left out."""
        begun = self.sent[version].begun
        first = {
            worker: at for worker in self.workers for number, _, at in reversed(self.read[worker]) if number == version
        }
        return sorted(at - begun for at in first.values())

    def last(self, version: int) -> float:
        """Seconds until the last worker had the record."""
        return self.seconds(version)[-1]

    def middle(self, version: int) -> float:
        """Seconds until the median worker had the record."""
        return median(self.seconds(version))

    def faults(self) -> dict[str, int]:
        """Over all workers: records `lost`, `repeated`, read `out_of_order`, and `changed` (another hash)."""
        count: Counter[str] = Counter(lost=0, repeated=0, out_of_order=0, changed=0)
        for read in self.read.values():
            times = Counter(version for version, _, _ in read)
            count["lost"] += len(self.sent.keys() - times.keys())
            count["repeated"] += sum(number - 1 for number in times.values())
            versions = [version for version, _, _ in read]
            count["out_of_order"] += sum(later < earlier for earlier, later in pairwise(versions))
            count["changed"] += sum(
                version not in self.sent or self.sent[version].hash != found for version, found, _ in read
            )
        return dict(count)
