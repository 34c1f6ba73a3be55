"""What only NATS can do: servers that crash, messages that are too long, credentials, leaf nodes with mirrors."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats_peers import learn, record, work
from racers import LIMIT, PROCESSES, ROUNDS, race_to_append

from hilosync.errors import Fenced, LogNotFound, LogUnavailable, MalformedRecord, Truncated
from hilosync.log import Delivery, Order, open_log
from hilosync.log.nats.address import parse_nats_address
from hilosync.log.nats.connection import Connection
from hilosync.log.nats.stream import Stream

pytestmark = pytest.mark.nats


def persist(call: Callable[[], Any]) -> Any:
    """Repeats a call of a log with a short limit, which a busy machine may exceed."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return call()
        except LogUnavailable:
            assert time.monotonic() < deadline


def stream_of(url: str, kind: str) -> Stream:
    """A stream as an administrator sees it."""
    scheme, _, rest = url.partition(":")
    address = parse_nats_address(scheme, rest)
    return Stream(Connection(address), f"hilo-{address.run}-{kind}")


def remove_streams(url: str) -> None:
    for kind in ("steps", "blobs", "notes"):
        assert stream_of(url, kind)._call("DELETE", {})["success"]


def test_a_server_killed_in_the_middle_of_a_run_loses_nothing_and_repeats_nothing(starts_nats):
    server = starts_nats()
    url, versions = server.url(), 24
    reached, applied = PROCESSES.Queue(), PROCESSES.Queue()
    peers = [
        PROCESSES.Process(target=learn, args=(url, versions, reached)),
        PROCESSES.Process(target=work, args=(url, versions, applied)),
    ]
    for peer in peers:
        peer.start()
    for version in range(versions):
        assert reached.get(timeout=LIMIT) == version
        if version in (5, 15):
            server.kill()
            time.sleep(0.2)
            server.start()
    for peer in peers:
        peer.join(LIMIT)
        assert peer.exitcode == 0
    assert [applied.get(timeout=LIMIT) for _ in range(versions)] == [(version, True) for version in range(versions)]
    assert open_log(url).steps.head() == versions - 1


def test_calls_that_are_under_way_when_the_server_dies_end_well(starts_nats):
    server = starts_nats()
    url = server.url()
    learner, others = open_log(url, create=True), [open_log(url, create=True) for _ in range(3)]
    learner.steps.append(0, record(0))
    found = [[] for _ in others]
    readers = [
        threading.Thread(target=lambda log=log, mine=mine: mine.extend(log.steps.read(v, wait=LIMIT) for v in range(6)))
        for log, mine in zip(others, found, strict=True)
    ]
    for reader in readers:
        reader.start()
    for version in range(1, 6):
        server.kill()
        restart = threading.Timer(0.1, server.start)
        restart.start()
        learner.steps.append(version, record(version))
        restart.join(LIMIT)
    for reader in readers:
        reader.join(LIMIT)
    assert found == [[record(version) for version in range(6)]] * 3


@pytest.mark.slow
def test_of_four_racing_processes_exactly_one_writes_each_version(nats_server):
    url = nats_server.url()
    start, results = PROCESSES.Barrier(4), PROCESSES.Queue()
    racers = [PROCESSES.Process(target=race_to_append, args=(url, racer, start, results)) for racer in range(4)]
    for racer in racers:
        racer.start()
    won = dict(results.get(timeout=LIMIT) for _ in racers)
    for racer in racers:
        racer.join(LIMIT)
    assert sorted(version for versions in won.values() for version in versions) == list(range(ROUNDS))
    steps = open_log(url).steps
    for racer, versions in won.items():
        assert all(steps.read(version) == bytes([racer]) * 10_000 for version in versions)


def test_what_is_longer_than_a_message_is_whole_or_not_there(starts_nats, seed):
    server = starts_nats(changes=[("max_payload: 8MB", "max_payload: 64KB")])
    url = server.url()
    log, reader = open_log(url, create=True), open_log(url, create=True)
    long = [random.Random(seed + index).randbytes(200_000) for index in range(4)]
    for version in range(3):
        log.steps.append(version, long[version])
        log.steps.append(version, long[version])
    with pytest.raises(Fenced):
        reader.steps.append(2, long[3])
    assert [reader.steps.read(version) for version in range(4)] == [*long[:3], None]
    assert reader.blobs.get(log.blobs.put(long[3])) == long[3]
    reader.mailbox.deliver(Delivery("w", Order(1, 0), long[0]))
    reader.mailbox.deliver(Delivery("x", Order(1, 0), long[1]))
    assert log.mailbox.collect(1) == [Delivery("w", Order(1, 0), long[0])]


