"""Which records a log has, which were removed, and which are missing."""

from __future__ import annotations

from dataclasses import dataclass

from hilosync.errors import Truncated
from hilosync.log import StepLog

__all__ = ["Extent", "extent_of"]


@dataclass(frozen=True)
class Extent:
    """From where to where a log reaches.

    Attributes:
        oldest: the oldest record beside the genesis that was not removed; 1 for a whole log.
        newest: the newest record that is there, 0 for the genesis alone; a hole may lie before it.
    """

    oldest: int
    newest: int

    @property
    def removed(self) -> str:
        """What was removed, for people; empty if nothing was."""
        if self.oldest == 1:
            return ""
        return "record 1 has been removed" if self.oldest == 2 else f"records 1 to {self.oldest - 1} have been removed"

    def hole_at(self, version: int, url: str) -> str:
        """Says that a record is missing which must be there."""
        return (
            f"record {version} of {url} is missing, although record {self.newest} is there: "
            "the log has a hole; restore the record, or use another log"
        )


def extent_of(steps: StepLog) -> Extent:
    """Asks for the ends of a log; the oldest record is found by bisection."""
    # `head` stops at a hole, or leaps over it; a listing shows what lies behind it.
    newest = max(steps.head(), steps.highest(), 0)
    low, high = 1, newest
    while low < high:
        middle = (low + high) // 2
        try:
            steps.read(middle)
            high = middle
        except Truncated:
            low = middle + 1
    return Extent(low, newest)
