"""What the processes of the NATS log's tests do. It imports little, since every process imports it."""

from __future__ import annotations

from racers import LIMIT

from hilosync.log import Delivery, Order, open_log


def record(version: int) -> bytes:
    return version.to_bytes(4, "little") * 5_000


def learn(url: str, versions: int, reached) -> None:
    """Appends records, and takes each one's rollouts before the next."""
    log = open_log(url, create=True)
    for version in range(versions):
        log.steps.append(version, record(version))
        log.mailbox.offer([Order(version, 0)])
        deliveries = log.mailbox.collect(version, wait=LIMIT)
        assert [delivery.content for delivery in deliveries] == [record(version)[:9]]
        reached.put(version)


def work(url: str, versions: int, applied) -> None:
    """Takes orders, reads each one's record once, and answers."""
    log = open_log(url, wait=LIMIT)
    for version in range(versions):
        order = log.mailbox.take("worker", wait=LIMIT)
        content = log.steps.read(version, wait=LIMIT)
        log.mailbox.deliver(Delivery("worker", order, content[:9]))
        applied.put((order.version, content == record(version)))
