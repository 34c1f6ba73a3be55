"""Every implementation of the log seam, by name: each test that asks for `opens` runs over all of them.

A new implementation joins the conformance suite by one entry of `IMPLEMENTATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nats_server import NatsServer
from persistent import Persistent

from hilosync.log import Faults, Log, open_log

IMPLEMENTATIONS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "memory": lambda request, folder: f"memory:{request.node.nodeid}",
    "file": lambda request, folder: f"file:{folder}/runs/log",
    "nats": lambda request, folder: request.getfixturevalue("nats_server").url(),
}
MARKS = {"nats": [pytest.mark.nats]}


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


@pytest.fixture(
    params=[
        pytest.param((name, faulty), marks=MARKS.get(name, []), id=f"{name}{' with faults' if faulty else ''}")
        for faulty in (False, True)
        for name in IMPLEMENTATIONS
    ]
)
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