def test_parts_go_with_what_they_belong_to(starts_nats, seed):
    server = starts_nats(changes=[("max_payload: 8MB", "max_payload: 64KB")])
    url = server.url()
    log = open_log(url, create=True)
    content = random.Random(seed).randbytes(200_000)
    for version in range(4):
        log.steps.append(version, content + bytes([version]))
    log.blobs.remove(log.blobs.put(content))
    log.mailbox.deliver(Delivery("w", Order(1, 0), content))
    log.mailbox.forget(2)
    log.steps.forget(3)
    blobs, notes = stream_of(url, "blobs"), stream_of(url, "notes")
    left = {subject.split(".")[3] for subject in blobs.subjects("hilo.>")}
    assert left == {"0", "3"}
    assert notes.subjects("hilo.>") == []
    assert [log.steps.read(version) for version in (0, 3)] == [content + b"\0", content + b"\3"]
    with pytest.raises(Truncated):
        log.steps.read(2)


def test_a_part_that_is_lost_or_damaged_is_no_content(starts_nats, seed):
    server = starts_nats(changes=[("max_payload: 8MB", "max_payload: 64KB")])
    url = server.url()
    log = open_log(url, create=True)
    content = random.Random(seed).randbytes(150_000)
    key, blobs = log.blobs.put(content), stream_of(url, "blobs")
    prefix = f"hilo.{url.rpartition('/')[2]}.blobs.{key}"
    blobs.publish(f"{prefix}.{key}-1", b"other bytes", {})
    with pytest.raises(MalformedRecord, match="damaged parts"):
        log.blobs.get(key)
    blobs.purge(f"{prefix}.{key}-1")
    with pytest.raises(LogNotFound, match="no blob"):
        log.blobs.get(key)
    for header in ("", "1", "9999999 1 " + key, f"2 {1 << 33} {key}"):
        blobs.publish(f"{prefix}.whole", b"", {"Hilo-Parts": header or "none"})
        with pytest.raises(MalformedRecord, match="expected a count"):
            log.blobs.get(key)


def test_a_log_that_was_removed_or_replaced_under_its_learner_is_not_continued(nats_server):
    url = nats_server.url()
    log = open_log(url, create=True)
    log.steps.append(0, b"genesis")
    log.steps.append(1, b"one")
    remove_streams(url)
    with pytest.raises(LogUnavailable, match="the stream has been removed: begin a new run"):
        log.steps.append(2, b"two")
    other = open_log(url, create=True).steps
    other.append(0, b"another genesis")
    with pytest.raises(LogUnavailable, match="version 1 is missing; this learner appended it, so the log was removed"):
        log.steps.append(2, b"two")
    other.append(1, b"another one")
    with pytest.raises(Fenced, match="another learner has written version 1"):
        log.steps.append(2, b"two")
    assert other.head() == 1


def test_a_learner_goes_on_when_the_restarted_server_has_forgotten_its_last_id(starts_nats):
    server = starts_nats()
    url = server.url()
    log = open_log(url, create=True)
    log.steps.append(0, b"genesis")
    # What the server knows of ids covers the stream's duplicate window only.
    steps = stream_of(url, "steps")
    configuration = steps.info()["config"] | {"duplicate_window": 100_000_000}
    assert "error" not in steps._call("UPDATE", configuration)
    log.steps.append(1, b"one")
    time.sleep(0.3)
    server.kill()
    server.start()
    log.steps.append(1, b"one")
    log.steps.append(2, b"two")
    assert [log.steps.read(version) for version in range(4)] == [b"genesis", b"one", b"two", None]


def test_a_server_that_is_down_is_an_error_within_the_limit(starts_nats):
    server = starts_nats()
    url = server.url("?timeout=0.5")
    log = persist(lambda: open_log(url, create=True))
    persist(lambda: log.steps.append(0, b"genesis"))
    server.kill()
    place = f"nats://127.0.0.1:{server.port}/"
    for call, doing in (
        (lambda: log.steps.append(1, b"one"), "publish to hilo"),
        (lambda: log.steps.read(0, wait=0.1), "read"),
        (lambda: log.blobs.put(b"x"), "publish to hilo"),
        (lambda: log.mailbox.take("w"), "info"),
    ):
        with pytest.raises(LogUnavailable, match=rf"{place}.*: cannot {doing}.* within 0.5 s; check the server"):
            call()
    with pytest.raises(LogUnavailable, match=rf"{place}.*: cannot connect: .*; start the server, or check the address"):
        open_log(url)
    server.start()
    persist(lambda: log.steps.append(1, b"one"))


