"""A remote site with `deploy/nats/leaf.conf`: its workers read from a mirror, and answer to the hub."""

from __future__ import annotations

import pytest
from racers import LIMIT

from hilosync.bench.nats_server import free_port
from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log import Delivery, Order, open_log
from hilosync.log.nats.address import parse_nats_address
from hilosync.log.nats.connection import Connection
from hilosync.log.nats.stream import Stream

pytestmark = pytest.mark.nats


@pytest.fixture
def site(starts_nats):
    """A hub and a leaf node."""
    port = free_port()
    hub = starts_nats("hub.conf", changes=[("0.0.0.0:7422", f"127.0.0.1:{port}")])
    leaf = starts_nats("leaf.conf", environment={"HILO_NATS_HUB": f"nats-leaf://127.0.0.1:{port}"})
    return hub, leaf


def test_a_site_reads_through_its_mirror_and_answers_to_the_hub(site):
    hub, leaf = site
    learner = open_log(hub.url(run="shared"), create=True)
    records = [bytes([version]) * 5_000_000 for version in range(3)]
    for version in range(2):
        learner.steps.append(version, records[version])
    key = learner.blobs.put(b"chunk")
    learner.snapshots.publish(1, b"manifest")
    worker = open_log(leaf.url("?hub=hub", "shared"), wait=LIMIT)
    assert [worker.steps.read(version, wait=LIMIT) for version in range(2)] == records[:2]
    assert worker.blobs.get(key) == b"chunk"
    assert worker.snapshots.versions() == [1]
    learner.steps.append(2, records[2])
    assert worker.steps.read(2, wait=LIMIT) == records[2]

    learner.mailbox.offer([Order(2, 0)])
    assert worker.mailbox.take("far", wait=LIMIT) == Order(2, 0)
    worker.mailbox.deliver(Delivery("far", Order(2, 0), b"answer"))
    assert learner.mailbox.collect(2, wait=LIMIT) == [Delivery("far", Order(2, 0), b"answer")]
    assert learner.mailbox.claims(2) == {Order(2, 0): "far"}
    own = worker.blobs.put(b"from afar")
    assert worker.blobs.get(own) == learner.blobs.get(own) == b"from afar"

    rest = leaf.url(run="shared").partition(":")[2]
    mirror = Stream(Connection(parse_nats_address("nats", rest)), "hilo-shared-steps").info()
    assert mirror["config"]["mirror"]["name"] == "hilo-shared-steps"
    assert mirror["state"]["messages"] == 3


@pytest.mark.slow  # a mirror looks after its origin every ten seconds
def test_a_site_goes_on_reading_what_it_has_when_the_hub_is_away_and_catches_up(site):
    hub, leaf = site
    learner = open_log(hub.url(run="shared"), create=True)
    for version in range(3):
        learner.steps.append(version, bytes([version]))
    worker = open_log(leaf.url("?hub=hub&timeout=20", "shared"), wait=LIMIT)
    assert worker.steps.read(2, wait=LIMIT) == b"\2"
    hub.kill()
    assert [worker.steps.read(version) for version in range(4)] == [b"\0", b"\1", b"\2", None]
    hub.start()
    learner.steps.append(3, b"\3")
    assert worker.steps.read(3, wait=LIMIT) == b"\3"
    worker.mailbox.post("far", b"back")
    assert learner.mailbox.notices() == {"far": b"back"}


def test_a_hub_that_is_none_is_refused(site, nats_server):
    hub, leaf = site
    for server in (hub, nats_server):
        with pytest.raises(ConfigurationError, match="expected a server of another JetStream domain"):
            open_log(server.url("?hub=hub", "shared"))
    with pytest.raises(LogUnavailable, match=r"nobody answers on \$JS.elsewhere.API"):
        open_log(leaf.url("?hub=elsewhere&timeout=0.5", "shared"))
