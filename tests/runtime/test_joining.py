"""A worker joins by a ticket: the run that it was given, or none."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import hilosync as hilo
from hilosync.errors import BadTicket, ConfigurationError, LogNotFound, PlanMismatch, RunMismatch
from hilosync.log import absolute_address, open_log
from hilosync.runtime.joining import check_ticket, open_run, ticket_of
from hilosync.wire import decode_ticket, encode_ticket


@pytest.fixture
def learner(model, memory, backward) -> hilo.Learner:
    learner = hilo.Learner(model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Spar(budget=700), log=memory)
    backward(model)
    learner.step()
    return learner


def test_a_worker_joins_by_the_ticket_its_file_or_the_address(learner, memory, tmp_path):
    ticket = ticket_of(learner.log, learner.run)
    text = encode_ticket(ticket)
    path = tmp_path / "demo.ticket"
    path.write_text(text + "\n")
    for where in (text, f" {text}\n", str(path), ticket, memory, open_log(memory)):
        replica = hilo.Replica.join(where)
        assert replica.advance() == 1 and replica.digest == learner.digest


def test_a_relative_address_becomes_absolute(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learner = hilo.Learner(model, optimizer=hilo.AdamW(), compressor=hilo.Dense(), log="runs/demo")
    text = encode_ticket(ticket_of(learner.log, learner.run))
    assert decode_ticket(text).url == f"file:{tmp_path}/runs/demo"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert hilo.Replica.join(text).run.genesis.run == learner.run.genesis.run


def test_the_log_behind_a_view_becomes_absolute_too(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for view in ("http://near:8080", "https://cdn/runs"):
        assert absolute_address(f"{view}+file:runs/a") == f"{view}+file:{tmp_path}/runs/a"
        assert absolute_address(f"{view}+s3://bucket/run") == f"{view}+s3://bucket/run"
        assert absolute_address(view) == view


@pytest.mark.parametrize(
    ("field", "size", "named", "error"),
    [
        ("run", 16, "run", RunMismatch),
        ("plan", 16, "plan", PlanMismatch),
        ("configuration", 16, "configuration", RunMismatch),
        ("key", 32, "signing key", RunMismatch),
        ("origin", 32, "genesis", RunMismatch),
    ],
)
def test_another_run_is_refused_with_both_values(learner, field, size, named, error):
    ticket = ticket_of(learner.log, learner.run)
    mine = (getattr(ticket, field) or b"").hex() or "none"
    wrong = encode_ticket(replace(ticket, **{field: bytes([7]) * size}))
    with pytest.raises(error, match=f"holds {named} {mine}, the join ticket is for {'07' * size}"):
        hilo.Replica.join(wrong)


def test_a_run_begun_anew_at_the_same_address_is_refused(learner, another_model, memory):
    ticket = ticket_of(learner.log, learner.run)
    other = hilo.Learner(another_model, optimizer=hilo.Lion(), compressor=hilo.Dense(), log=f"{memory}-other")
    with pytest.raises(RunMismatch, match=f"holds run {other.run.genesis.run}, .* for {learner.run.genesis.run}"):
        check_ticket(ticket, other.log, other.run)


def test_a_ticket_of_a_run_that_is_gone_or_has_not_begun_says_so(learner, tmp_path):
    ticket = replace(ticket_of(learner.log, learner.run), url=f"file:{tmp_path}/nothing")
    with pytest.raises(LogNotFound, match="no run at file:"):
        open_run(encode_ticket(ticket))


def test_a_file_that_holds_no_ticket_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    for content, message in (
        (b"hello", "not a join ticket"),
        (b"", "not a join ticket"),
        (b"hilo1.abc", "mistyped or incomplete"),
        (b"x" * 5000, "expected a join ticket of at most 4096"),
        (b"\xff\xfe", "cannot read a join ticket"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=message) as caught:
            open_run(str(path))
        assert isinstance(caught.value, BadTicket) or content == b"\xff\xfe"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_ticket_file_that_may_not_be_read_says_so(tmp_path):
    path = tmp_path / "demo.ticket"
    path.write_text("hilo1.abc")
    path.chmod(0)
    with pytest.raises(ConfigurationError, match="cannot read a join ticket"):
        open_run(str(path))
