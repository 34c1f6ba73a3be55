"""The seam of the transports: where records, blobs and rollouts live.

Four small contracts, each with one conformance suite that every implementation passes. They move
bytes and know nothing of what the bytes mean. All calls block, and every wait has a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hilosync.log.polling import Polling

__all__ = ["BlobStore", "Delivery", "Log", "Mailbox", "Order", "SnapshotIndex", "StepLog"]


class StepLog(Protocol):
    """A run's records, numbered from 0 (the genesis) without a gap.

    Order: record v can be appended only when v − 1 is present.
    Idempotence: appending the same bytes again succeeds. After `LogUnavailable` the record may or may
        not have been accepted, since an acknowledgement can be lost: append the same bytes again.
    Fencing: appending other bytes raises `Fenced`; that one rule stops a second learner.
    Durability: when `append` returns, the record survives a crash of this process and of the machine;
        nobody reads a record before it does.
    Listing is never relied upon to follow a run: a reader asks for the next number and checks the chain itself.
    """

    def append(self, version: int, record: bytes) -> None:
        """Creates record `version` if it is absent and its predecessor is present.

        Raises:
            Fenced: another record of this version exists, or existed and was removed; nothing was changed.
            LogUnavailable: the predecessor is missing, or the storage refused (disk full,
                permission denied) or did not answer.
        """
        ...

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        """The bytes of record `version`, or None if it does not exist within `wait` seconds.

        Raises:
            Truncated: records up to a version above this one have been removed.
            LogUnavailable: the storage did not answer.
        """
        ...

    def head(self, at_least: int = 0) -> int:
        """The newest version present, −1 for an empty log; `at_least` is a version known to exist."""
        ...

    def highest(self) -> int:
        """The highest number that a listing of the records shows, −1 if none: for audits, and before a run is resumed.

        Asking for one number after the other cannot tell a log that ends from one with a hole. A
        listing can, and one that lags behind only shows a smaller number: take the larger of this and `head`.
        """
        ...

    def forget(self, before: int) -> None:
        """Removes the records 1 to `before` − 1, except the newest; the genesis stays.

        Reading a removed record raises `Truncated`. Forgetting again, or less, changes nothing.
        """
        ...


class BlobStore(Protocol):
    """Content-addressed bytes: snapshots' chunks, initial adapters. Writes are idempotent."""

    def put(self, content: bytes) -> str:
        """Stores the bytes and returns their key, the hex blake3 digest."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes stored under `key`, verified against it.

        Raises:
            LogNotFound: there is no such blob.
            LogUnavailable: the storage did not answer.
            MalformedRecord: the stored bytes do not have this digest.
        """
        ...

    def keys(self) -> list[str]:
        """The keys of the blobs that a listing shows, in no particular order: for garbage collection alone."""
        ...

    def remove(self, key: str) -> None:
        """Removes the blob, if there is one. Whoever needs it must no longer be able to find its key."""
        ...


class SnapshotIndex(Protocol):
    """Which snapshots of the policy a run offers: a manifest per version, whose chunks are blobs.

    Order: a manifest is published after all its chunks are stored, and is seen whole or not at all.
    Idempotence: all replicas hold the same bits, so whoever writes the snapshot of a version writes the
        same manifest. The first one counts; publishing another for the version changes nothing.
    Retention: `forget` moves a mark before it removes anything. Below the mark nothing can be published
        again, so chunks of a forgotten manifest may be removed for good.
    """

    def publish(self, version: int, manifest: bytes) -> bool:
        """Makes the snapshot visible; False if the version lies below the mark and nothing was done.

        Raises:
            LogUnavailable: the storage refused or did not answer.
        """
        ...

    def read(self, version: int) -> bytes | None:
        """The manifest of a version, or None."""
        ...

    def versions(self) -> list[int]:
        """The versions whose manifests a listing shows, ascending, those below the mark left out.

        A listing that lags behind shows fewer: a reader then finds an older snapshot, or replays.
        """
        ...

    def forget(self, before: int) -> None:
        """Removes the manifests of versions below `before`. Forgetting again, or less, changes nothing."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Order:
    """One batch of prompts that the learner wants answered.

    Attributes:
        version: the policy version at dispatch, which the rollouts are stamped with.
        batch: index of the batch within the version; with the run's seed it determines the prompts
            and the sampling noise, so any worker produces the same rollouts.
        attempt: 0, and one more each time the learner issues the batch again.
    """

    version: int
    batch: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A worker's answer to an order. `content` is opaque here."""

    worker: str
    order: Order
    content: bytes


class Mailbox(Protocol):
    """Orders from the learner to whichever worker takes them, and deliveries back.

    At least once: a batch may be answered twice (by the workers of two attempts) and a delivery may
    be collected twice (by two mailbox objects); the learner deduplicates by (version, batch).
    Nothing is delivered that was not fully written. An order whose worker died stays claimed: the
    learner offers the next attempt. Names of workers and senders are 1 to 64 letters, digits,
    ``.``, ``_`` and ``-``; others raise `ConfigurationError`. Every call may raise `LogUnavailable`,
    and may then simply be repeated. A `take` that failed may have claimed an order: the same mailbox
    object hands it out to the same worker the next time.
    """

    def offer(self, orders: Sequence[Order]) -> None:
        """Learner: makes orders available to all workers. Offering one again changes nothing."""
        ...

    def take(self, worker: str, wait: float = 0.0) -> Order | None:
        """Worker: claims one offered order for itself alone; None if there is none within `wait` seconds.

        The oldest version comes first, then the lowest batch. Of a batch only the newest attempt is
        handed out.
        """
        ...

    def deliver(self, delivery: Delivery) -> None:
        """Worker: hands in the answer. Delivering the same order again changes nothing: the first counts."""
        ...

    def collect(self, version: int, wait: float = 0.0) -> list[Delivery]:
        """Learner: the deliveries for orders of `version` that this mailbox object has not yet returned.

        Returns as soon as there is at least one, or an empty list after `wait` seconds.
        """
        ...

    def claims(self, version: int) -> dict[Order, str]:
        """Learner: which worker holds each claimed order of `version`, answered or not."""
        ...

    def forget(self, before: int) -> None:
        """Learner: removes orders, claims and deliveries of versions below `before`."""
        ...

    def post(self, sender: str, content: bytes) -> None:
        """Replaces the sender's notice (its status, heartbeat, or the learner's closing word)."""
        ...

    def notices(self) -> dict[str, bytes]:
        """The newest notice of every sender."""
        ...


@dataclass(frozen=True)
class Log:
    """The stores of one run, as `open_log(url)` returns them.

    Attributes:
        url: the address, scheme included.
        steps: the records.
        blobs: content-addressed bytes.
        snapshots: which snapshots there are.
        mailbox: orders, deliveries and notices; it remembers what it has collected.
        polling: how often it pays to ask this log for news.
    """

    url: str
    steps: StepLog
    blobs: BlobStore
    snapshots: SnapshotIndex
    mailbox: Mailbox
    polling: Polling
