"""Every implementation of the log seam, by name: each test that asks for `opens` runs over all of them.

A new implementation joins the conformance suite by one entry of `IMPLEMENTATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from nats_server import NatsServer
from persistent import Persistent

from hilosync.bench.s3_server import make_bucket, s3_server
from hilosync.log import Faults, Log, open_log

IMPLEMENTATIONS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda request, folder: f"memory:{request.node.nodeid}",
    "file": lambda request, folder: f"file:{folder}/runs/log",
    "nats": lambda request, folder: request.getfixturevalue("nats_server").url(),
    "s3": lambda request, folder: f"s3:{new_bucket(request)}",
    # A bucket that everybody may read is a view over HTTP; what is written goes to the bucket.
    "http": lambda request, folder: (
        f"{request.getfixturevalue('s3_service')['AWS_ENDPOINT_URL']}{(run := new_bucket(request))[1:]}+s3:{run}"
    ),
}
MARKS = {"nats": [pytest.mark.nats]}
READ_OVER_HTTP = ("test_blob_store", "test_snapshot_index", "test_step_log")
"""What a view shows; a mailbox is always the log's behind it."""


buckets = count()


def new_bucket(request: pytest.FixtureRequest) -> str:
    """A bucket and a prefix on the service that the environment leads to."""
    bucket = f"hilo-{next(buckets)}"  # of its own: listing a part of a full bucket is slow in this service
    make_bucket(request.getfixturevalue("s3_service")["AWS_ENDPOINT_URL"], bucket)
    return f"//{bucket}/runs/demo"


@pytest.fixture(scope="session")
def s3_service() -> Iterator[dict[str, str]]:
    """A real S3 service, and the environment that names it."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory) -> Iterator[NatsServer]:
    """One server for all tests that do not kill it."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


@pytest.fixture
def starts_nats(tmp_path_factory) -> Iterator[Callable[..., NatsServer]]:
    """Starts servers of a test's own."""
    servers = []

    def start(*arguments, **options) -> NatsServer:
        servers.append(NatsServer(tmp_path_factory.mktemp("nats"), *arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives a test that asks for `opens` every implementation, plain and with faults."""
    if "opens" not in metafunc.fixturenames:
        return
    names = [name for name in IMPLEMENTATIONS if name != "http" or metafunc.module.__name__ in READ_OVER_HTTP]
    parameters = [
        pytest.param((name, faulty), marks=MARKS.get(name, []), id=f"{name}{' with faults' if faulty else ''}")
        for faulty in (False, True)
        for name in names
    ]
    metafunc.parametrize("opens", parameters, indirect=True)


@pytest.fixture
def opens(request, tmp_path) -> Callable[[], Log]:
    """Opens one new, empty log; each call is a view of its own, as another process would have."""
    name, faulty = request.param
    url = IMPLEMENTATIONS[name](request, tmp_path)
    seeds = iter(range(request.config.getoption("seed"), 1 << 62))

    def opener() -> Log:
        log = open_log(url, create=True)
        if not faulty:
            return log
        faults = Faults(next(seeds), fail_before=0.2, lose_acknowledgement=0.2, duplicate=0.2)
        log = faults.wrap(log)
        return replace(
            log,
            steps=Persistent(log.steps),
            blobs=Persistent(log.blobs),
            snapshots=Persistent(log.snapshots),
            mailbox=Persistent(log.mailbox),
        )

    return opener


@pytest.fixture
def log(opens) -> Log:
    return opens()
