"""The decorator itself: that its faults are what they say, and come from the seed alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hilosync.errors import LogUnavailable
from hilosync.log import Delivery, Faults, Log, Order, open_log

names = itertools.count()


def new_log() -> Log:
    return open_log(f"memory:faults {next(names)}", create=True)


def test_a_call_that_failed_before_has_done_nothing():
    log = new_log()
    faulty = Faults(1, fail_before=1.0).wrap(log)
    for call in (
        lambda: faulty.steps.append(0, b"x"),
        lambda: faulty.steps.read(0),
        lambda: faulty.blobs.put(b"x"),
        lambda: faulty.mailbox.offer([Order(1, 0)]),
        lambda: faulty.mailbox.take("w"),
        lambda: faulty.mailbox.post("w", b"x"),
    ):
        with pytest.raises(LogUnavailable, match=r"injected: .* did not reach the log"):
            call()
    assert log.steps.head() == -1
    assert log.mailbox.take("w") is None
    assert log.mailbox.notices() == {}


def test_a_write_with_a_lost_acknowledgement_has_happened():
    log = new_log()
    faults = Faults(1, lose_acknowledgement=1.0)
    faulty = faults.wrap(log)
    with pytest.raises(LogUnavailable, match="injected: the acknowledgement of append was lost"):
        faulty.steps.append(0, b"x")
    with pytest.raises(LogUnavailable, match="injected: the acknowledgement of deliver was lost"):
        faulty.mailbox.deliver(Delivery("w", Order(1, 0), b"x"))
    assert log.steps.read(0) == faulty.steps.read(0) == b"x"
    assert [delivery.content for delivery in log.mailbox.collect(1)] == [b"x"]
    assert faults.injected["lost acknowledgement"] == 2


def test_a_duplicated_write_happens_twice():
    calls = []

    class Steps:
        def append(self, version: int, record: bytes) -> None:
            calls.append((version, record))

    log = new_log()
    faulty = Faults(1, duplicate=1.0).wrap(replace(log, steps=Steps()))
    faulty.steps.append(0, b"x")
    assert calls == [(0, b"x"), (0, b"x")]


def test_the_delay_is_told_every_operation():
    operations = []
    faulty = Faults(1, delay=operations.append).wrap(new_log())
    faulty.steps.append(0, b"x")
    faulty.steps.read(0)
    faulty.mailbox.collect(1)
    assert operations == ["append", "read", "collect"]


def test_the_same_seed_gives_the_same_faults_and_another_gives_others():
    def history(seed: int) -> list[str]:
        faulty = Faults(seed, fail_before=0.3, lose_acknowledgement=0.3).wrap(new_log())
        outcomes = []
        for _ in range(50):
            try:
                faulty.steps.append(0, b"x")
                outcomes.append("done")
            except LogUnavailable as error:
                outcomes.append(str(error))
        return outcomes

    assert history(5) == history(5) != history(6)
    assert len(set(history(5))) == 3
