"""Orders that the log refused, or lost, reach a worker all the same: the learner does not wait for ever."""

from __future__ import annotations

import msgspec
import pytest

from hilosync.errors import LogUnavailable
from hilosync.log import Delivery, Order, open_log
from hilosync.runtime import Dispatcher, Limits, Notice


class Forgetful:
    """A mailbox whose first offers are refused, or acknowledged and lost."""

    def __init__(self, mailbox, refuse: int = 0, lose: int = 0):
        self._mailbox = mailbox
        self._refuse = refuse
        self._lose = lose

    def __getattr__(self, name):
        return getattr(self._mailbox, name)

    def offer(self, orders):
        if self._refuse:
            self._refuse -= 1
            raise LogUnavailable("no space left")
        if self._lose:
            self._lose -= 1
            return
        self._mailbox.offer(orders)


class Scene:
    """A learner's dispatcher on a clock of our own, and a worker that acts while the learner waits."""

    def __init__(self, address, **faults):
        self.mailbox = Forgetful(open_log(address, create=True).mailbox, **faults)
        self.now = 0.0
        self.dispatcher = Dispatcher(self.mailbox, limits=Limits(silence=5.0), clock=lambda: self.now)

    def collect(self) -> list[bytes]:
        return self.dispatcher.collect(0, lambda delivery: delivery.content, self.watch)

    def watch(self, roll):
        self.now += 1.0
        assert self.now < 60, "the learner waits for ever"
        notice = Notice(sender="w", incarnation="w-1", beat=int(self.now), state="serving")
        self.mailbox.post("w", msgspec.json.encode(notice))
        order = self.mailbox.take("w-1")
        if order is not None and self.answers(order):
            self.mailbox.deliver(Delivery("w-1", order, b"answer"))

    def answers(self, order: Order) -> bool:
        return True


def test_an_offer_that_the_log_refused_is_made_again(memory):
    scene = Scene(memory, refuse=1)
    with pytest.raises(LogUnavailable):
        scene.collect()
    assert scene.collect() == [b"answer"]


def test_an_order_that_the_log_lost_is_offered_again(memory):
    assert Scene(memory, lose=1).collect() == [b"answer"]


def test_a_batch_whose_new_attempt_was_refused_is_offered_again(memory):
    scene = Scene(memory)
    scene.dispatcher.limits = Limits(silence=5.0, lease=3.0)

    def drop_the_first(order: Order) -> bool:
        if order.attempt == 0:
            scene.mailbox._refuse = 1
        return order.attempt > 0

    scene.answers = drop_the_first
    with pytest.raises(LogUnavailable):
        scene.collect()
    assert scene.collect() == [b"answer"] and scene.dispatcher.reissued == 1
