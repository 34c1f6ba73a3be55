"""What a demo may remove to make place for its run, and what it must never touch."""

from __future__ import annotations

import shutil
import sys

import pytest
from toy_run import begin_small_run

from hilosync.cli.folder import check_replaceable, clear
from hilosync.cli.main import main
from hilosync.errors import ConfigurationError
from hilosync.log import open_log
from hilosync.runtime import Heartbeat, Notice


def contents(folder) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def run(tmp_path):
    """The folder of a run of one version, with what a demo leaves beside the log."""
    folder = tmp_path / "run"
    learner = begin_small_run(folder)
    learner.log.mailbox.post("worker-1", b"{}")
    for name in ("summary.json", "steps.jsonl", "learning.png", "worker-1.log", "worker-12.log"):
        (folder / name).write_text("made by a demo")
    return folder


@pytest.fixture
def demo(monkeypatch, capsys):
    """Runs `hilo demo` where it must be refused, and returns its line."""

    def refused(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["hilo", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        lines = capsys.readouterr().err.strip().splitlines()
        assert ended.value.code == 2 and len(lines) == 1
        return lines[0]

    return refused


def test_an_ended_run_is_removed_whole(run):
    (run / "staging" / ("12-" + "0" * 16)).write_bytes(b"left by a killed learner")
    for name in (
        "learner/learner.safetensors",
        f"worker-1/chunk-{'a' * 64}",
        f"w/replica.safetensors.{'0' * 16}.partial",
    ):
        (run / "checkpoints" / name).parent.mkdir(parents=True)
        (run / "checkpoints" / name).write_bytes(b"kept by a process")
    (run / "notices" / "learner#1").write_bytes(b"left by a killed learner")
    clear(run)
    assert not run.exists()
    clear(run)


def test_a_run_whose_log_was_elsewhere_is_removed_and_what_only_looks_like_one_is_not(tmp_path):
    for address in ("nats://127.0.0.1:1/demo", "file:elsewhere", "two words", "x" * 2000, ""):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for name in ("summary.json", "steps.jsonl", "worker-1.log"):
            (folder / name).write_text("made by a demo")
        (folder / "log.url").write_text(address)
        if address.startswith("nats"):
            clear(folder)
            assert not folder.exists()
        else:
            with pytest.raises(ConfigurationError, match=r"is not a run of HiLo: its log\.url holds no address"):
                clear(folder)


def test_an_empty_folder_and_a_run_that_never_began_are_removed(tmp_path):
    (tmp_path / "empty").mkdir()
    clear(tmp_path / "empty")
    open_log(f"file:{tmp_path}/unbegun", create=True)
    (tmp_path / "unbegun" / "worker-1.log").write_text("LogNotFound")
    clear(tmp_path / "unbegun")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "stranger",
    [
        "thesis.tex",
        "steps/notes.txt",
        "blobs/photo.png",
        "src/main.py",
        "orders/1-0-0/x",
        "worker-mine.log",
        "checkpoints/mine",
    ],
)
def test_a_run_with_something_else_in_its_folder_stays_and_the_stranger_is_named(demo, run, stranger: str):
    (run / stranger).parent.mkdir(exist_ok=True)
    (run / stranger).write_text("precious")
    before = contents(run)
    line = demo("--out", run)
    named = "/".join(stranger.split("/")[: 1 if stranger.startswith("src") else 2])
    assert line.startswith("ConfigurationError: ") and f"is not a run of HiLo alone: it holds {named}" in line
    assert contents(run) == before


def test_a_folder_whose_steps_are_not_a_runs_stays(demo, tmp_path):
    for name, content in (("a", {}), ("b", {"summary.json": b"{}"}), ("c", {f"steps/{0:020d}": b"my own steps"})):
        folder = tmp_path / name
        (folder / "steps").mkdir(parents=True)
        content = content or {f"steps/{7:020d}": b"seven"}
        for path, data in content.items():
            (folder / path).write_bytes(data)
        assert "is not a run of HiLo" in demo("--out", folder)
        assert {path: (folder / path).read_bytes() for path in content} == content


@pytest.mark.parametrize("options", [[], ["--compare"]])
def test_the_current_directory_and_whatever_holds_it_stay(demo, run, monkeypatch, options):
    before = contents(run)
    monkeypatch.chdir(run / "steps")
    for out in (".", "..", run, "/", "../steps"):
        assert "is the current directory, or holds it: choose another folder" in demo("--out", out, *options)
    assert contents(run) == before


def test_links_files_and_impossible_paths_are_refused(demo, run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("precious")
    assert "is a symbolic link" in demo("--out", tmp_path / "link")
    assert "is a symbolic link" in demo("--out", tmp_path / "dangling")
    assert "exists and is not a run of HiLo" in demo("--out", tmp_path / "file")
    assert "cannot be used (File name too long)" in demo("--out", tmp_path / ("x" * 300))
    assert "cannot be used (Not a directory)" in demo("--out", tmp_path / "file" / "run")
    assert "begins with a ~" in demo("--out", "~nobody/run")
    (run / "blobs").rmdir()
    (run / "blobs").symlink_to(tmp_path)
    assert "it holds blobs" in demo("--out", run)


def test_a_mounted_file_system_stays(run, monkeypatch):
    monkeypatch.setattr("pathlib.Path.is_mount", lambda self: self == run)
    with pytest.raises(ConfigurationError, match="is a mounted file system"):
        clear(run)
    assert run.exists()


def test_of_two_runs_neither_is_removed_if_one_must_stay(demo, run, tmp_path):
    (tmp_path / "run-full").mkdir()
    (tmp_path / "run-full" / "thesis.tex").write_text("precious")
    before = contents(tmp_path)
    assert "run-full is not a run of HiLo alone" in demo("--out", run, "--compare")
    assert contents(tmp_path) == before


def test_a_run_whose_learner_is_alive_stays_and_one_whose_learner_was_killed_does_not(run):
    mailbox = open_log(str(run)).mailbox
    notice = Notice(sender="learner", incarnation="learner-1", beat=0, state="serving")
    with Heartbeat(mailbox, notice, interval=0.1), pytest.raises(ConfigurationError, match="a learner is alive in"):
        clear(run)
    assert run.exists()
    # Leaving the block posted the last word; a killed learner does not come to that.
    check_replaceable(run)
    clear(run)


@pytest.mark.parametrize(
    "options",
    [
        ["--compressor", "zip"],
        ["--optimizer", "sgdd"],
        ["--task", "chess"],
        ["--budget", "lots"],
        ["--student", "/no/such/model"],
        ["--teacher", "no-such-model"],
    ],
)
def test_options_that_cannot_be_are_refused_before_the_earlier_run_is_removed(demo, run, options):
    before = contents(run)
    demo("--out", run, *options)
    assert contents(run) == before
    shutil.rmtree(run)
    demo("--out", run, *options)
    assert not run.exists()
