"""The seam of the transports: where records, blobs and rollouts live.

Three small contracts, each with one conformance suite that every implementation passes. They move
bytes and know nothing of what the bytes mean. All calls block, and every wait has a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BlobStore", "Delivery", "Log", "Mailbox", "Order", "StepLog"]


class StepLog(Protocol):
    """A run's records, numbered from 0 (the genesis) without a gap.

    Order: record v can be appended only when v − 1 is present.
    Idempotence: appending the same bytes again succeeds, so a lost acknowledgement is simply retried.
    Fencing: appending other bytes raises `Fenced`; that one rule stops a second learner.
    Durability: when `append` returns, the record survives a crash of this process and of the storage.
    Listing is never relied upon: a reader asks for the next number and checks the chain itself.
    """

    def append(self, version: int, record: bytes) -> None:
        """Creates record `version` if it is absent and its predecessor is present.

        Raises:
            Fenced: another record of this version exists; nothing was changed.
            LogUnavailable: the predecessor is missing, or the storage refused (disk full,
                permission denied); nothing was accepted.
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


class BlobStore(Protocol):
    """Content-addressed bytes: snapshots' chunks, initial adapters. Writes are idempotent."""

    def put(self, content: bytes) -> str:
        """Stores the bytes and returns their key, the hex blake3 digest."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes stored under `key`, verified against it.

        Raises:
            LogNotFound: there is no such blob.
            MalformedRecord: the stored bytes do not have this digest.
        """
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

    At least once: an order may be answered twice and a delivery may be collected twice; the
    learner deduplicates by (version, batch). Nothing is delivered that was not fully written.
    """

    def offer(self, orders: Sequence[Order]) -> None:
        """Learner: makes orders available to all workers. Offering one again changes nothing."""
        ...

    def take(self, worker: str, wait: float = 0.0) -> Order | None:
        """Worker: claims one offered order for itself alone, oldest version first; None if none within `wait`."""
        ...

    def deliver(self, delivery: Delivery) -> None:
        """Worker: hands in the answer. Delivering the same order again changes nothing."""
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
    """The three stores of one run, as `open_log(url)` returns them."""

    url: str
    steps: StepLog
    blobs: BlobStore
    mailbox: Mailbox
