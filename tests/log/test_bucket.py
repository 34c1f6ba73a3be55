"""What only buckets can do: creators who race on the service, refusals, secrets, readers without a listing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import obstore
import pytest

from hilosync.errors import ConfigurationError, Fenced, LogNotFound, LogUnavailable, UnknownName
from hilosync.log import open_log
from hilosync.log.cloud import split_bucket
from hilosync.log.pieces import FIRST_PIECE, WAYS, cut

RACERS = 16


@pytest.fixture
def bucket(s3_service) -> str:
    return "hilo"


def refused(url: str, create: bool = False) -> str:
    with pytest.raises((LogUnavailable, ConfigurationError)) as caught:
        open_log(url, create=create)
    return str(caught.value)


@contextmanager
def service(monkeypatch, handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
    """Puts a service of one's own in the place of the real one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60.0)


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_of_sixteen_racing_creators_exactly_one_wins(bucket, request):
    url = f"s3://{bucket}/{request.node.name}"
    steps = [open_log(url, create=True).steps for _ in range(RACERS)]
    start, won = threading.Barrier(RACERS), []

    def race(racer: int) -> None:
        for version in range(5):
            start.wait(60.0)
            try:
                steps[racer].append(version, bytes([racer]) * 200_000)
                won.append((version, racer))
            except Fenced:
                pass
            start.wait(60.0)

    racers = [threading.Thread(target=race, args=(racer,)) for racer in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60.0)
    assert sorted(version for version, _ in won) == list(range(5))
    for version, racer in won:
        assert steps[0].read(version) == bytes([racer]) * 200_000


def test_a_service_that_ignores_the_condition_is_refused_to_a_learner(s3_service, monkeypatch):
    class Overwriting(Quiet):
        """Accepts every write, as services do that do not know the condition."""

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_error(404)

    with service(monkeypatch, Overwriting):
        assert "does not honour create-only writes" in refused("s3://bucket/run", create=True)


def test_a_large_record_is_created_in_one_piece(bucket, request, rng):
    steps = open_log(f"s3://{bucket}/{request.node.name}", create=True).steps
    record = rng.bytes(12_000_000)
    steps.append(0, record)
    steps.append(0, record)
    with pytest.raises(Fenced):
        steps.append(0, record[:-1])
    assert steps.read(0) == record


def test_a_large_record_is_read_over_several_connections_and_a_small_one_by_one(bucket, request, rng, monkeypatch):
    steps = open_log(f"s3://{bucket}/{request.node.name}", create=True).steps
    asked, get_range = [], obstore.get_range

    def counted(store, path, **ends):
        asked.append((path, ends["start"], ends["end"]))
        return get_range(store, path, **ends)

    monkeypatch.setattr(obstore, "get_range", counted)
    small, large = rng.bytes(FIRST_PIECE), rng.bytes(3_000_000)
    steps.append(0, small)
    steps.append(1, large)
    assert steps.read(0) == small and asked == []
    assert steps.read(1) == large
    assert sorted(asked) == [(f"steps/{1:020d}", *ends) for ends in cut(0, len(large))[1:]]
    assert len(asked) == WAYS - 1


def test_what_never_changes_may_be_kept_by_every_cache_and_what_changes_by_none(bucket, request):
    log = open_log(f"s3://{bucket}/{request.node.name}", create=True)
    for version in range(3):
        log.steps.append(version, b"record")
    key = log.blobs.put(b"chunk")
    log.snapshots.publish(2, b"manifest")
    log.steps.forget(before=2)
    store = log.steps._objects.store
    kept = {
        path: "immutable" in obstore.get(store, path).attributes["Cache-Control"]
        for path in (f"steps/{2:020d}", f"blobs/{key}", f"snapshots/{2:020d}", "steps/oldest", "snapshots/index")
    }
    assert list(kept.values()) == [True, True, True, False, False]


def test_the_index_of_snapshots_follows_what_is_published_and_forgotten(bucket, request, s3_service):
    run = f"{bucket}/{request.node.name}"
    log = open_log(f"s3://{run}", create=True)
    log.steps.append(0, b"genesis")
    view = open_log(f"{s3_service['AWS_ENDPOINT_URL']}/{run}").snapshots
    assert view.versions() == []
    for version in (2, 9, 5):
        log.snapshots.publish(version, b"%d" % version)
    assert (view.versions(), view.read(9)) == ([2, 5, 9], b"9")
    log.snapshots.forget(before=5)
    assert (view.versions(), view.read(2)) == ([5, 9], None)


def test_where_there_is_no_run_or_no_bucket_is_one_clear_line(bucket):
    with pytest.raises(LogNotFound, match="no run at s3://hilo/nothing: the log is empty"):
        open_log(f"s3://{bucket}/nothing")
    for create in (False, True):
        assert "the service said 404 NoSuchBucket; there is no such bucket" in refused("s3://none/run", create)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "the service cannot be reached: check the network"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL: expected https://HOST or http://HOST:PORT"),
        ({"AWS_ALLOW_HTTP": "false"}, "allow it with AWS_ALLOW_HTTP=true"),
        ({"AWS_ACCESS_KEY_ID": None}, "expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_environment_that_leads_nowhere_is_one_clear_line(s3_service, monkeypatch, changes, expected):
    for name, value in changes.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    message = refused("s3://hilo/run")
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", "a worker needs to get and to list"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong"),
        (403, "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        (501, "NotImplemented", "no create-only writes"),
    ],
)
def test_a_refusal_is_explained_without_the_service_s_own_words(s3_service, monkeypatch, status, code, expected):
    class Refusing(Quiet):
        def do_GET(self) -> None:
            body = f"<Error><Code>{code}</Code><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with service(monkeypatch, Refusing):
        message = refused("s3://hilo/run")
    assert f"the service said {status} {code}; " in message
    assert expected in message
    assert "AKIA" not in message


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@host/run",
        "s3://bucket/run?X-Amz-Signature=secret",
        "http://me:secret@host/run",
        "http://h/r?t=secret",
        "http:///me:secret@host/run",
        "http://me:secret@[::1/run",
        "s3:///key:secret@host/run",
        "s3://key:secret@[::1/run",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(url):
    assert "secret" not in refused(url)


@pytest.mark.parametrize("url", ["s3:", "s3://", "s3:///run", "http://", "http:///run"])
def test_an_address_without_a_bucket_or_host_is_refused(url):
    assert "log address" in refused(url)


def test_bucket_and_prefix_are_told_apart():
    assert split_bucket("s3", "//bucket") == ("bucket", "")
    assert split_bucket("s3", "//bucket/runs/a/") == ("bucket", "runs/a")


def test_what_stands_behind_a_view_is_an_address_of_its_own():
    with pytest.raises(UnknownName, match="unknown log scheme 'gopher'"):
        open_log("http://127.0.0.1:1/run+gopher://host")


def test_a_view_of_nobody_is_one_clear_line():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        message = refused(f"http://127.0.0.1:{probe.getsockname()[1]}/run")
    assert "it cannot be reached; check the address, the network and the server" in message
