"""The network bench at tiny sizes: what it returns, what it leaves behind, and that a planted loss is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hilosync.bench import network
from hilosync.bench.arrivals import Arrivals, Sent
from hilosync.bench.links import Link
from hilosync.bench.network import Sizes, model_sizes, run_network
from hilosync.bench.peers import Chain, follow
from hilosync.bench.tree import run_tree
from hilosync.cli.bench import command
from hilosync.errors import BudgetTooSmall, MalformedRecord, PeerSilent, UnknownName
from hilosync.log import open_log

TINY = Sizes(record=20_000, adapter=400_000, blocks=10)
SHORT = ["--workers", "2", "--records", "2", "--adapters", "1", "--pause", "0.05"]
SMALL_MODEL = ["--model", "qwen3-0.6b", "--rank", "1"]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def no_process_stays():
    """Services of other tests may run all along."""
    before = children()
    yield
    assert children() <= before


@pytest.fixture
def no_links(monkeypatch):
    monkeypatch.setattr(network, "network_missing", lambda: "this machine has no links")


def test_the_command_measures_logs_and_names_what_it_cannot_measure(tmp_path, no_links):
    out = tmp_path / "new" / "network.png"
    arguments = ["network", "--json", "--logs", "file,relay", "--networks", "loopback,link", *SHORT, *SMALL_MODEL]
    ended = CliRunner().invoke(command, [*arguments, "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.stdout)
    assert [(row["network"], row["log"]) for row in result["rows"]] == [("loopback", "file"), ("loopback", "relay")]
    for row in result["rows"]:
        assert 0 < row["record_append_s_median"] < row["record_s_median"] <= row["record_s_p99"]
        assert 0 < row["adapter_worker_s_median"] <= row["adapter_s_median"]
        assert row["speedup"] == row["adapter_s_median"] / row["record_s_median"]
        assert row["partition"] is None
        assert row["faults"] == {"lost": 0, "repeated": 0, "out_of_order": 0, "changed": 0}
    assert {entry["log"]: entry["why"] for entry in result["missing"]} == {
        "file": "a folder is read on the learner's machine",
        "relay": "this machine has no links",
    }
    assert result["nothing_lost"]
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "kind", [pytest.param("nats", marks=pytest.mark.nats), pytest.param("s3", marks=pytest.mark.slow)]
)
def test_services_are_started_and_ended(kind):
    result = run_network(TINY, [kind], ["loopback"], workers=2, records=2, adapters=1, pause=0.05)
    assert result["nothing_lost"] and len(result["rows"]) == 1
    assert result["record_bytes"] == 20_000


def test_a_loss_ends_the_command_with_code_1(tmp_path, monkeypatch):
    add = Arrivals.add

    def lossy(self: Arrivals, worker: str, version: int, found: str, at: float) -> None:
        add(self, worker, 2 if (worker, version) == ("worker-2", 1) else version, found, at)

    monkeypatch.setattr(Arrivals, "add", lossy)
    arguments = ["network", "--json", "--logs", "file", "--networks", "loopback", *SHORT, *SMALL_MODEL]
    ended = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path / "network.png")])
    assert ended.exit_code == 1
    result = json.loads(ended.stdout)
    assert result["rows"][0]["faults"] == {"lost": 1, "repeated": 1, "out_of_order": 0, "changed": 1}
    assert not result["nothing_lost"]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([0, 1, 2], {}),
        ([0, 2], {"lost": 1}),
        ([0, 1, 1, 2], {"repeated": 1}),
        ([0, 2, 1], {"out_of_order": 1}),
        ([0, 1, 2, 3], {"changed": 1}),
    ],
)
def test_every_fault_is_counted(versions, expected):
    arrivals = Arrivals(("a", "b"))
    arrivals.sent = {version: Sent(f"{version}", 1, 10.0 * version, 10.0 * version + 1) for version in range(3)}
    for version in range(3):
        arrivals.add("a", version, f"{version}", 10.0 * version + 2)
    for version in versions:
        arrivals.add("b", version, f"{version}", 10.0 * version + 4)
    assert arrivals.faults() == {"lost": 0, "repeated": 0, "out_of_order": 0, "changed": 0} | expected
    assert arrivals.last(0) == 4.0 and arrivals.middle(0) == 3.0


def test_a_record_with_another_hash_is_counted_as_changed():
    arrivals = Arrivals(("a",))
    arrivals.sent[0] = Sent("this", 1, 0.0, 0.0)
    arrivals.add("a", 0, "that", 1.0)
    assert arrivals.faults() == {"lost": 0, "repeated": 0, "out_of_order": 0, "changed": 1}


class Skipping:
    """Steps of a log that gives out one record in the place of another."""

    def __init__(self, steps, at: int, instead: int):
        self.steps, self.at, self.instead = steps, at, instead

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        return self.steps.read(self.instead if version == self.at else version, wait)


def test_a_worker_tells_what_it_read_and_not_what_it_asked_for(request, seed):
    log, chain = open_log(f"memory:{request.node.name}", create=True), Chain(3, seed)
    log.steps.append(0, chain.last)
    for version in (1, 2, 3):
        log.steps.append(version, chain.extend(1000))
    read = []
    follow(Skipping(log.steps, at=2, instead=3), lambda **event: read.append(event["version"]), last=3)
    assert read == [0, 1, 3, 3]


def test_a_worker_stops_at_a_damaged_record(request, seed):
    log, chain = open_log(f"memory:{request.node.name}", create=True), Chain(3, seed)
    log.steps.append(0, chain.last)
    damaged = bytearray(chain.extend(1000))
    damaged[-1] ^= 1
    log.steps.append(1, bytes(damaged))
    with pytest.raises(MalformedRecord):
        follow(log.steps, lambda **event: None, last=1)


def test_a_server_that_does_not_start_is_named_and_nothing_stays(monkeypatch):
    monkeypatch.setenv("HILO_NATS_SERVER", "/bin/false")
    with pytest.raises(PeerSilent, match="false does not start"):
        run_network(TINY, ["nats"], ["loopback"], workers=1, records=1, adapters=1)


def test_unknown_logs_and_networks_are_named():
    with pytest.raises(UnknownName, match="relay"):
        run_network(TINY, ["carrier pigeon"], ["loopback"])
    with pytest.raises(UnknownName, match="lossy"):
        run_network(TINY, ["file"], ["moon"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pause", "nan"], "'nan': expected a number"),
        (["--pause", "inf"], "not in the range"),
        (["--partition", "nan"], "'nan': expected a number"),
        (["--snapshot-mb", "inf", "--tree"], "not in the range"),
        (["--out", "."], "is a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_begins(arguments, expected):
    ended = CliRunner().invoke(command, ["network", *arguments])
    assert ended.exit_code == 2 and expected in ended.output


def test_a_budget_that_no_record_fits_is_refused():
    with pytest.raises(BudgetTooSmall, match="392 tensors has at least 1004 bytes, got 300; raise the budget"):
        model_sizes(budget="300")


def test_a_picture_that_cannot_be_stored_is_known_before_the_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr("hilosync.cli.network.measure_network", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "file").touch()
    ended = CliRunner().invoke(command, ["network", "--out", str(tmp_path / "file" / "network.png")])
    assert isinstance(ended.exception, OSError)


def test_sizes_are_those_of_the_model():
    sizes = model_sizes()
    assert (sizes.record, sizes.blocks) == (2_231_369, 392)
    assert sizes.adapter == 139_460_608 + 184 + 8 + 4 * 7 + 2 * 392


def test_a_tree_shares_an_adapter_and_a_snapshot():
    result = run_tree(TINY, None, ["cut-through"], workers=2, relays=1, snapshot=200_000)
    (row,) = result["rows"]
    assert 0 < row["adapter_worker_s"] <= row["adapter_s"] and 0 < row["snapshot_worker_s"] <= row["snapshot_s"]
    assert result["nothing_lost"] and result["snapshot_bytes"] >= 199_000


@pytest.mark.net
def test_nothing_is_lost_over_a_lossy_link_that_is_cut():
    link = Link(mbit=20, delay_ms=5, jitter_ms=2, loss=0.01)
    sizes = Sizes(record=20_000, adapter=100_000, blocks=10)
    result = run_network(sizes, ["relay"], ["lossy"], link, 2, records=2, adapters=1, pause=0.3, partition=1.0)
    (row,) = result["rows"]
    assert result["nothing_lost"] and row["partition"]["records"] >= 2
    assert row["record_s_median"] > 0.010  # there and back
