"""A mailbox of objects.

orders/V-B-A      empty; the name is the order: version, batch, attempt
claims/V-B-A      who took it; created once, so one worker alone has it
rollouts/V-B-A    the worker's name, a line feed, the content
notices/SENDER    the sender's newest notice
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log.base import Delivery, Order
from hilosync.log.named import NamedObjects
from hilosync.log.polling import Polling

__all__ = ["ObjectMailbox"]


class ObjectMailbox:
    """`Mailbox` on objects. It lists folders, which `forget` keeps short."""

    def __init__(self, objects: NamedObjects, polling: Polling):
        self._objects = objects
        self._polling = polling
        self._collected: set[Order] = set()
        self._unsure: dict[str, bytes] = {}
        """Marks under which a worker may have claimed an order without having learnt of it."""

    def offer(self, orders: Sequence[Order]) -> None:
        """See `Mailbox.offer`."""
        for order in orders:
            self._objects.create(f"orders/{_name(order)}", b"")

    def take(self, worker: str, wait: float = 0.0) -> Order | None:
        """See `Mailbox.take`."""
        _check_name("worker", worker)
        # Unlike for every other claim, also of this worker's earlier life: a create that was retried
        # below us reports "already there", and the mark tells that it was ours.
        unsure = self._unsure.pop(worker, None)
        mark = unsure or f"{worker}\n{secrets.token_hex(8)}".encode()
        try:
            return self._polling.until(lambda: self._claim(mark, unsure is not None), wait)
        except LogUnavailable:
            self._unsure[worker] = mark
            raise

    def deliver(self, delivery: Delivery) -> None:
        """See `Mailbox.deliver`."""
        _check_name("worker", delivery.worker)
        content = delivery.worker.encode() + b"\n" + delivery.content
        self._objects.create(f"rollouts/{_name(delivery.order)}", content, durable=True)

    def collect(self, version: int, wait: float = 0.0) -> list[Delivery]:
        """See `Mailbox.collect`."""
        return self._polling.until(lambda: self._collect(version) or None, wait) or []

    def claims(self, version: int) -> dict[Order, str]:
        """See `Mailbox.claims`."""
        found = {}
        for order in self._orders_in("claims"):
            if order.version == version:
                mark = self._objects.get(f"claims/{_name(order)}")
                if mark is not None:
                    found[order] = mark.partition(b"\n")[0].decode(errors="replace")
        return found

    def forget(self, before: int) -> None:
        """See `Mailbox.forget`."""
        # Orders first: see `_claim`.
        for folder in ("orders", "claims", "rollouts"):
            for order in self._orders_in(folder):
                if order.version < before:
                    self._objects.remove(f"{folder}/{_name(order)}")
        self._collected = {order for order in self._collected if order.version >= before}

    def post(self, sender: str, content: bytes) -> None:
        """See `Mailbox.post`."""
        _check_name("sender", sender)
        self._objects.replace(f"notices/{sender}", content)

    def notices(self) -> dict[str, bytes]:
        """See `Mailbox.notices`."""
        found = {sender: self._objects.get(f"notices/{sender}") for sender in self._objects.names("notices")}
        return {sender: content for sender, content in sorted(found.items()) if content is not None}

    def _claim(self, mark: bytes, unsure: bool) -> Order | None:
        offered = self._orders_in("orders")
        if not offered:
            return None
        newest = {(order.version, order.batch): order for order in sorted(offered)}
        claimed = set(self._orders_in("claims"))
        for order in newest.values():
            claim = f"claims/{_name(order)}"
            if order in claimed and not unsure:
                continue
            if not (self._objects.create(claim, mark) or self._objects.get(claim) == mark):
                continue
            # Since the listing the learner may have forgotten the order and then the claim that
            # another worker held. Orders go first, so one that is still there was nobody's.
            if self._objects.exists(f"orders/{_name(order)}"):
                return order
            self._objects.remove(claim)
        return None

    def _collect(self, version: int) -> list[Delivery]:
        found = []
        for order in sorted(self._orders_in("rollouts")):
            if order.version != version or order in self._collected:
                continue
            content = self._objects.get(f"rollouts/{_name(order)}")
            if content is None:
                continue
            worker, separator, answer = content.partition(b"\n")
            if separator:
                found.append(Delivery(worker.decode(errors="replace"), order, answer))
        # Only now: had a call failed on the way, nobody would have been handed what was found before it.
        self._collected.update(delivery.order for delivery in found)
        return found

    def _orders_in(self, folder: str) -> list[Order]:
        matches = (re.fullmatch(r"(\d+)-(\d+)-(\d+)", name) for name in self._objects.names(folder))
        return [Order(*map(int, match.groups())) for match in matches if match is not None]


def _name(order: Order) -> str:
    return f"{order.version}-{order.batch}-{order.attempt}"


def _check_name(kind: str, name: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) is None:
        raise ConfigurationError(
            f"{kind} {name[:80]!r}: expected 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
