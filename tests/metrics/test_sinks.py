from __future__ import annotations

import json
import socket
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.metrics import Tracker, open_tracker
from hilosync.metrics.prometheus import PrometheusSink

STEPS = [
    {"sync/bytes": 100.0, "sync/encode_s": 0.5, "spar/residual_norm": 2.0, "pass@1": 0.25},
    {"sync/bytes": 150.0, "sync/encode_s": 0.25, "spar/residual_norm": 1.5},
]


def log_all(tracker: Tracker) -> None:
    with tracker:
        for step, metrics in enumerate(STEPS, start=1):
            tracker.log(metrics, step)


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log_all(open_tracker([f"tensorboard:{tmp_path}"], {"lr": 1e-3}))
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("sync/bytes")] == [(1, 100.0), (2, 150.0)]


def test_trackio_keeps_what_was_logged_and_leaves_standard_output_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio")
    log_all(open_tracker(["trackio:hilo-test"], {"lr": 1e-3}))
    (path,) = Path(tmp_path).rglob("hilo-test*.db")
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    assert [(step, json.loads(metrics)["sync/bytes"]) for step, metrics in rows] == [(1, 100.0), (2, 150.0)]
    assert capsys.readouterr().out == ""


def test_wandb_keeps_an_offline_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip("wandb")
    log_all(open_tracker(["wandb:hilo-test"], {"lr": 1e-3}))
    assert [path.suffix for path in Path(tmp_path).rglob("run-*.wandb")] == [".wandb"]


def test_prometheus_scrapes_counters_histograms_and_gauges():
    sink = PrometheusSink("127.0.0.1:0", {})
    try:
        for step, metrics in enumerate(STEPS, start=1):
            sink.log(metrics, step)
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        sink.close()
    assert "hilo_sync_bytes_total 250.0" in lines
    assert "hilo_sync_encode_seconds_sum 0.75" in lines
    assert "hilo_sync_encode_seconds_count 2.0" in lines
    assert "hilo_spar_residual_norm 1.5" in lines
    assert "hilo_pass_at_1 0.25" in lines


def test_a_closed_prometheus_sink_frees_its_port():
    sink = PrometheusSink("0", {})
    sink.close()
    PrometheusSink(str(sink.port), {}).close()


def test_a_port_in_use_is_refused_with_its_number():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen for Prometheus at 127.0.0.1:{port}"):
            open_tracker([f"prometheus:{port}"], {})


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tensorboard", "expected a folder, project or port after the colon"),
        ("wandb:", "expected a folder, project or port after the colon"),
        ("prometheus:ninety", "expected PORT or HOST:PORT"),
        ("prometheus:70000", "expected PORT or HOST:PORT"),
    ],
)
def test_a_sink_that_names_no_place_is_refused(address, message):
    with pytest.raises(ConfigurationError, match=message):
        open_tracker([address], {})


def test_an_unknown_sink_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="expected one of prometheus, tensorboard, trackio, wandb"):
        open_tracker(["mlflow:x"], {})


def test_a_sink_that_fails_ends_no_run_and_is_named_once(caplog):
    class Broken:
        def log(self, metrics, step):
            raise OSError("no route to host")

        def close(self):
            raise AssertionError("closed after it failed")

    class Kept:
        def __init__(self):
            self.steps = []

        def log(self, metrics, step):
            self.steps.append(step)

        def close(self):
            pass

    kept = Kept()
    log_all(Tracker([Broken(), kept]))
    assert kept.steps == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "Broken failed at step 1 and gets no more metrics: OSError: no route to host"
    ]
