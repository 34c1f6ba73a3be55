"""A log that misbehaves on purpose: the faults of a network over any other log, from a seed.

For tests: what survives `Faults` over `memory:` survives a real network's lost and repeated messages.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hilosync.errors import LogUnreachable
from hilosync.log.base import BlobStore, Delivery, Log, Mailbox, Order, SnapshotIndex, StepLog

__all__ = ["Faults"]

Answer = TypeVar("Answer")


@dataclass
class Faults:
    """Which faults befall a call, and how often; `wrap` puts them between a log and its user.

    A write can fail before it happens, happen with its acknowledgement lost, or happen twice.
    A read, a `take` or a `collect` can fail before it happens. A fault raises `LogUnreachable`.

    Attributes:
        seed: determines every fault, given the same calls in the same order.
        fail_before: probability that the call never reaches the log.
        lose_acknowledgement: probability that a write happens and its caller is told that it failed.
        duplicate: probability that a write happens twice, as a retransmission does.
        delay: called with the operation's name before every call, to sleep, to count or to raise.
        injected: how often each fault has been injected.
    """

    seed: int
    fail_before: float = 0.0
    lose_acknowledgement: float = 0.0
    duplicate: float = 0.0
    delay: Callable[[str], None] | None = None
    injected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def wrap(self, log: Log) -> Log:
        """The same log, seen through these faults."""
        return replace(
            log,
            steps=_FaultyStepLog(log.steps, self),
            blobs=_FaultyBlobStore(log.blobs, self),
            snapshots=_FaultySnapshotIndex(log.snapshots, self),
            mailbox=_FaultyMailbox(log.mailbox, self),
        )

    def read(self, operation: str, call: Callable[[], Answer]) -> Answer:
        """Makes a call that changes nothing, or must not be repeated behind its caller's back."""
        if self.delay is not None:
            self.delay(operation)
        if self._strikes("failed before", self.fail_before):
            raise LogUnreachable(f"injected: {operation} did not reach the log; try again")
        return call()

    def write(self, operation: str, call: Callable[[], Answer]) -> Answer:
        """Makes an idempotent call."""
        answer = self.read(operation, call)
        if self._strikes("duplicated", self.duplicate):
            answer = call()
        if self._strikes("lost acknowledgement", self.lose_acknowledgement):
            raise LogUnreachable(f"injected: the acknowledgement of {operation} was lost; try again")
        return answer

    def _strikes(self, fault: str, probability: float) -> bool:
        struck = self._random.random() < probability
        self.injected[fault] += struck
        return struck


@dataclass
class _FaultyStepLog:
    inner: StepLog
    faults: Faults

    def append(self, version: int, record: bytes) -> None:
        self.faults.write("append", lambda: self.inner.append(version, record))

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        return self.faults.read("read", lambda: self.inner.read(version, wait))

    def head(self, at_least: int = 0) -> int:
        return self.faults.read("head", lambda: self.inner.head(at_least))

    def highest(self) -> int:
        return self.faults.read("highest", self.inner.highest)

    def forget(self, before: int) -> None:
        self.faults.write("forget", lambda: self.inner.forget(before))


@dataclass
class _FaultyBlobStore:
    inner: BlobStore
    faults: Faults

    def put(self, content: bytes) -> str:
        return self.faults.write("put", lambda: self.inner.put(content))

    def get(self, key: str) -> bytes:
        return self.faults.read("get", lambda: self.inner.get(key))

    def keys(self) -> list[str]:
        return self.faults.read("keys", self.inner.keys)

    def remove(self, key: str) -> None:
        self.faults.write("remove", lambda: self.inner.remove(key))


@dataclass
class _FaultySnapshotIndex:
    inner: SnapshotIndex
    faults: Faults

    def publish(self, version: int, manifest: bytes) -> bool:
        return self.faults.write("publish", lambda: self.inner.publish(version, manifest))

    def read(self, version: int) -> bytes | None:
        return self.faults.read("read", lambda: self.inner.read(version))

    def versions(self) -> list[int]:
        return self.faults.read("versions", self.inner.versions)

    def forget(self, before: int) -> None:
        self.faults.write("forget", lambda: self.inner.forget(before))


@dataclass
class _FaultyMailbox:
    inner: Mailbox
    faults: Faults

    def offer(self, orders: Sequence[Order]) -> None:
        self.faults.write("offer", lambda: self.inner.offer(orders))

    def take(self, worker: str, wait: float = 0.0) -> Order | None:
        return self.faults.read("take", lambda: self.inner.take(worker, wait))

    def deliver(self, delivery: Delivery) -> None:
        self.faults.write("deliver", lambda: self.inner.deliver(delivery))

    def collect(self, version: int, wait: float = 0.0) -> list[Delivery]:
        return self.faults.read("collect", lambda: self.inner.collect(version, wait))

    def claims(self, version: int) -> dict[Order, str]:
        return self.faults.read("claims", lambda: self.inner.claims(version))

    def forget(self, before: int) -> None:
        self.faults.write("forget", lambda: self.inner.forget(before))

    def post(self, sender: str, content: bytes) -> None:
        self.faults.write("post", lambda: self.inner.post(sender, content))

    def notices(self) -> dict[str, bytes]:
        return self.faults.read("notices", self.inner.notices)
