"""A learner killed by SIGKILL and started again: the run ends with the bits of one that nothing befell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ["--versions", 4, "--problems", 8, "--evaluate-every", 100, "--batches", 1, "--prompts", 2]


def start(*arguments: object, kill_at: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hilosync", *map(str, arguments)]
    environment = os.environ | {"HILO_KILL_AT": kill_at}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    learner = start("learn", f"file:{run}", "--json", *SMALL)
    worker = start("work", run, "--name", "w", "--threads", 1)
    try:
        summary = json.loads(finished(learner))
        finished(worker)
    finally:
        end(learner, worker)
    return summary


@pytest.mark.parametrize("point", ["before append:2", "after append:3"])
def test_a_killed_learner_is_resumed_to_the_digest_of_an_undisturbed_run(tmp_path, undisturbed, point):
    run = tmp_path / "run"
    killed = start("learn", f"file:{run}", *SMALL, kill_at=point)
    worker = start("work", run, "--name", "w", "--threads", 1, "--patience", 300, "--checkpoint", run / "checkpoints")
    resumed = None
    try:
        killed.communicate(timeout=600)
        assert killed.returncode == -signal.SIGKILL
        resumed = start("learn", run, "--resume", "--json")
        summary = json.loads(finished(resumed))
        finished(worker)
    finally:
        end(killed, worker, *([] if resumed is None else [resumed]))
    assert summary["final_version"] == 4 and summary["digest_mismatches"] == 0
    assert summary["final_digest"] == undisturbed["final_digest"]
    assert (run / "checkpoints" / "learner" / "learner.safetensors").is_file()
    assert (run / "checkpoints" / "w" / "replica.safetensors").is_file()


def test_another_configuration_is_refused_before_a_model_is_loaded(tmp_path, undisturbed):
    run = tmp_path / "run"
    killed = start("learn", f"file:{run}", *SMALL, kill_at="after checkpoint write:1")
    try:
        killed.communicate(timeout=300)
        for option, value, begun in (("--optimizer", "lion", "adamw"), ("--rank", 8, 64), ("--budget", "5%", "rank 1")):
            refused = start("learn", run, "--resume", option, value)
            _, err = refused.communicate(timeout=300)
            assert refused.returncode == 2
            assert f"was begun with {option} {begun}, this command says {value}" in err
    finally:
        end(killed)
