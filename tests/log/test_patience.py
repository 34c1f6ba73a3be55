"""A log that is out of reach for a while is waited for; a log that refuses is not."""

from __future__ import annotations

import logging
import math
import threading

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from hilosync.errors import ConfigurationError, LogUnavailable, LogUnreachable
from hilosync.log import Delivery, Faults, Order, Patience, Polling, open_log
from hilosync.log.cloud import CloudObjects
from hilosync.log.mailbox import ObjectMailbox
from hilosync.log.objects import Objects


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Outage:
    """A call that meets no answer until a certain time, and then counts."""

    def __init__(self, time: Time, until: float, attempt: float = 0.5):
        self.answered = 0
        self._time = time
        self._until = until
        self._attempt = attempt

    def __call__(self) -> int:
        self._time.sleep(self._attempt)
        if self._time.now < self._until:
            raise LogUnreachable("nobody answers")
        self.answered += 1
        return self.answered


def test_a_call_is_made_again_until_the_log_answers(caplog):
    time = Time()
    call = Outage(time, until=130.0)
    with caplog.at_level(logging.WARNING, "hilosync"):
        assert Patience(60.0, time, time.sleep).call(call) == 1
    assert 130.0 <= time.now < 133.0
    assert [record.getMessage() for record in caplog.records] == [
        "nobody answers; waiting for the log, at most 60 s",
        f"the log answers again after {time.now - 100.0:.0f} s",
    ]


def test_patience_ends_and_what_follows_does_not_wait_again():
    time = Time()
    patience = Patience(10.0, time, time.sleep)
    call = Outage(time, until=120.0)
    with pytest.raises(LogUnreachable, match=r"nobody answers; given up after 1\d s"):
        patience.call(call)
    assert 110.0 <= time.now < 113.0
    ended = time.now
    with pytest.raises(LogUnreachable):
        patience.call(call)
    assert time.now == ended + 0.5
    time.now = 121.0
    assert patience.call(call) == 1
    assert patience.call(Outage(time, until=time.now + 5.0)) == 1


def test_what_the_log_refuses_is_an_error_at_once():
    def refuse():
        raise LogUnavailable("no space left")

    time = Time()
    with pytest.raises(LogUnavailable, match=r"^no space left$"):
        Patience(60.0, time, time.sleep).call(refuse)
    assert time.now == 100.0


def test_the_clock_leaves_out_what_the_log_has_cost():
    time = Time()
    patience = Patience(60.0, time, time.sleep)
    begun = patience.clock()
    patience.call(lambda: time.sleep(4.0))
    patience.call(lambda: time.sleep(22.0), wait=20.0)
    assert patience.clock() - begun == 26.0, "whatever is prompt counts"
    patience.call(Outage(time, until=time.now + 40.0))
    assert patience.clock() - begun == 26.0 + 5.0
    time.sleep(3.0)
    assert patience.clock() - begun == 26.0 + 5.0 + 3.0


def test_the_clock_stands_still_while_any_call_is_overdue():
    time = Time()
    patience = Patience(60.0, time, time.sleep)
    entered, released = threading.Event(), threading.Event()

    def block():
        entered.set()
        assert released.wait(60.0)

    thread = threading.Thread(target=patience.call, args=(block,))
    thread.start()
    assert entered.wait(60.0)
    begun = patience.clock()
    time.sleep(4.0)
    assert patience.clock() - begun == 4.0
    patience.call(lambda: time.sleep(7.0))  # the other one is overdue after 1 s of it
    assert patience.clock() - begun == 5.0
    time.sleep(50.0)
    released.set()
    thread.join(60.0)
    assert patience.clock() - begun == 5.0


@pytest.mark.parametrize("limit", [-1.0, math.inf, math.nan])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(ConfigurationError, match="outage: expected a finite number of seconds"):
        Patience(limit)


def test_a_log_whose_calls_fail_is_as_good_as_one_whose_calls_do_not(seed):
    time = Time()
    faults = Faults(seed, fail_before=0.3, lose_acknowledgement=0.3, duplicate=0.1)
    patience = Patience(1e6, time, time.sleep)
    log = patience.wrap(faults.wrap(open_log(f"memory:patient-{seed}", create=True)))
    for version in range(20):
        log.steps.append(version, b"%d" % version)
        log.mailbox.offer([Order(version, 0)])
        assert log.mailbox.take("w", wait=0.0) == Order(version, 0)
        log.mailbox.deliver(Delivery("w", Order(version, 0), b"answer"))
        assert [delivery.content for delivery in log.mailbox.collect(version)] == [b"answer"]
    assert [log.steps.read(version, wait=0.0) for version in range(21)] == [b"%d" % v for v in range(20)] + [None]
    assert log.blobs.get(log.blobs.put(b"blob")) == b"blob"
    log.snapshots.publish(3, b"manifest")
    assert log.snapshots.versions() == [3]
    assert sum(faults.injected.values()) > 50


class Broken(Objects):
    """Objects that are cut off at a chosen call, before it or after it."""

    def __init__(self):
        super().__init__(MemoryStore(), "test:")
        self.fails_after_create = 0
        self.fails_at_get = 0

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        created = super().create(path, content, durable)
        if self.fails_after_create:
            self.fails_after_create -= 1
            raise LogUnreachable("the answer was lost")
        return created

    def get(self, path: str) -> bytes | None:
        if self.fails_at_get:
            self.fails_at_get -= 1
            if self.fails_at_get == 0:
                raise LogUnreachable("no answer")
        return super().get(path)


def test_an_order_that_was_claimed_without_an_answer_is_handed_out_the_next_time():
    objects = Broken()
    mailbox = ObjectMailbox(objects, Polling())
    mailbox.offer([Order(1, 0), Order(1, 1)])
    objects.fails_after_create = 1
    with pytest.raises(LogUnreachable):
        mailbox.take("w")
    assert mailbox.take("another") == Order(1, 1), "what another may hold is not handed out"
    assert mailbox.take("w") == Order(1, 0)
    assert mailbox.take("w") is None
    assert set(mailbox.claims(1).values()) == {"w", "another"}


def test_a_collection_that_breaks_off_loses_nothing():
    objects = Broken()
    mailbox = ObjectMailbox(objects, Polling())
    for batch in range(3):
        mailbox.deliver(Delivery("w", Order(1, batch), b"%d" % batch))
    objects.fails_at_get = 3
    with pytest.raises(LogUnreachable):
        mailbox.collect(1)
    assert [delivery.content for delivery in mailbox.collect(1)] == [b"0", b"1", b"2"]
    assert mailbox.collect(1) == []


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", True),
        ("Error performing GET http://10.0.0.1/b/o in 10s, after 3 retries - HTTP error: error sending request", True),
        ("HTTP error: request or response body error: operation timed out", True),
        ("Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>", False),
        ("Error performing PUT http://169.254.169.254/latest/api/token - error sending request", False),
        ("no such thing", False),
    ],
)
def test_of_a_bucket_only_what_may_pass_is_waited_for(said, passes):
    objects = CloudObjects(MemoryStore(), "s3://bucket/run")
    with pytest.raises(LogUnavailable) as raised, objects._explained("read steps/1"):
        raise GenericError(said)
    assert isinstance(raised.value, LogUnreachable) == passes
