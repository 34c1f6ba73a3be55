"""A step log of numbered objects that are created once: `steps/00000000000000000042`."""

from __future__ import annotations

from blake3 import blake3

from hilosync.errors import Fenced, LogUnavailable, Truncated
from hilosync.log.numbered import numbered, numbers_in, read_mark
from hilosync.log.objects import Objects
from hilosync.log.polling import Polling

__all__ = ["ObjectStepLog"]

# The oldest version that is retained, in decimal; absent while nothing has been forgotten.
_OLDEST = "steps/oldest"


class ObjectStepLog:
    """`StepLog` on objects. A version is an object's name, and one asks for the next; only `highest` lists."""

    def __init__(self, objects: Objects, polling: Polling):
        self._objects = objects
        self._polling = polling
        # The version that this object appended last, and the hash of its bytes.
        self._last: tuple[int, bytes] | None = None

    def append(self, version: int, record: bytes) -> None:
        """See `StepLog.append`."""
        name = _name(version)
        mine = self._last is not None and self._last[0] == version - 1
        if not (self._follows_last(version) if mine else self._may_follow(version)):
            self._refuse_if_removed(version)
            what_to_do = (
                "this learner appended it, so the log was removed or replaced; begin a new run"
                if mine
                else "append it first"
            )
            raise LogUnavailable(
                f"{self._objects.url}: cannot append version {version}: version {version - 1} is missing; {what_to_do}"
            )
        if self._objects.create(name, record, durable=True):
            # A version that was removed can be created again. The mark was moved before the removal,
            # so after the creation is the time to look at it.
            try:
                self._refuse_if_removed(version)
            except Fenced:
                self._objects.remove(name)
                raise
        elif self._objects.get(name) != record:
            raise Fenced(
                f"{self._objects.url}: another learner has written version {version}: expected none or the "
                "same bytes; this learner must stop, or start again from the log"
            )
        self._last = (version, blake3(record).digest())

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        """See `StepLog.read`."""
        name = _name(version)
        record = self._objects.get(name)
        if record is not None:
            return record
        oldest = self._oldest()
        if 0 < version < oldest:
            raise Truncated(
                f"{self._objects.url}: version {version} has been removed: expected {oldest} or newer; "
                "start from a snapshot"
            )
        return self._objects.wait_for(name, self._polling, wait)

    def head(self, at_least: int = 0) -> int:
        """See `StepLog.head`. It gallops to the first missing version and bisects back."""

        def exists(version: int) -> bool:
            return self._objects.exists(_name(version))

        oldest = self._oldest()
        present = max(at_least, oldest)
        if not exists(present):
            present = oldest
            if not exists(present):
                # It may have been removed since; then the mark lies higher now.
                return -1 if self._oldest() == oldest else self.head(at_least)
        stride = 1
        while exists(present + stride):
            present += stride
            stride *= 2
        missing = present + stride
        while missing - present > 1:
            middle = (present + missing) // 2
            if exists(middle):
                present = middle
            else:
                missing = middle
        return present

    def highest(self) -> int:
        """See `StepLog.highest`."""
        return max(self._listed(), default=-1)

    def forget(self, before: int) -> None:
        """See `StepLog.forget`."""
        oldest = max(1, self._oldest())
        before = min(before, self.head(oldest))
        if before <= oldest:
            return
        # The mark first: a reader that misses a record must find out why.
        self._objects.replace(_OLDEST, str(before).encode(), durable=True)
        for version in range(oldest, before):
            self._objects.remove(_name(version))

    def _follows_last(self, version: int) -> bool:
        """Whether the predecessor is still the very record that this object appended.

        The folder can be removed under a living learner, and another run begun in its place: a record
        that is merely there does not show that it is ours.
        """
        assert self._last is not None
        predecessor = self._objects.get(_name(version - 1))
        if predecessor is None:
            return self._may_follow(version)
        if blake3(predecessor).digest() != self._last[1]:
            raise Fenced(
                f"{self._objects.url}: another learner has written version {version - 1}: expected the record that "
                "this learner appended; this learner must stop, the log is another run's now"
            )
        return True

    def _may_follow(self, version: int) -> bool:
        exists = self._objects.exists
        # The version itself may be there without its predecessor, once that has been forgotten.
        return version == 0 or exists(_name(version - 1)) or exists(_name(version))

    def _refuse_if_removed(self, version: int) -> None:
        oldest = self._oldest()
        if 0 < version < oldest:
            raise Fenced(
                f"{self._objects.url}: another learner has written version {version}, and removed it: expected "
                f"{oldest} or newer; this learner must stop, or start again from the log"
            )

    def _oldest(self) -> int:
        oldest = read_mark(self._objects, _OLDEST, "the oldest version that is present")
        if oldest > 0 and not self._objects.exists(_name(oldest)):
            # The version at the mark always stays, so somebody has moved the mark further. Of two who forget at
            # the same time the slower one may have moved it back: then the records themselves tell.
            oldest = min((version for version in self._listed() if version > oldest), default=oldest)
        return oldest

    def _listed(self) -> list[int]:
        # What lies inside a folder of that name counts as well: it is in the record's place.
        return numbers_in(name.partition("/")[0] for name in self._objects.names("steps"))


def _name(version: int) -> str:
    return numbered("steps", version)