def test_a_server_that_falls_silent_is_given_up_within_the_limit_and_asked_anew(starts_nats):
    server = starts_nats()
    url = server.url("?timeout=0.5")
    log = persist(lambda: open_log(url, create=True))
    persist(lambda: log.steps.append(0, b"genesis"))
    for version in (1, 2):
        server.process.send_signal(signal.SIGSTOP)
        for call in (lambda version=version: log.steps.append(version, b"x"), lambda: log.mailbox.take("w")):
            with pytest.raises(LogUnavailable, match=r"no answer within 0.5 s; check the server and the network"):
                call()
        server.process.send_signal(signal.SIGCONT)
        # The server may have the record from the first time; a log that takes only one cannot tell.
        log.steps.append(version, b"x")
        assert log.steps.head() == version
        assert log.mailbox.take("w") is None


def test_a_question_that_is_met_by_silence_is_asked_again(nats_server):
    import nats

    asked = []

    async def answer(message) -> None:
        asked.append(message.data)
        if len(asked) > 1:
            await message.respond(b"yes")

    async def serve() -> bytes:
        client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
        await client.subscribe("deaf.at.first", cb=answer)
        await client.flush()
        found = await asyncio.to_thread(connection.ask, "ask", "deaf.at.first", b"well?", patience=0.2)
        await client.close()
        return found.data

    connection = Connection(parse_nats_address("nats", nats_server.url().partition(":")[2]))
    assert asyncio.run(serve()) == b"yes"
    assert set(asked) == {b"well?"}


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system's TCP cannot be told to give up")
def test_a_connection_notices_when_the_network_has_been_cut(nats_server):
    connection = Connection(parse_nats_address("nats", nats_server.url().partition(":")[2]))
    found = []
    for link in sockets_to(nats_server.port):
        with link:
            limit = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            found.append((limit, link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)))
    assert (20_000, 1) in found
    assert connection.server


def sockets_to(port: int) -> list[socket.socket]:
    """This process's connections to a local port, each as a socket of its own."""
    found = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            link = socket.socket(fileno=os.dup(int(descriptor.name)))
        except OSError:
            continue  # no socket
        if link.family == socket.AF_INET and link.type == socket.SOCK_STREAM:
            with suppress(OSError):
                if link.getpeername()[1] == port:
                    found.append(link)
                    continue
        link.close()
    return found


def test_a_server_without_jetstream_is_told_apart(starts_nats):
    server = starts_nats(changes=[("jetstream {", "jetstream {\n    enabled: false")])
    with pytest.raises(LogUnavailable, match="the server has no JetStream: set `jetstream`"):
        open_log(server.url(), create=True)


def test_a_run_that_has_not_begun_is_not_found_and_nothing_is_made(nats_server):
    url = nats_server.url()
    with pytest.raises(LogNotFound, match=r"no run at nats://.*start its learner"):
        open_log(url)
    assert stream_of(url, "steps").info() is None
    open_log(url, create=True)
    with pytest.raises(LogNotFound, match="the log is empty"):
        open_log(url)


def test_what_may_lose_records_is_said(nats_server, starts_nats, caplog):
    url = nats_server.url()
    with caplog.at_level(logging.WARNING, "hilosync"):
        open_log(url, create=True)
        assert caplog.messages == []
        url = nats_server.url()
        run = url.rpartition("/")[2]
        stream_of(url, "steps").make(
            {
                "subjects": [f"hilo.{run}.genesis", f"hilo.{run}.steps"],
                "storage": "memory",
                "max_msgs": 100,
                "allow_direct": True,
            }
        )
        open_log(url, create=True)
        assert len(caplog.messages) == 2
        assert "it is kept in memory" in caplog.messages[0]
        assert "it has limits (max_msgs)" in caplog.messages[1]
        caplog.clear()
        open_log(starts_nats(changes=[("max_payload: 8MB", "")]).url(), create=True)
        assert len(caplog.messages) == 1
        assert "max_payload is 1048576 bytes" in caplog.messages[0]
