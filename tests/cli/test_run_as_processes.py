"""The whole job as a user runs it: real processes, the real tiny models, one log in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hilosync.cli.folder import check_replaceable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ["--problems", "16", "--evaluate-every", "100", "--batches", "2", "--prompts", "4"]


def hilo(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hilosync", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, **options)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hilosync", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def end(*processes: subprocess.Popen[str]) -> None:
    """Ends what still runs, and closes the pipes of what does not."""
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_version(run, version: int, limit: float = 300.0) -> None:
    deadline = time.monotonic() + limit
    while not (run / "steps").is_dir() or len(list((run / "steps").iterdir())) <= version:
        assert time.monotonic() < deadline, f"version {version} did not appear within {limit} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A short demo: (its folder, its summary)."""
    out = tmp_path_factory.mktemp("demo") / "run"
    ended = hilo("demo", "--out", out, "--versions", 6, "--json", *SMALL)
    assert ended.returncode == 0, ended.stderr
    return out, json.loads(ended.stdout)


def test_a_demo_keeps_its_promises(demo):
    out, summary = demo
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["versions"] == summary["final_version"] == 6
    assert summary["workers"] == 2
    assert summary["digest_checks"] == 12 and summary["digest_mismatches"] == 0
    assert summary["worker_versions"] == {"worker-1": 6, "worker-2": 6}
    assert summary["record_bytes_median"] <= summary["record_bytes_max"] <= summary["budget"]
    assert summary["ratio"] == pytest.approx(summary["record_bytes_median"] / summary["adapter_bytes"])
    assert (out / "learning.png").stat().st_size > 10_000
    assert summary["final_digest"] in hilo("inspect", out, "--json").stdout


@pytest.mark.nats
def test_a_demo_of_the_same_seed_has_the_same_bits_on_another_log_with_another_number_of_workers(demo, tmp_path):
    _, summary = demo
    there = hilo("demo", "--out", tmp_path / "run", "--versions", 6, "--workers", 1, "--json", "--log", "nats", *SMALL)
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)["final_digest"] == summary["final_digest"]
    assert (tmp_path / "run" / "log.url").read_text().startswith("nats://127.0.0.1:")
    check_replaceable(tmp_path / "run")


def test_a_pipelined_demo_repeats_itself_with_other_workers(tmp_path):
    summaries = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        ended = hilo(
            "demo", "--out", out, "--versions", 4, "--mode", "pipelined", "--workers", workers, "--json", *SMALL
        )
        assert ended.returncode == 0, ended.stderr
        summaries.append(json.loads(ended.stdout))
    assert summaries[0]["final_digest"] == summaries[1]["final_digest"]
    assert summaries[0]["staleness"] == {"mean": 0.75, "max": 1}
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert [line["rollout/staleness_max"] for line in lines] == [0, 1, 1, 1]
    assert lines[0]["rollout/ratio_mean"] == 1.0 != lines[1]["rollout/ratio_mean"]


def test_an_asynchronous_demo_bounds_its_staleness(tmp_path):
    out = tmp_path / "run"
    ended = hilo("demo", "--out", out, "--versions", 4, "--mode", "asynchronous", "--json", *SMALL)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["staleness"]["max"] <= 1 and summary["digest_mismatches"] == 0
    refused = hilo("demo", "--out", out, "--max-staleness", 2, *SMALL)
    assert refused.returncode == 2 and "expected a staleness of 0 in mode lockstep, got 2" in refused.stderr
    assert (out / "summary.json").exists()


def test_verify_passes_on_the_log_and_names_a_flipped_byte(demo):
    out, summary = demo
    ended = hilo("verify", out)
    assert ended.returncode == 0, ended.stderr
    assert "6 records replayed, 6 digests checked, all equal" in ended.stdout
    assert summary["final_digest"][:16] in ended.stdout
    path = sorted((out / "steps").iterdir())[4]
    content = path.read_bytes()
    try:
        for position in (5, 60, len(content) // 2):
            path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
            ended = hilo("verify", out)
            assert ended.returncode == 1
            assert ended.stderr.strip().splitlines()[-1].startswith("MalformedRecord: record 4 of file:")
            assert "Traceback" not in ended.stderr
    finally:
        path.write_bytes(content)


def test_inspect_shows_versions_and_blocks(demo):
    out, summary = demo
    whole = json.loads(hilo("inspect", out, "--json").stdout)
    assert whole["versions"] == 6 and whole["adapter_bytes"] == summary["adapter_bytes"]
    assert max(record["bytes"] for record in whole["records"]) == summary["record_bytes_max"]
    one = json.loads(hilo("inspect", out, "--version", 3, "--json").stdout)
    assert one["digest"] == whole["records"][2]["digest"]
    assert sum(block["bytes"] for block in one["blocks"]) <= one["payload_bytes"]
    assert {"name", "rank", "bytes", "tag"} <= one["blocks"][0].keys()
    assert one["scalars"][0]["beta1"] == pytest.approx(0.9)
    table = hilo("inspect", out)
    assert table.returncode == 0 and f"{summary['adapter_bytes']:,} bytes" in table.stdout
    missing = hilo("inspect", out, "--version", 99)
    assert missing.returncode == 2 and "the newest is 6" in missing.stderr


def test_the_same_run_with_whole_adapters_ships_the_adapter(tmp_path):
    ended = hilo("demo", "--out", tmp_path / "full", "--versions", 2, "--sync", "full", "--json", *SMALL)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["adapter_bytes"] < summary["record_bytes_median"] < 1.01 * summary["adapter_bytes"]
    assert summary["digest_checks"] == 4 and summary["digest_mismatches"] == 0
    assert hilo("verify", tmp_path / "full").returncode == 0


def test_a_killed_worker_is_replaced_by_the_other_and_catches_up_when_started_again(tmp_path):
    run = tmp_path / "run"
    learner = start("learn", f"file:{run}", "--versions", 10, "--json", *SMALL)
    workers = {name: start("work", run, "--name", name, "--threads", 1) for name in ("one", "two")}
    killed = workers["one"]
    try:
        wait_for_version(run, 2)
        killed.send_signal(signal.SIGKILL)
        before = len(list((run / "steps").iterdir()))
        wait_for_version(run, before + 3)
        workers["one"] = start("work", run, "--name", "one", "--threads", 1)
        out, err = learner.communicate(timeout=400)
        assert learner.returncode == 0, err
        summary = json.loads(out)
        for name, worker in workers.items():
            said, err = worker.communicate(timeout=60)
            assert worker.returncode == 0, err
            assert f"{name}: finished at version 10, digest {summary['final_digest'][:16]}" in said
    finally:
        end(learner, *workers.values(), killed)
    # Whether the learner had heard of the first one again before it ended is a matter of time.
    assert summary["worker_versions"]["two"] == 10
    assert summary["digest_mismatches"] == 0


def test_a_killed_learner_leaves_a_clear_message_and_no_hang(tmp_path):
    run = tmp_path / "run"
    learner = start("learn", f"file:{run}", "--versions", 500, *SMALL)
    worker = start("work", run, "--name", "w", "--patience", "6", "--threads", 1)
    try:
        wait_for_version(run, 2)
        learner.send_signal(signal.SIGKILL)
        _, err = worker.communicate(timeout=120)
    finally:
        end(learner, worker)
    assert worker.returncode == 3
    last = err.strip().splitlines()[-1]
    assert last.startswith("PeerSilent: nothing heard from the learner for") and "safe in the log" in last
    assert "Traceback" not in err
    assert hilo("verify", run).returncode == 0
