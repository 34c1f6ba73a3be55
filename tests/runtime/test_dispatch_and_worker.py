"""Rollouts: every batch collected once, workers lost and found, and no wait without an end."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

import hilosync as hilo
from hilosync.errors import ConfigurationError, LogUnavailable, MalformedRollouts, PeerSilent
from hilosync.log import Delivery, Order, open_log
from hilosync.runtime import Dispatcher, Heartbeat, Limits, Notice, Pace, Presence, Replica, Worker
from hilosync.runtime.snapshots import write_snapshot

QUICK = Limits(silence=0.6, lease=30.0, patience=2.0)


def notice(sender: str, incarnation: str | None = None, **fields) -> Notice:
    return Notice(sender=sender, incarnation=incarnation or sender, beat=0, state="serving", **fields)


def whole(delivery: Delivery) -> Delivery:
    return delivery


def answer(mailbox, worker: str, content: bytes = b"done", wait: float = 5.0) -> Order | None:
    order = mailbox.take(worker, wait=wait)
    if order is not None:
        mailbox.deliver(Delivery(worker, order, content))
    return order


@pytest.fixture
def mailbox(memory):
    return open_log(memory, create=True).mailbox


def test_batches_are_returned_in_order_whoever_answers_first(mailbox):
    def work():
        taken = [mailbox.take("w", wait=5) for _ in range(3)]
        for order in reversed(taken):
            mailbox.deliver(Delivery("w", order, f"batch {order.batch}".encode()))

    with Heartbeat(mailbox, notice("w"), interval=0.1):
        thread = threading.Thread(target=work)
        thread.start()
        collected = Dispatcher(mailbox, Pace(batches=3), QUICK).collect(version=4, admit=whole)
        thread.join()
    assert [delivery.content for delivery in collected] == [b"batch 0", b"batch 1", b"batch 2"]
    assert {delivery.order.version for delivery in collected} == {4}


def test_a_batch_answered_twice_is_used_once(mailbox):
    dispatcher = Dispatcher(mailbox, limits=QUICK)
    with Heartbeat(mailbox, notice("w"), interval=0.1):
        mailbox.offer([Order(1, 0), Order(1, 0, attempt=1)])
        mailbox.deliver(Delivery("w", Order(1, 0), b"first"))
        mailbox.deliver(Delivery("v", Order(1, 0, attempt=1), b"second"))
        collected = dispatcher.collect(version=1, admit=whole)
    assert len(collected) == 1
    assert dispatcher.duplicates == 1


def test_a_dead_workers_batch_is_offered_again_and_answered_by_another(mailbox):
    dispatcher = Dispatcher(mailbox, limits=QUICK)
    mailbox.post("dead", msgspec.json.encode(notice("dead")))
    mailbox.offer([Order(2, 0)])
    assert mailbox.take("dead") == Order(2, 0)
    taken = []
    with Heartbeat(mailbox, notice("alive"), interval=0.1):
        thread = threading.Thread(target=lambda: taken.append(answer(mailbox, "alive", wait=20)))
        thread.start()
        collected = dispatcher.collect(version=2, admit=whole)
        thread.join()
    assert taken == [Order(2, 0, attempt=1)]
    assert collected[0].worker == "alive"
    assert dispatcher.reissued == 1


def test_a_worker_started_again_does_not_count_as_holding_its_old_order(mailbox):
    dispatcher = Dispatcher(mailbox, limits=Limits(silence=30.0, lease=30.0, patience=30.0))
    mailbox.offer([Order(1, 0)])
    assert mailbox.take("w-first") == Order(1, 0)
    taken = []
    with Heartbeat(mailbox, notice("w", "w-second"), interval=0.1):
        thread = threading.Thread(target=lambda: taken.append(answer(mailbox, "w-second", wait=20)))
        thread.start()
        dispatcher.collect(version=1, admit=whole)
        thread.join()
    assert taken == [Order(1, 0, attempt=1)]


def test_a_slow_living_worker_keeps_its_order(mailbox):
    dispatcher = Dispatcher(mailbox, limits=QUICK)

    def slow():
        order = mailbox.take("slow", wait=5)
        time.sleep(1.5)
        mailbox.deliver(Delivery("slow", order, b"at last"))

    with Heartbeat(mailbox, notice("slow"), interval=0.1):
        thread = threading.Thread(target=slow)
        thread.start()
        collected = dispatcher.collect(version=1, admit=whole)
        thread.join()
    assert collected[0].content == b"at last" and dispatcher.reissued == 0


def test_without_a_living_worker_the_learner_gives_up_and_says_what_to_do(mailbox):
    started = time.monotonic()
    mailbox.post("w", msgspec.json.encode(msgspec.structs.replace(notice("w"), state="failed", detail="no such model")))
    with pytest.raises(PeerSilent, match=r"hilo work.*w failed: no such model"):
        Dispatcher(mailbox, limits=Limits(silence=0.1, lease=1.0, patience=0.5)).collect(version=1, admit=whole)
    assert time.monotonic() - started < 30


def test_silence_is_measured_by_the_readers_clock(mailbox):
    now = [100.0]
    presence = Presence(mailbox, clock=lambda: now[0])
    mailbox.post("w", msgspec.json.encode(notice("w")))
    assert presence.look().silence("w") == 0.0
    now[0] = 107.0
    assert presence.look().silence("w") == 7.0
    mailbox.post("w", msgspec.json.encode(msgspec.structs.replace(notice("w"), beat=1)))
    assert presence.look().silence("w") == 0.0
    assert presence.look().silence("nobody") == float("inf")


def test_a_heartbeat_goes_on_while_its_owner_is_busy_and_says_how_it_ended(mailbox):
    presence = Presence(mailbox)
    with pytest.raises(RuntimeError), Heartbeat(mailbox, notice("w"), interval=0.02):
        first = presence.look().notice("w").beat
        time.sleep(0.5)
        assert presence.look().notice("w").beat > first
        raise RuntimeError("out of memory")
    last = presence.look().notice("w")
    assert (last.state, last.detail) == ("failed", "out of memory")


def serve(replica: Replica, order: Order) -> bytes:
    return f"{order.version}/{order.batch}/{replica.version}".encode()


def test_two_workers_follow_a_learner_to_its_end(model, memory, backward):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    dispatcher = Dispatcher(learner.log.mailbox, Pace(batches=3), Limits(silence=5.0, patience=60.0))
    workers = [Worker(Replica.join(memory), name, serve) for name in ("one", "two")]
    finals: list[int] = []
    threads = [threading.Thread(target=lambda w=worker: finals.append(w.run())) for worker in workers]
    for thread in threads:
        thread.start()
    with Heartbeat(learner.log.mailbox, notice("learner")) as heartbeat:
        for version in range(5):
            contents = [delivery.content for delivery in dispatcher.collect(version, whole)]
            assert contents == [f"{version}/{batch}/{version}".encode() for batch in range(3)]
            backward(model)
            learner.step()
        heartbeat.update(state="finished", version=learner.version)
        for thread in threads:
            thread.join(timeout=60)
    assert finals == [5, 5]
    assert sum(worker.answered for worker in workers) == 15
    roll = dispatcher.presence.look()
    assert {w.digest for w in roll.workers()} == {learner.digest.hex()}
    assert [w.checks for w in roll.workers()] == [5, 5]


def test_a_worker_whose_learner_is_silent_stops_and_says_so(model, memory):
    hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    worker = Worker(Replica.join(memory), "w", serve, Limits(patience=0.5))
    with pytest.raises(PeerSilent, match="nothing heard from the learner for"):
        worker.run()


def test_a_worker_passes_on_why_its_learner_failed(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    learner.log.mailbox.post("learner", msgspec.json.encode(notice("learner")))

    def fail(said: Notice) -> None:
        failed = notice("learner", version=0)
        failed = msgspec.structs.replace(failed, beat=1, state="failed", detail="disk full")
        learner.log.mailbox.post("learner", msgspec.json.encode(failed))

    with pytest.raises(PeerSilent, match=r"the learner failed at version 0: disk full.*start the learner again"):
        Worker(Replica.join(memory), "w", serve, Limits(silence=0.2, patience=60.0)).run(watch=fail)


def test_last_words_of_an_earlier_learner_do_not_end_a_worker_that_waits_for_the_next(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    mailbox = learner.log.mailbox
    failed = msgspec.structs.replace(notice("learner", "earlier"), state="failed", detail="disk full")
    mailbox.post("learner", msgspec.json.encode(failed))
    with pytest.raises(PeerSilent, match="the learner failed at version 0: disk full"):
        Worker(Replica.join(memory), "w", serve, Limits(silence=0.1, patience=0.5)).run()
    finals: list[int] = []
    worker = Worker(Replica.join(memory), "w", serve, Limits(silence=0.1, patience=60.0))
    thread = threading.Thread(target=lambda: finals.append(worker.run()))
    thread.start()
    time.sleep(0.6)
    with Heartbeat(mailbox, notice("learner", "later"), interval=0.1) as heartbeat:
        heartbeat.update(state="finished")
        thread.join(timeout=60)
    assert finals == [0]


def test_last_words_of_a_learner_that_was_replaced_end_no_worker(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    mailbox = learner.log.mailbox
    finals: list[int] = []
    spoken = threading.Event()
    failed = msgspec.structs.replace(notice("learner", "earlier"), state="failed", detail="interrupted")

    def speak(said: Notice) -> None:
        mailbox.post("learner", msgspec.json.encode(failed))
        spoken.set()

    mailbox.post("learner", msgspec.json.encode(notice("learner", "later")))
    worker = Worker(Replica.join(memory), "w", serve, Limits(silence=30.0, patience=60.0))
    thread = threading.Thread(target=lambda: finals.append(worker.run(watch=speak)))
    thread.start()
    assert spoken.wait(timeout=60)
    time.sleep(0.5)
    with Heartbeat(mailbox, notice("learner", "later"), interval=0.1) as heartbeat:
        heartbeat.update(state="finished")
        thread.join(timeout=60)
    assert finals == [0]


def test_a_worker_whose_orders_version_was_removed_answers_with_a_later_one(model, memory, backward):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    for _ in range(6):
        backward(model)
        learner.step()
    write_snapshot(learner.log, learner.run, learner._machine.state, 6)
    learner.log.steps.forget(before=5)
    mailbox = learner.log.mailbox
    mailbox.offer([Order(4, 0)])
    worker = Worker(Replica.join(memory), "w", serve, Limits(silence=5.0, patience=60.0))
    thread = threading.Thread(target=worker.run)
    with Heartbeat(mailbox, notice("learner", oldest=3), interval=0.1) as heartbeat:
        thread.start()
        (delivery,) = Dispatcher(mailbox, limits=Limits(silence=5.0, patience=30.0)).collect(4, whole)
        heartbeat.update(state="finished", version=6)
        thread.join(timeout=60)
    assert delivery.content == b"4/0/6" and not thread.is_alive()


def test_a_worker_does_not_wait_for_a_record_that_the_log_has_lost(model, tmp_path, backward):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=f"file:{tmp_path}/run")
    for _ in range(4):
        backward(model)
        learner.step()
    (tmp_path / "run" / "steps" / f"{3:020d}").unlink()
    learner.log.mailbox.offer([Order(4, 0)])
    worker = Worker(Replica.join(learner.log), "w", serve, Limits(silence=0.1, patience=30.0))
    with (
        Heartbeat(learner.log.mailbox, notice("learner"), interval=0.1),
        pytest.raises(LogUnavailable, match="record 3 is missing, and record 4 is there"),
    ):
        worker.run()


def test_a_wrong_answer_is_refused_and_its_batch_offered_again(mailbox):
    def admit(delivery: Delivery) -> bytes:
        if delivery.content == b"garbage":
            raise MalformedRollouts("not a batch")
        return delivery.content

    def work():
        answer(mailbox, "bad", b"garbage", wait=20)
        answer(mailbox, "good", b"rollouts", wait=20)

    dispatcher = Dispatcher(mailbox, limits=Limits(silence=30.0, patience=30.0))
    with Heartbeat(mailbox, notice("bad"), interval=0.1), Heartbeat(mailbox, notice("good"), interval=0.1):
        thread = threading.Thread(target=work)
        thread.start()
        assert dispatcher.collect(1, admit) == [b"rollouts"]
        thread.join()
    assert dispatcher.reissued == 1


def test_a_batch_that_is_always_answered_wrongly_ends_the_run_with_the_reason(mailbox):
    def admit(delivery: Delivery) -> bytes:
        raise MalformedRollouts("not a batch")

    with Heartbeat(mailbox, notice("w"), interval=0.1):
        thread = threading.Thread(target=lambda: [answer(mailbox, "w", wait=20) for _ in range(3)])
        thread.start()
        with pytest.raises(MalformedRollouts, match="not a batch"):
            Dispatcher(mailbox, limits=Limits(silence=30.0, patience=30.0)).collect(1, admit)
        thread.join()


def test_stray_files_among_the_notices_and_orders_end_nothing(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    mailbox = learner.log.mailbox
    mailbox.post("w.swp", b"\x00garbage")
    mailbox.offer([Order(99, 0)])
    worker = Worker(Replica.join(memory), "w", serve, Limits(silence=0.3, patience=60.0))
    thread = threading.Thread(target=worker.run)
    with Heartbeat(mailbox, notice("learner"), interval=0.1) as heartbeat:
        thread.start()
        collected = Dispatcher(mailbox, limits=Limits(silence=5.0, patience=30.0)).collect(0, whole)
        assert collected[0].content == b"0/0/0"
        heartbeat.update(state="finished", version=0)
        thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", ["learner", "", "x" * 49])
def test_a_worker_cannot_take_a_name_that_would_mislead_others(model, memory, name):
    hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    with pytest.raises(ConfigurationError, match="cannot be named"):
        Worker(Replica.join(memory), name, serve)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wait_without_a_limit_is_refused(seconds):
    with pytest.raises(ConfigurationError, match="patience: expected a finite number of seconds above 0"):
        Limits(patience=seconds)
