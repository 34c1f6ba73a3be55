"""Learner and workers that overlap: in a fixed order, or with whatever arrives first."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

import hilosync as hilo
from hilosync.log import Delivery, Order
from hilosync.runtime import Dispatcher, Heartbeat, Limits, Notice, Pace, Replica, Worker

LIMITS = Limits(silence=10.0, patience=60.0)


def serve(replica: Replica, order: Order) -> bytes:
    return f"{order.version}/{order.batch}/{replica.version}".encode()


def whole(delivery: Delivery) -> Delivery:
    return delivery


@pytest.fixture
def learner(model, memory):
    return hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)


@contextmanager
def workers(memory: str, *names: str):
    """Workers that run until the learner has finished; gives their final versions."""
    finals: list[int] = []
    running = [Worker(Replica.join(memory), name, serve, LIMITS) for name in names]
    threads = [threading.Thread(target=lambda w=worker: finals.append(w.run())) for worker in running]
    for thread in threads:
        thread.start()
    yield finals
    for thread in threads:
        thread.join(timeout=60)


@contextmanager
def leading(learner, dispatcher):
    """Heartbeat of the learner; gives what a session does at every version."""
    notice = Notice(sender="learner", incarnation="l", beat=0, state="serving", oldest=0)
    with Heartbeat(learner.log.mailbox, notice, interval=0.2) as heartbeat:

        def offer() -> None:
            dispatcher.offer(learner.version)
            heartbeat.update(version=learner.version, oldest=dispatcher.oldest)

        yield offer
        heartbeat.update(state="finished", version=learner.version)


def test_a_pipelined_run_uses_the_same_rollouts_whoever_makes_them_when(learner, model, memory, backward):
    dispatcher = Dispatcher(learner.log.mailbox, Pace("pipelined", 1, 2), LIMITS)
    with workers(memory, "one", "two") as finals, leading(learner, dispatcher) as offer:
        for version in range(6):
            offer()
            contents = [delivery.content for delivery in dispatcher.collect(version, whole)]
            at, first = max(0, version - 1), 2 * (version == 1)
            assert contents == [f"{at}/{batch}/{at}".encode() for batch in (first, first + 1)]
            backward(model)
            learner.step()
    assert finals == [6, 6]
    assert (dispatcher.withdrawn, dispatcher.reissued) == (0, 0)


def test_a_slow_worker_slows_nobody_in_an_asynchronous_run(learner, model, memory, backward):
    mailbox = learner.log.mailbox
    dispatcher = Dispatcher(mailbox, Pace("asynchronous", 1, 2), LIMITS)
    slow = Notice(sender="slow", incarnation="slow", beat=0, state="serving")
    used: list[Delivery] = []
    with Heartbeat(mailbox, slow, interval=0.2):
        dispatcher.offer(0)
        held = mailbox.take("slow", wait=5)
        with workers(memory, "quick"), leading(learner, dispatcher) as offer:
            for version in range(6):
                offer()
                used += dispatcher.collect(version, whole)
                if version == 4:  # at last, and too late
                    mailbox.deliver(Delivery("slow", held, b"0/0/0"))
                backward(model)
                learner.step()
    assert dispatcher.withdrawn >= 1 and dispatcher.reissued == 0
    assert {delivery.worker.split("-")[0] for delivery in used} == {"quick"}
    assert len({(delivery.order.version, delivery.order.batch) for delivery in used}) == len(used) == 12


def test_a_worker_that_is_ahead_answers_an_older_order_with_what_it_holds(learner, model, memory, backward):
    replica = Replica.join(memory)
    for _ in range(3):
        backward(model)
        learner.step()
    replica.advance()
    dispatcher = Dispatcher(learner.log.mailbox, Pace("pipelined", 2, 1), LIMITS)
    thread = threading.Thread(target=Worker(replica, "w", serve, LIMITS).run)
    with leading(learner, dispatcher) as offer:
        offer()
        thread.start()
        assert dispatcher.collect(3, whole)[0].content == b"1/0/3"
    thread.join(timeout=60)


def test_a_learner_that_starts_again_uses_no_asynchronous_answer_of_its_earlier_life(learner, model, memory, backward):
    mailbox = learner.log.mailbox
    first = Dispatcher(mailbox, Pace("asynchronous", 2, 1), LIMITS)
    first.offer(0)
    early = mailbox.take("w")
    mailbox.deliver(Delivery("w", early, b"which step took it?"))
    backward(model)
    learner.step()
    again = Dispatcher(mailbox, Pace("asynchronous", 2, 1), LIMITS)
    with workers(memory, "w"), leading(learner, again) as offer:
        offer()
        assert again.collect(1, whole)[0].content == b"1/0/1"
