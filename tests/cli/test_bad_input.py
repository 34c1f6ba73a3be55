"""Bad input to `hilo`: one clear line, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
from toy_run import begin_small_run

from hilosync.bench.nats_server import nats_server
from hilosync.cli.main import main
from hilosync.errors import ConfigurationError
from hilosync.log import open_log


@pytest.fixture
def hilo(monkeypatch, capsys):
    """Runs the command line in this process: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hilo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def one_line(text: str) -> str:
    """The last line; nothing before it may be a traceback."""
    assert "Traceback" not in text
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compressor", "zip"], "UnknownName: unknown compressor 'zip': expected one of dense, "),
        (["--optimizer", "sgdd"], "UnknownName: unknown optimizer 'sgdd': expected one of adamw"),
        (["--task", "chess"], "UnknownName: unknown task 'chess'"),
        (["--budget", "300"], "BudgetTooSmall: a budget of 300 bytes per record leaves"),
        (["--budget", "lots"], "ConfigurationError: cannot read the budget 'lots': expected"),
        (["--student", "/no/such/model"], "ModelNotFound: no model at '/no/such/model'"),
        (["--teacher", "nobody/nothing"], "ModelNotFound: could not load the model 'nobody/nothing'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_written(hilo, tmp_path, options, message):
    log = tmp_path / "run"
    code, out, err = hilo("learn", f"file:{log}", *options)
    assert code == 2
    assert one_line(err).startswith(message)
    assert out == ""
    assert not log.exists()


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_view_that_can_only_be_read_takes_no_run_and_nobody_is_asked(hilo, options):
    code, _, err = hilo("learn", "http://127.0.0.1:1/run", *options)
    assert code == 2
    assert "is a view that can only be read: name the log that takes writes and rollouts behind it" in one_line(err)


@pytest.mark.parametrize("seconds", ["5m", "nan", "inf", "-1"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("learn", "--outage"),
        ("learn", "--patience"),
        ("work", "--wait"),
        ("work", "--patience"),
        ("work", "--outage"),
        ("relay", "--wait"),
    ],
)
def test_a_time_that_is_none_is_refused_before_anything_is_asked(hilo, tmp_path, command, option, seconds):
    code, _, err = hilo(command, f"file:{tmp_path}/none", option, seconds)
    assert code == 2
    assert f"'{seconds}': expected a number of seconds, such as 300" in " ".join(err.split())


def test_a_nats_server_that_is_not_there_is_named_by_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HILO_NATS_SERVER", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match=r"HILO_NATS_SERVER names .*gone"), nats_server():
        pass


def test_a_log_that_holds_a_run_is_refused_before_the_models_are_loaded(hilo, tmp_path, monkeypatch):
    begin_small_run(tmp_path / "run")
    monkeypatch.setattr("hilosync.cli.learn.conduct", None)
    code, _, err = hilo("learn", f"file:{tmp_path / 'run'}")
    assert code == 2
    assert one_line(err).startswith("RunMismatch: file:") and "holds a run already, at version 1" in one_line(err)


def test_an_empty_log_that_was_there_before_a_failed_run_stays(hilo, tmp_path):
    open_log(f"file:{tmp_path / 'run'}", create=True)
    code, _, _ = hilo("learn", f"file:{tmp_path / 'run'}", "--budget", "300")
    assert code == 2 and (tmp_path / "run" / "steps").is_dir()


def test_the_least_budget_that_is_named_is_accepted(hilo, tmp_path):
    _, _, err = hilo("learn", f"file:{tmp_path / 'a'}", "--budget", "300")
    enough = one_line(err).split("set a budget of ")[1].split()[0]
    code, _, err = hilo("learn", f"file:{tmp_path / 'b'}", "--budget", enough, "--patience", "0.2", "--problems", "1")
    assert code == 3, err  # no worker came, so the budget was taken


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_log_that_is_not_there_is_named(hilo, tmp_path, command):
    code, _, err = hilo(command, str(tmp_path / "nothing"))
    assert code == 2
    assert one_line(err).startswith("LogNotFound: no run at file:") and "nothing" in err


def test_a_worker_without_a_run_stops_waiting(hilo, tmp_path):
    code, _, err = hilo("work", str(tmp_path / "nothing"), "--wait", "0.2")
    assert code == 2
    assert one_line(err).startswith("LogNotFound: no run at file:")


def test_an_unknown_kind_of_log_is_named(hilo):
    code, _, err = hilo("verify", "redis://localhost/run")
    assert code == 2
    assert one_line(err).startswith("UnknownName: unknown log scheme 'redis': expected one of az, file, gs, ")


def test_an_unknown_option_is_refused(hilo):
    code, _, err = hilo("demo", "--budgte", "3")
    assert code == 2 and "No such option" in err


@pytest.mark.slow
def test_a_disk_that_fills_up_in_the_middle_is_one_line(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    options = ["--sync", "full", "--versions", "20", "--workers", "1", "--problems", "1"]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "hilosync", "demo", "--out", tmp_path / "run", *options],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        written = len(list((tmp_path / "run" / "steps").iterdir()))
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
    assert ended.returncode == 2, ended.stderr
    last = one_line(ended.stderr)
    assert last.startswith("LogUnavailable: file:") and "No space left on device" in last
    # The genesis and some adapters of 1.3 MB, beside the worker's checkpoint of 2.6: what was accepted is there.
    assert 3 <= written <= 7
