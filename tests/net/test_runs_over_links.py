"""Learner, workers and log in sites of their own: what the links do to a run must not show in its bits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from net_run import WIDE_AREA, Hilo, S3Place, digests_of, nats_network

from hilosync.bench.links import Link, Network
from hilosync.log import open_log

pytestmark = [pytest.mark.net, pytest.mark.nats, pytest.mark.timeout(1500)]

VERSIONS = 5


@pytest.fixture(scope="module")
def hilo(tmp_path_factory) -> Iterator[Hilo]:
    hilo = Hilo(tmp_path_factory.mktemp("said"))
    yield hilo
    hilo.close()


@pytest.fixture(scope="module")
def undisturbed(hilo, tmp_path_factory) -> list[str]:
    """The digests of a run in a folder of this machine, which the same run over a network must have."""
    return digests_in_a_folder(hilo, tmp_path_factory.mktemp("undisturbed"), VERSIONS)


def digests_in_a_folder(hilo, folder, versions) -> list[str]:
    url = f"file:{folder / 'run'}"
    learner, worker = hilo.learn(None, url, versions), hilo.work(None, url)
    summary = learner.summary()
    worker.end()
    digests = digests_of(open_log(url))
    assert len(digests) == versions and digests[-1] == summary["final_digest"]
    return digests


def check_workers(workers, digests) -> None:
    """Each has ended well, at the last version, and has held only versions of these digests, each once."""
    for worker in workers:
        assert f"finished at version {len(digests)}, digest {digests[-1][:16]}" in worker.end()
        held = worker.versions()
        assert max(held) == len(digests)
        assert all(version == 0 or digests[version - 1].startswith(digest) for version, digest in held.items())


def check(learner, workers, place, digests) -> None:
    """All have ended well with these digests, and so has what is on the server's disk."""
    summary = learner.summary()
    assert summary["final_digest"] == digests[-1]
    assert summary["digest_mismatches"] == 0
    check_workers(workers, digests)
    with place.opened() as log:
        assert digests_of(log) == digests


def test_a_lossy_wide_area_and_a_short_cut_leave_no_trace(hilo, tmp_path):
    versions = 3
    undisturbed = digests_in_a_folder(hilo, tmp_path, versions)
    with nats_network(tmp_path, WIDE_AREA, WIDE_AREA, WIDE_AREA) as (place, home, sites):
        learner = hilo.learn(home, place.url, versions)
        workers = [hilo.work(site, place.url) for site in sites]
        workers[0].wait_for("version 1 digest")
        sites[0].cut()
        time.sleep(6.0)  # long enough for the learner to give its orders to the other one
        sites[0].mend()
        check(learner, workers, place, undisturbed)


@pytest.mark.minutes
@pytest.mark.parametrize("cut_off", ["worker", "server"])
def test_a_cut_of_30_seconds_is_waited_for_and_leaves_no_trace(hilo, tmp_path, undisturbed, cut_off):
    with nats_network(tmp_path, WIDE_AREA, WIDE_AREA) as (place, home, sites):
        # With the server cut off, both sides hear nothing for longer than they have patience with each other.
        patience = ["--patience", "15"] if cut_off == "server" else []
        learner = hilo.learn(home, place.url, VERSIONS, *patience)
        worker = hilo.work(sites[0], place.url, *patience)
        worker.wait_for("version 2 digest")
        site = place.site if cut_off == "server" else sites[0]
        site.cut()
        time.sleep(1.0)
        before = worker.versions()
        time.sleep(29.0)
        assert worker.versions() == before
        assert not learner.has_ended
        site.mend()
        check(learner, [worker], place, undisturbed)


@pytest.mark.minutes
def test_a_server_killed_in_the_middle_loses_nothing_and_repeats_nothing(hilo, tmp_path, undisturbed):
    with nats_network(tmp_path, WIDE_AREA, WIDE_AREA, WIDE_AREA) as (place, home, sites):
        learner = hilo.learn(home, place.url, VERSIONS)
        workers = [hilo.work(site, place.url) for site in sites]
        for version in (1, 3):
            workers[0].wait_for(f"version {version} digest")
            place.kill()
            time.sleep(2.0)
            place.start()
        check(learner, workers, place, undisturbed)


@pytest.mark.minutes
def test_an_outage_beyond_the_stated_limit_ends_both_sides_with_the_reason(hilo, tmp_path):
    with nats_network(tmp_path, Link(), Link()) as (place, home, sites):
        url = f"{place.url}?timeout=3"
        learner = hilo.learn(home, url, 1000, "--outage", "5")
        worker = hilo.work(sites[0], url, "--outage", "5")
        worker.wait_for("version 1 digest")
        place.site.cut()
        for party in (learner, worker):
            said = party.end(code=2)
            assert "waiting for the log, at most 5 s" in said
            assert "LogUnreachable: " in said and "given up after" in said


@pytest.mark.minutes
def test_a_bucket_and_a_relay_that_go_away_and_come_back_leave_no_trace(hilo, tmp_path, undisturbed):
    with Network() as network:
        names = ("bucket", "relay", "learner", "worker-1")
        bucket, between, home, site = (network.add(name, Link(mbit=62.5, delay_ms=10)) for name in names)
        place = S3Place(bucket)
        learner = hilo.learn(home, place.url, VERSIONS, **place.environment)
        listen = f"{between.address}:8080"
        relay = hilo.begin(between, "relay", place.url, "--listen", listen, **place.environment)
        relay.wait_for(listen)
        url = f"http://{listen}+{place.url}"
        worker = hilo.work(site, url, **place.environment)
        worker.wait_for("version 1 digest")
        relay.kill()
        time.sleep(5.0)
        relay = hilo.begin(between, "relay", place.url, "--listen", listen, **place.environment)
        worker.wait_for("version 2 digest")
        bucket.cut()
        time.sleep(20.0)
        bucket.mend()
        worker.wait_for("version 3 digest")
        between.cut()
        time.sleep(20.0)
        between.mend()
        assert learner.summary()["final_digest"] == undisturbed[-1]
        check_workers([worker], undisturbed)
        assert "waiting for the log" in worker.said
        inspected = hilo.begin(home, "inspect", place.url, "--json", **place.environment).end()
        records = json.loads(inspected)["records"]
        assert [record["digest"] for record in records] == undisturbed


@pytest.mark.minutes
def test_a_worker_at_1_mbit_per_second_slows_nobody_in_asynchronous_pace(hilo, tmp_path):
    # A record of 1.3 MB takes the slow worker ten seconds, and the others milliseconds.
    versions, staleness = 8, 1
    options = ["--mode", "asynchronous", "--max-staleness", staleness, "--compressor", "dense", "--rank", "32"]
    with nats_network(tmp_path, Link(), Link(), Link(mbit=1.0)) as (place, home, sites):
        learner = hilo.learn(home, place.url, versions, *options)
        fast, slow = (hilo.work(site, place.url) for site in sites)
        fast.wait_for(f"version {versions} digest")
        behind = versions - max(slow.versions(), default=0)
        assert behind > 2 * staleness, "a run that waits for its slowest worker is never so far ahead of it"
        summary = learner.summary()
        assert summary["staleness"]["max"] <= staleness
        assert summary["digest_mismatches"] == 0
        said = slow.end()
        with place.opened() as log:
            digests = digests_of(log)
        assert len(digests) == versions
        check_workers([fast, slow], digests)
        assert f"finished at version {versions}" in said
