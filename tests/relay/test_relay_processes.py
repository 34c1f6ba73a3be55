"""Relays as processes: trees of them, over files and over an origin that damages, breaks off and dies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx2
import numpy as np
import pytest
from blake3 import blake3
from relay_parts import LIMIT, SENT, Origin, chain, health, relay, step

from hilosync.bench.nats_server import free_port
from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log import Order, open_log
from hilosync.log.pieces import FIRST_PIECE
from hilosync.relay import Cache, open_upstream
from hilosync.relay.server import _listener, application
from hilosync.wire import Manifest, encode_manifest


@pytest.fixture(scope="module")
def origin():
    server = Origin()
    server.objects[step(0)] = chain(np.random.default_rng(0), [])[0]
    yield server
    server.stop()


@pytest.fixture(scope="module")
def relayed(origin):
    """A relay of the origin."""
    with relay(origin.url) as url:
        yield url


def test_two_relays_and_many_readers_take_each_object_from_the_log_once(tmp_path, rng):
    log = open_log(f"file:{tmp_path}/run", create=True)
    frames = chain(rng, [2_000_000, 10, 300_000])
    for version, frame in enumerate(frames):
        log.steps.append(version, frame)
    keys = [log.blobs.put(rng.bytes(1_000_000)) for _ in range(3)]
    manifest = encode_manifest(
        Manifest(
            run=bytes(16), plan=bytes(16), configuration=bytes(16), version=2, digest=bytes(32), elements=4,
            chunks=tuple(keys),
        )
    )  # fmt: skip
    log.snapshots.publish(2, manifest)
    with relay(f"file:{tmp_path}/run") as first, relay(first) as second:

        def read(_: int) -> bool:
            reader = open_log(second)
            return (
                [reader.steps.read(version) for version in range(4)] == frames
                and [reader.blobs.get(key) for key in keys] == [log.blobs.get(key) for key in keys]
                and reader.snapshots.versions() == [2]
                and reader.snapshots.read(2) == manifest
                and reader.steps.head() == 3
            )

        with ThreadPoolExecutor(8) as readers:
            assert all(readers.map(read, range(8)))
        served = health(first)["served"]
        assert (served["steps"], served["blobs"]) == (4, 3)
        assert health(second)["served"]["steps"] == 4 * 8
        metrics = httpx2.get(f"{second}/metrics", timeout=LIMIT).text.splitlines()
        assert "hilo_relay_dropped_total 0" in metrics
        assert f"hilo_relay_held_bytes {health(second)['bytes']}" in metrics
        assert health(first)["upstream_requests"].get("dropped", 0) == 0


def test_a_reader_that_waits_gets_the_record_when_it_comes(tmp_path, rng):
    log = open_log(f"file:{tmp_path}/run", create=True)
    genesis, record = chain(rng, [5000])
    log.steps.append(0, genesis)
    with relay(f"file:{tmp_path}/run") as first, relay(first) as second, ThreadPoolExecutor(4) as readers:
        steps = open_log(second).steps
        waiting = [readers.submit(steps.read, 1, LIMIT) for _ in range(4)]
        assert steps.read(1) is None  # who does not wait is not kept waiting by those who do
        log.steps.append(1, record)
        assert [reader.result(LIMIT) for reader in waiting] == [record] * 4
        assert health(first)["served"]["steps"] == 1


def test_the_beginning_is_passed_on_before_the_end_has_come(origin, relayed, rng):
    record = chain(rng, [1_000_000])[1]
    origin.objects[step(1)] = record
    gate = origin.gates[step(1)] = threading.Event()
    with httpx2.stream("GET", f"{relayed}/{step(1)}", timeout=LIMIT) as response:
        pieces = response.iter_raw()
        got = b""
        while len(got) < SENT:
            got += next(pieces)
        assert got == record[:SENT]
        gate.set()
        assert got + b"".join(pieces) == record
    assert origin.asked[step(1)] == 1


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(origin, relayed, rng):
    content = rng.bytes(1_000_000)
    path = f"blobs/{blake3(content).hexdigest()}"
    origin.objects[path] = content
    gate = origin.gates[path] = threading.Event()
    with httpx2.stream("GET", f"{relayed}/{path}", timeout=LIMIT) as response:
        next(response.iter_raw())
    with ThreadPoolExecutor(2) as readers:
        found = [readers.submit(open_log(relayed).blobs.get, blake3(content).hexdigest()) for _ in range(2)]
        gate.set()
        assert [reader.result(LIMIT) for reader in found] == [content] * 2
    assert origin.asked[path] == 1


@pytest.mark.parametrize("kind", ["record", "blob"])
def test_a_damaged_object_is_aborted_and_never_served_again(origin, relayed, rng, kind):
    if kind == "record":
        content, path = chain(rng, [500_000] * 7)[7], step(7)
    else:
        content = rng.bytes(500_000)
        path = f"blobs/{blake3(content).hexdigest()}"
    origin.objects[path] = content
    origin.damage.add(path)
    dropped = health(relayed)["upstream_requests"].get("dropped", 0)
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        httpx2.stream("GET", f"{relayed}/{path}", timeout=LIMIT) as response,
    ):
        response.read()
    assert health(relayed)["upstream_requests"]["dropped"] == dropped + 1
    assert httpx2.get(f"{relayed}/{path}", timeout=LIMIT).content == content
    assert httpx2.get(f"{relayed}/{path}", timeout=LIMIT).content == content
    assert origin.asked[path] == 2


def test_a_reader_recovers_by_itself_from_damage_on_the_way_to_the_relay(origin, relayed, rng):
    content = rng.bytes(500_000)
    key = blake3(content).hexdigest()
    origin.objects[f"blobs/{key}"] = content
    origin.damage.add(f"blobs/{key}")
    assert open_log(relayed).blobs.get(key) == content


def test_a_transfer_that_breaks_off_is_taken_up_where_it_stopped(origin, relayed, rng):
    content = rng.bytes(700_000)
    key = blake3(content).hexdigest()
    origin.objects[f"blobs/{key}"] = content
    origin.breaks.add(f"blobs/{key}")
    assert open_log(relayed).blobs.get(key) == content
    first, second = SENT + FIRST_PIECE, SENT + 2 * FIRST_PIECE
    assert set(origin.ranges[-3:]) == {
        f"bytes={SENT}-{first - 1}",
        f"bytes={first}-{second - 1}",
        f"bytes={second}-{len(content) - 1}",
    }
    # Without a relay the reader itself does the same.
    origin.breaks.add(f"blobs/{key}")
    assert open_log(origin.url).blobs.get(key) == content
    assert origin.ranges[-1] == f"bytes={SENT}-"
    assert origin.asked[f"blobs/{key}"] == 1 + 3 + 2


def test_a_relay_gives_out_parts_of_the_very_copy_that_is_asked_for(origin, relayed, rng):
    content = rng.bytes(10_000)
    key = blake3(content).hexdigest()
    origin.objects[f"blobs/{key}"] = content

    def get(wanted: str, tag: str | None = None) -> httpx2.Response:
        headers = {"Range": wanted} | ({"If-Range": tag} if tag else {})
        return httpx2.get(f"{relayed}/blobs/{key}", headers=headers, timeout=LIMIT)

    first = get("bytes=0-99")
    assert (first.status_code, first.content) == (206, content[:100])
    assert first.headers["content-range"] == "bytes 0-99/10000"
    tag = first.headers["etag"]
    assert get("bytes=9000-20000", tag).content == content[9000:]
    assert get("bytes=100-199", tag).content == content[100:200]
    assert get("bytes=100-", tag).content == content[100:]
    for whole in (
        get("bytes=100-199"),
        get("bytes=100-199", '"another"'),
        get("bytes=0-99", '"another"'),
        get("bytes=10000-", tag),
        get("bytes=200-100", tag),
        get("bytes=-5", tag),
    ):
        assert (whole.status_code, whole.content) == (200, content)


def test_what_is_here_is_served_while_the_upstream_is_dead_and_the_rest_when_it_is_back(origin, relayed, rng):
    contents = [rng.bytes(1000), rng.bytes(1000)]
    keys = [blake3(content).hexdigest() for content in contents]
    origin.objects |= {f"blobs/{key}": content for key, content in zip(keys, contents, strict=True)}
    blobs = open_log(relayed).blobs
    assert blobs.get(keys[0]) == contents[0]
    origin.stop()
    try:
        assert blobs.get(keys[0]) == contents[0]
        with pytest.raises(LogUnavailable, match=r"the server said 503 \(http://127.0.0.1:\d+: cannot read blobs/"):
            blobs.get(keys[1])
    finally:
        origin.restart()
    assert blobs.get(keys[1]) == contents[1]


def test_rollouts_go_to_the_log_behind_the_view(tmp_path, rng):
    log = open_log(f"file:{tmp_path}/run", create=True)
    genesis, record = chain(rng, [5])
    log.steps.append(0, genesis)
    with relay(f"file:{tmp_path}/run") as url:
        worker = open_log(f"{url}+file:{tmp_path}/run")
        log.mailbox.offer([Order(0, 0)])
        assert worker.mailbox.take("w") == Order(0, 0)
        log.steps.append(1, record)
        assert worker.steps.read(1, wait=LIMIT) == record
        view = open_log(url)
        for write in (lambda: view.steps.append(2, b""), lambda: view.mailbox.take("w"), lambda: view.blobs.put(b"x")):
            with pytest.raises(ConfigurationError, match=r"can only be read: name the log .*\+s3://BUCKET/PREFIX"):
                write()
        with pytest.raises(ConfigurationError, match="can only be read"):
            open_log(url, create=True)


@pytest.mark.parametrize("between", [0, 1])
def test_a_relay_that_is_its_own_upstream_says_so(between):
    port = free_port()
    with ExitStack() as stack:
        last = f"http://127.0.0.1:{port}"
        for _ in range(between):
            last = stack.enter_context(relay(last))
        own = stack.enter_context(relay(last, "--listen", f"127.0.0.1:{port}"))
        for method in ("GET", "HEAD"):
            answer = httpx2.request(method, f"{own}/{step(0)}", timeout=20)
            assert answer.status_code == 503
            assert method == "HEAD" or "its own upstream" in answer.text


def test_a_certificate_makes_it_https_and_readers_check_it(tmp_path, rng):
    log = open_log(f"file:{tmp_path}/run", create=True)
    genesis = chain(rng, [])[0]
    log.steps.append(0, genesis)
    certificate, key = self_signed(tmp_path)
    with relay(f"file:{tmp_path}/run", "--certificate", certificate, "--key", key) as url:
        assert url.startswith("https://127.0.0.1:")
        # What a process trusts it reads once, so each reader is a process of its own.
        program = f"from hilosync.log import open_log; print(len(open_log({url!r}).steps.read(0)))"
        environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}

        def read(trusting: dict[str, str]) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program]
            return subprocess.run(command, env=environment | trusting, capture_output=True, text=True, timeout=LIMIT)

        assert read({"SSL_CERT_FILE": certificate}).stdout == f"{len(genesis)}\n"
        refused = read({})
        assert refused.returncode
        assert "it cannot be reached" in refused.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--listen", "nonsense"], "expected HOST:PORT"),
        (["--cache-bytes", "0"], "expected a number of bytes"),
        (["--wait", "0"], "there is no"),
        (["--certificate", __file__], "--certificate and --key belong together"),
    ],
)
def test_what_a_relay_cannot_do_is_refused_in_one_line(tmp_path, options, expected):
    command = [sys.executable, "-m", "hilosync", "relay", f"file:{tmp_path}/nothing", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_upstream_is_refused_without_its_password():
    command = [sys.executable, "-m", "hilosync", "relay", "nats://anna:secret@localhost:4222/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert "nats: a relay needs" in done.stderr and "secret" not in done.stderr


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel ends no connection by itself")
def test_the_connection_of_a_reader_that_takes_nothing_is_closed(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("hilosync.relay.server._SENDING", 0.3)
    blob = open_log(f"file:{tmp_path}", create=True).blobs.put(rng.bytes(16 << 20))
    cache = Cache(open_upstream(f"file:{tmp_path}"), 1 << 30)
    uvicorn = pytest.importorskip("uvicorn")

    async def story() -> None:
        with _listener("127.0.0.1", 0) as listener, socket.socket() as reader:
            server = uvicorn.Server(
                uvicorn.Config(application(cache, ""), log_level="critical", timeout_graceful_shutdown=1)
            )
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(listener.getsockname())
            reader.sendall(f"GET /blobs/{blob} HTTP/1.1\r\nHost: relay\r\n\r\n".encode())
            async with asyncio.timeout(LIMIT):
                while not server.server_state.connections:
                    await asyncio.sleep(0.02)
                while server.server_state.connections:
                    await asyncio.sleep(0.02)
            server.should_exit = True
            await serving

    asyncio.run(story())


def self_signed(folder) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key, as PEM files."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    unlocked = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unlocked))
    return str(folder / "certificate.pem"), str(folder / "key.pem")
