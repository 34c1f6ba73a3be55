"""A step log whose versions are a stream's sequence numbers: record v is message v + 1.

The server gives out the numbers and refuses a message that is not the next, so it is the server that
lets one learner of two win. The genesis has a subject of its own, which `forget` spares.
"""

from __future__ import annotations

from blake3 import blake3

from hilosync.errors import Fenced, LogUnavailable, Truncated
from hilosync.log.nats.parts import joined, split
from hilosync.log.nats.stream import Message, Stream
from hilosync.log.polling import Polling

__all__ = ["NatsStepLog"]

_CATCHING_UP = 5.0
"""Seconds in which a replica of a cluster, or a mirror, comes to hold what its leader has acknowledged."""


class NatsStepLog:
    """`StepLog` on one stream.

    Args:
        run: name of the run.
        steps: the stream of the records.
        blobs: the stream of the parts of records that are longer than a message.
        largest: bytes that one message may have.
        polling: how often a waiting reader asks.
    """

    def __init__(self, run: str, steps: Stream, blobs: Stream, largest: int, polling: Polling):
        self._subject = f"hilo.{run}"
        self._steps = steps
        self._blobs = blobs
        self._largest = largest
        self._polling = polling
        # The version that this object appended last, and the id of its message.
        self._last: tuple[int, str] | None = None

    def append(self, version: int, record: bytes) -> None:
        """See `StepLog.append`."""
        identity = f"{version}-{blake3(record).hexdigest()}"
        mine = self._last is not None and self._last[0] == version - 1
        payload, headers = split(self._blobs, self._parts(version), record, self._largest)
        headers |= {"Nats-Expected-Last-Sequence": str(version), "Nats-Msg-Id": identity}
        subject = f"{self._subject}.steps" if version else f"{self._subject}.genesis"
        # A stream can be removed under a living learner, and another run's begun in its place. That the
        # predecessor is the very record that this learner appended is a condition of the server's, too.
        condition = {"Nats-Expected-Last-Msg-Id": self._last[1]} if mine and self._last else {}
        published = self._steps.publish(subject, payload, headers | condition)
        if published.wrong_last_id:
            self._check_predecessor(version)
            published = self._steps.publish(subject, payload, headers)
        # The server looks at ids before anything else, and remembers those of records that have been removed.
        if published.wrong_sequence or published.duplicate:
            self._check_present(version, record, mine)
        self._last = (version, identity)

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        """See `StepLog.read`."""
        record = self._read(version)
        if record is not None:
            return record
        if version + 1 < self._steps.last_sequence():
            oldest = self._oldest()
            if 0 < version < oldest:
                raise Truncated(
                    f"{self._steps.url}: version {version} has been removed: expected {oldest} or newer; "
                    "start from a snapshot"
                )
        return self._polling.until(lambda: self._read(version), wait)

    def head(self, at_least: int = 0) -> int:
        """See `StepLog.head`."""
        return self._steps.last_sequence() - 1

    def highest(self) -> int:
        """See `StepLog.highest`."""
        return self._steps.last_sequence() - 1

    def forget(self, before: int) -> None:
        """See `StepLog.forget`."""
        before = min(before, self.head())
        if before <= 1:
            return
        self._steps.purge(f"{self._subject}.steps", before_sequence=before + 1)
        prefix = f"{self._subject}.parts."
        old = {int(found.split(".")[3]) for found in self._blobs.subjects(f"{prefix}*.*")}
        for version in sorted(old):
            if 0 < version < before:
                self._blobs.purge(f"{prefix}{version}.*")

    def _read(self, version: int) -> bytes | None:
        message = self._message(version)
        return None if message is None else joined(self._blobs, self._parts(version), message)

    def _message(self, version: int) -> Message | None:
        return None if version < 0 else self._steps.message(version + 1)

    def _parts(self, version: int) -> str:
        return f"{self._subject}.parts.{version}"

    def _check_present(self, version: int, record: bytes, mine: bool) -> None:
        """Whether the version that could not be appended is there, with these bytes."""
        last = self._steps.last_sequence()
        if version + 1 < last:
            oldest = self._oldest()
            if 0 < version < oldest:
                raise Fenced(
                    f"{self._steps.url}: another learner has written version {version}, and removed it: expected "
                    f"{oldest} or newer; this learner must stop, or start again from the log"
                )
        found = self._polling.until(lambda: self._read(version), _CATCHING_UP if version < last else 0.0)
        if found is None:
            missing = version if version < last else version - 1
            what_to_do = (
                "this learner appended it, so the log was removed or replaced; begin a new run"
                if mine or missing == version
                else "append it first"
            )
            raise LogUnavailable(
                f"{self._steps.url}: cannot append version {version}: version {missing} is missing; {what_to_do}"
            )
        if found != record:
            raise Fenced(
                f"{self._steps.url}: another learner has written version {version}: expected none or the "
                "same bytes; this learner must stop, or start again from the log"
            )

    def _check_predecessor(self, version: int) -> None:
        """Whether the predecessor is this learner's own: a restarted server may have forgotten the last id."""
        assert self._last is not None
        predecessor = self._message(version - 1)
        if predecessor is None or predecessor.headers.get("Nats-Msg-Id") != self._last[1]:
            raise Fenced(
                f"{self._steps.url}: another learner has written version {version - 1}: expected the record that "
                "this learner appended; this learner must stop, the log is another run's now"
            )

    def _oldest(self) -> int:
        """The oldest version after the genesis that is present, 0 if there is none."""
        first = self._steps.first(f"{self._subject}.steps")
        return 0 if first is None else first.sequence - 1
