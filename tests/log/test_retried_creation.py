"""A client that retries a creation below us reports "already there" of what we have just made."""

from __future__ import annotations

from obstore.store import MemoryStore

from hilosync.log import Order, Polling
from hilosync.log.mailbox import ObjectMailbox
from hilosync.log.objects import Objects
from hilosync.log.steps import ObjectStepLog


class CreatedTwice(Objects):
    """Creates, loses the answer, and creates again."""

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        super().create(path, content, durable)
        return super().create(path, content, durable)


def test_an_appended_record_is_recognized():
    steps = ObjectStepLog(CreatedTwice(MemoryStore(), "test:"), Polling())
    for version in range(3):
        steps.append(version, b"%d" % version)
    assert steps.head() == 2


def test_a_taken_order_is_recognized_by_its_mark():
    objects = CreatedTwice(MemoryStore(), "test:")
    mailbox = ObjectMailbox(objects, Polling())
    mailbox.offer([Order(1, 0)])
    assert mailbox.take("w") == Order(1, 0)
    assert mailbox.take("w") is None
    assert ObjectMailbox(objects, Polling()).take("w") is None
