"""What the relay's tests are made of: a chain of records, relay processes, and an origin that can be made to fail."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from hilosync.wire import (
    Genesis,
    PlanLayout,
    Record,
    Setup,
    TensorLayout,
    encode_genesis,
    encode_record,
    record_hash,
)

LIMIT = 60.0
SENT = 100_000
"""Bytes of an object that the origin sends before it stops at its gate, or breaks off."""


def chain(rng: np.random.Generator, sizes: list[int]) -> list[bytes]:
    """A genesis, and a record after the other with payloads of these sizes."""
    genesis = Genesis(
        run=rng.bytes(16).hex(),
        seed=1,
        created_by="test",
        plan=PlanLayout(blocks=(TensorLayout(name="a", rows=4, columns=4),)),
        optimizer=Setup("adamw"),
        compressor=Setup("dense"),
    )
    frames = [encode_genesis(genesis)]
    for version, size in enumerate(sizes, 1):
        record = Record(
            run=genesis.run_id,
            epoch=1,
            version=version,
            previous=record_hash(frames[-1]),
            plan=bytes(16),
            configuration=bytes(16),
            scalars=np.zeros((1, 2), np.float32),
            tags=np.zeros(1, np.uint16),
            payload=rng.bytes(size),
            digest=bytes(32),
        )
        frames.append(encode_record(record))
    return frames


def step(version: int) -> str:
    return f"steps/{version:020d}"


@contextmanager
def relay(upstream: str, *options: str) -> Iterator[str]:
    """A relay process; its address."""
    command = [sys.executable, "-m", "hilosync", "relay", upstream, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        line = process.stderr.readline()
        timer.cancel()
        assert f"relay: serves {upstream} on http" in line, line + process.stderr.read()
        yield line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def health(url: str) -> dict:
    with urllib.request.urlopen(f"{url}/healthz", timeout=LIMIT) as response:
        return json.load(response)


class Origin:
    """An HTTP server of objects in this process.

    Attributes:
        objects: what it serves, by name.
        asked: how often each name has been asked for with success, by GET.
        ranges: the ranges that were asked for.
        damage: names whose next answer has one byte flipped.
        breaks: names whose next answer breaks off.
        gates: names whose answers stop half-way until the event is set.
    """

    def __init__(self, port: int = 0):
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.damage: set[str] = set()
        self.breaks: set[str] = set()
        self.gates: dict[str, threading.Event] = {}
        self._start(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT)

    def restart(self) -> None:
        self._start(self.port)


def _handler(origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # One request per connection: a server that is stopped then leaves none of them served.
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            content = origin.objects.get(path)
            if content is None:
                self.send_error(404)
                return
            origin.asked[path] += 1
            offset, end = 0, len(content)
            wanted = self.headers.get("Range")
            if wanted is not None and self.headers.get("If-Range") == '"one"':
                origin.ranges.append(wanted)
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                offset, end = int(first), min(int(last) + 1, end) if last else end
            if path in origin.damage:
                origin.damage.discard(path)
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(206 if offset else 200)
            self.send_header("Content-Length", str(end - offset))
            self.send_header("ETag", '"one"')
            if offset:
                self.send_header("Content-Range", f"bytes {offset}-{end - 1}/{len(content)}")
            self.end_headers()
            content = content[:end]
            self.wfile.write(content[offset : offset + SENT])
            self.wfile.flush()
            if path in origin.breaks:
                origin.breaks.discard(path)
                return
            if path in origin.gates:
                origin.gates[path].wait(LIMIT)
            self.wfile.write(content[offset + SENT :])

        def do_HEAD(self) -> None:
            content = origin.objects.get(self.path.lstrip("/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
