"""The conformance suite of `Mailbox`."""

from __future__ import annotations

import threading

import pytest

from hilosync.errors import ConfigurationError
from hilosync.log import Delivery, Order

LIMIT = 60.0


def test_an_empty_mailbox_has_nothing_for_anyone(log):
    assert log.mailbox.take("worker") is None
    assert log.mailbox.take("worker", wait=0.02) is None
    assert log.mailbox.collect(1) == []
    assert log.mailbox.collect(1, wait=0.02) == []
    assert log.mailbox.claims(1) == {}
    assert log.mailbox.notices() == {}
    log.mailbox.forget(5)
    log.mailbox.offer([])


def test_orders_are_handed_out_once_oldest_version_first(opens):
    opens().mailbox.offer([Order(10, 0), Order(9, 1), Order(9, 0), Order(9, 10), Order(9, 2)])
    workers = [opens().mailbox, opens().mailbox]
    taken = [workers[turn % 2].take(f"w{turn % 2}") for turn in range(6)]
    assert taken == [Order(9, 0), Order(9, 1), Order(9, 2), Order(9, 10), Order(10, 0), None]


def test_an_order_offered_again_is_not_handed_out_again(opens):
    learner, worker = opens().mailbox, opens().mailbox
    learner.offer([Order(1, 0)])
    assert worker.take("w") == Order(1, 0)
    learner.offer([Order(1, 0)])
    assert worker.take("w") is None
    assert opens().mailbox.take("w") is None  # nor to the same worker, started again


def test_the_next_attempt_replaces_the_one_before(opens):
    learner, worker = opens().mailbox, opens().mailbox
    learner.offer([Order(1, 0), Order(1, 1)])
    assert worker.take("dead") == Order(1, 0)
    learner.offer([Order(1, 0, 1), Order(1, 1, 1)])
    assert [worker.take("alive") for _ in range(3)] == [Order(1, 0, 1), Order(1, 1, 1), None]
    assert learner.claims(1) == {Order(1, 0): "dead", Order(1, 0, 1): "alive", Order(1, 1, 1): "alive"}


def test_the_learner_sees_who_holds_what_answered_or_not(opens):
    learner, worker = opens().mailbox, opens().mailbox
    learner.offer([Order(1, 0), Order(1, 1), Order(2, 0)])
    for name in ("a", "b.2_x-y", "c"):
        order = worker.take(name)
        if name == "a":
            worker.deliver(Delivery(name, order, b"done"))
    assert learner.claims(1) == {Order(1, 0): "a", Order(1, 1): "b.2_x-y"}
    assert learner.claims(2) == {Order(2, 0): "c"}
    assert learner.claims(3) == {}


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", bytes(range(256)) * 4000])
def test_a_delivery_arrives_whole_with_its_order_and_worker(opens, content: bytes):
    delivery = Delivery("worker-1", Order(3, 4, 5), content)
    opens().mailbox.deliver(delivery)
    assert opens().mailbox.collect(3) == [delivery]


def test_a_delivery_is_collected_once_by_each_mailbox(opens):
    worker, learner = opens().mailbox, opens().mailbox
    worker.deliver(Delivery("w", Order(1, 0), b"0"))
    worker.deliver(Delivery("w", Order(2, 0), b"later"))
    assert [delivery.content for delivery in learner.collect(1)] == [b"0"]
    worker.deliver(Delivery("w", Order(1, 1), b"1"))
    assert [delivery.content for delivery in learner.collect(1)] == [b"1"]
    assert learner.collect(1) == []
    assert [delivery.content for delivery in opens().mailbox.collect(1)] == [b"0", b"1"]
    assert [delivery.content for delivery in learner.collect(2)] == [b"later"]


def test_of_two_deliveries_of_one_order_the_first_counts(opens):
    opens().mailbox.deliver(Delivery("w", Order(1, 0), b"first"))
    opens().mailbox.deliver(Delivery("x", Order(1, 0), b"second"))
    assert opens().mailbox.collect(1) == [Delivery("w", Order(1, 0), b"first")]


def test_a_taker_and_a_collector_that_wait_are_served_when_something_comes(opens):
    got = []

    def work() -> None:
        mailbox = opens().mailbox
        order = mailbox.take("w", wait=LIMIT)
        mailbox.deliver(Delivery("w", order, b"answer"))

    def collect() -> None:
        got.extend(opens().mailbox.collect(1, wait=LIMIT))

    threads = [threading.Thread(target=work), threading.Thread(target=collect)]
    for thread in threads:
        thread.start()
    opens().mailbox.offer([Order(1, 0)])
    for thread in threads:
        thread.join(LIMIT)
    assert got == [Delivery("w", Order(1, 0), b"answer")]


def test_what_is_forgotten_is_gone_and_what_is_newer_stays(opens):
    learner, worker = opens().mailbox, opens().mailbox
    learner.offer([Order(version, 0) for version in (1, 2, 3)])
    for _ in range(2):
        worker.deliver(Delivery("w", worker.take("w"), b""))
    learner.forget(before=2)
    assert learner.claims(1) == {}
    assert opens().mailbox.collect(1) == []
    assert learner.claims(2) == {Order(2, 0): "w"}
    assert [delivery.order for delivery in learner.collect(2)] == [Order(2, 0)]
    learner.forget(before=3)
    assert worker.take("w") == Order(3, 0)
    learner.forget(before=4)
    assert worker.take("w") is None


def test_the_newest_notice_of_every_sender_is_kept(opens):
    opens().mailbox.post("worker-1", b"at version 1")
    opens().mailbox.post("learner", b"begun")
    opens().mailbox.post("worker-1", b"at version 2")
    opens().mailbox.forget(100)
    assert opens().mailbox.notices() == {"learner": b"begun", "worker-1": b"at version 2"}


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\nb", ".hidden", "x" * 65, "naïve"])
def test_a_name_that_is_no_name_is_refused(log, name: str):
    with pytest.raises(ConfigurationError, match="expected 1 to 64"):
        log.mailbox.take(name)
    with pytest.raises(ConfigurationError, match="expected 1 to 64"):
        log.mailbox.deliver(Delivery(name, Order(1, 0), b""))
    with pytest.raises(ConfigurationError, match="expected 1 to 64"):
        log.mailbox.post(name, b"")


def test_four_workers_answer_every_order_once_while_the_learner_tidies_up(opens):
    # A service that wants to be asked once a second makes a long history slow, and no other.
    versions, batches = (8, 6) if opens().polling.longest < 0.5 else (2, 4)
    answered, failures = [], []
    finished = threading.Event()

    def work(name: str) -> None:
        mailbox = opens().mailbox
        try:
            while not finished.is_set():
                order = mailbox.take(name, wait=0.01)
                if order is not None:
                    mailbox.deliver(Delivery(name, order, b"%d" % order.batch))
                    answered.append(order)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"w{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    learner = opens().mailbox
    try:
        for version in range(1, versions + 1):
            learner.offer([Order(version, batch) for batch in range(batches)])
            got = set()
            while len(got) < batches:
                deliveries = learner.collect(version, wait=LIMIT)
                assert deliveries or not failures, failures
                got |= {delivery.order.batch for delivery in deliveries}
            learner.forget(before=version)
    finally:
        finished.set()
        for thread in threads:
            thread.join(LIMIT)
    assert failures == []
    assert sorted(answered) == [Order(v, b) for v in range(1, versions + 1) for b in range(batches)]
