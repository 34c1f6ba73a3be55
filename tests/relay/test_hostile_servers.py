"""Servers that send what no server should: sizes beyond reason, and refusals without end."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from relay_parts import LIMIT, step

from hilosync.errors import LogUnavailable, LogUnreachable
from hilosync.log.http import HttpObjects
from hilosync.relay.upstream import HttpUpstream

ENDLESS = 32 << 20
"""Bytes of a body that is sent to whoever goes on reading it."""

TAKEN = 12 << 20
"""Bytes that can go into the buffers between two sockets without anybody's reading them."""


class Server:
    """Answers every request on its own thread by `answer(path, connection)`; it closes every connection after that.

    Attributes:
        sent: bytes of bodies that were taken.
    """

    def __init__(self, answer: Callable[[Server, str, socket.socket], None]):
        self.sent = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, suppress(OSError):
                request = b""
                while b"\r\n\r\n" not in request:
                    if not (received := connection.recv(65536)):
                        break
                    request += received
                if request == b"end\r\n\r\n":
                    return
                if request:
                    self._answer(self, request.decode(), connection)

    def stop(self) -> None:
        with socket.create_connection(self._listener.getsockname()) as connection:
            connection.sendall(b"end\r\n\r\n")
            self._thread.join(LIMIT)
        self._listener.close()

    def send_without_end(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        while self.sent < ENDLESS:
            connection.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")
            self.sent += 65536
        connection.sendall(b"0\r\n\r\n")


@contextmanager
def serving(answer) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.stop()


def read_as_a_worker(url: str) -> bytes | None:
    return HttpObjects(url).get(step(1))


def read_as_a_relay(url: str) -> bytes:
    async def within() -> bytes:
        upstream = HttpUpstream(url)
        try:
            async with asyncio.timeout(LIMIT), upstream.open(step(1)) as download:
                assert download is not None
                return b"".join([chunk async for chunk in download.chunks])
        finally:
            await upstream.close()

    return asyncio.run(within())


READERS = pytest.mark.parametrize("read", [read_as_a_worker, read_as_a_relay])


@READERS
def test_a_size_beyond_reason_is_refused_before_anything_is_made_of_it(read):
    def answer(server: Server, request: str, connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-99/99999999999999\r\nContent-Length: 100\r\n\r\n"
            + bytes(100)
        )

    with serving(answer) as server, pytest.raises(LogUnavailable, match="99999999999999 bytes: expected at most"):
        read(server.url)


@READERS
def test_of_a_refusal_without_end_hardly_anything_is_read(read):
    def answer(server: Server, request: str, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 503 No\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        server.send_without_end(connection)

    with serving(answer) as server:
        with pytest.raises(LogUnavailable, match="the server said 503; "):
            read(server.url)
        assert server.sent < TAKEN


@READERS
def test_a_redirection_is_followed_without_its_body(read):
    def answer(server: Server, request: str, connection: socket.socket) -> None:
        if "GET /elsewhere" in request:
            connection.sendall(b"HTTP/1.1 200 Fine\r\nContent-Length: 4\r\n\r\nhere")
            return
        connection.sendall(b"HTTP/1.1 302 There\r\nLocation: /elsewhere\r\nTransfer-Encoding: chunked\r\n\r\n")
        server.send_without_end(connection)

    with serving(answer) as server:
        assert read(server.url) == b"here"
        assert server.sent < TAKEN


@READERS
def test_why_a_relay_refuses_is_told(read):
    def answer(server: Server, request: str, connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 503 No\r\nContent-Type: text/plain\r\nContent-Length: 20\r\n\r\nno room\x1b for it\nmore"
        )

    with serving(answer) as server, pytest.raises(LogUnavailable, match=re.escape("said 503 (no room for it); ")):
        read(server.url)


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(monkeypatch):
    monkeypatch.setattr("hilosync.log.http._TRANSFER", 0.3)

    def answer(server: Server, request: str, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Fine\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(50):
            connection.sendall(b"x")
            threading.Event().wait(0.02)
        connection.sendall(bytes(950))

    with serving(answer) as server, pytest.raises(LogUnreachable, match="not all of it has come within"):
        read_as_a_worker(server.url)
