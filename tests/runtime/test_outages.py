"""An outage of the log is not the silence of the other side: neither gives the other up for it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import hilosync as hilo
from hilosync.errors import LogUnreachable, PeerSilent
from hilosync.log import Delivery, Log, Order, Patience, open_log
from hilosync.runtime import Dispatcher, Limits, Notice, Replica, Worker

LIMITS = Limits(silence=5.0, lease=600.0, patience=60.0)
OUTAGE = 100.0


class Interrupted:
    """A mailbox whose third `call` is preceded by an outage; some calls later the other side is heard again."""

    def __init__(self, mailbox, call: str, heard_again):
        self._mailbox = mailbox
        self._call = call
        self._heard_again = heard_again
        self._calls = 0
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __getattr__(self, name):
        return self._counted if name == self._call else getattr(self._mailbox, name)

    def _counted(self, *given, **named):
        self._calls += 1
        self.now += 0.1
        if self._calls == 3:
            self.now += OUTAGE
            raise LogUnreachable("nobody answers")
        if self._calls == 6:
            self._heard_again(self._mailbox)
        assert self._calls < 100
        return getattr(self._mailbox, self._call)(*given, **named)


def post(mailbox, sender: str, beat: int, state: str = "serving") -> None:
    notice = Notice(sender=sender, incarnation=sender, beat=beat, state=state)
    mailbox.post(sender, msgspec.json.encode(notice))


def interrupted(log: Log, call: str, heard_again, patient: bool):
    """The log behind an outage, and the clock of a process that leaves it out or does not."""
    mailbox = Interrupted(log.mailbox, call, heard_again)
    patience = Patience(1000.0, mailbox.clock, mailbox.sleep)
    return patience.wrap(replace(log, mailbox=mailbox)), patience.clock if patient else mailbox.clock


def work_through_an_outage(log: Log, patient: bool) -> int:
    post(log.mailbox, "learner", beat=0)
    seen, clock = interrupted(log, "take", lambda mailbox: post(mailbox, "learner", 1, "finished"), patient)
    return Worker(Replica.join(seen), "w", lambda replica, order: b"", LIMITS, clock).run()


def collect_through_an_outage(log: Log, patient: bool) -> list[Delivery]:
    def answer(mailbox) -> None:
        post(mailbox, "w", beat=1)
        mailbox.deliver(Delivery("w", mailbox.take("w"), b"answer"))

    post(log.mailbox, "w", beat=0)
    seen, clock = interrupted(log, "collect", answer, patient)
    return Dispatcher(seen.mailbox, limits=LIMITS, clock=clock).collect(0, lambda delivery: delivery)


def test_a_worker_does_not_take_an_outage_for_the_death_of_its_learner(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    assert work_through_an_outage(learner.log, patient=True) == 0


def test_a_learner_does_not_take_an_outage_for_the_death_of_its_workers(memory):
    log = open_log(memory, create=True)
    assert collect_through_an_outage(log, patient=True) == [Delivery("w", Order(0, 0), b"answer")]


def test_by_a_clock_that_does_not_leave_it_out_both_would(model, memory):
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Spar(budget=700), log=memory)
    with pytest.raises(PeerSilent, match="nothing heard from the learner for 100 s"):
        work_through_an_outage(learner.log, patient=False)
    with pytest.raises(PeerSilent, match="no worker has been heard for 60 s"):
        collect_through_an_outage(learner.log, patient=False)
