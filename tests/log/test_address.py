from __future__ import annotations

import threading

import pytest

from hilosync.errors import ConfigurationError, LogNotFound, LogUnavailable, UnknownName
from hilosync.log import open_log, parse_address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("runs/demo", ("file", "runs/demo")),
        ("./a:b", ("file", "./a:b")),
        ("/tmp/run", ("file", "/tmp/run")),
        ("file:runs/demo", ("file", "runs/demo")),
        ("FILE:/tmp/run", ("file", "/tmp/run")),
        ("file:///tmp/run", ("file", "///tmp/run")),
        ("memory:demo", ("memory", "demo")),
    ],
)
def test_an_address_is_a_scheme_and_a_rest_or_a_path(url: str, expected: tuple[str, str]):
    assert parse_address(url) == expected


def test_an_unknown_scheme_is_refused_with_the_known_ones():
    with pytest.raises(
        UnknownName, match="unknown log scheme 'gopher': expected one of az, file, gs, http, https, memory, nats, s3"
    ):
        open_log("gopher://host/run")


@pytest.mark.parametrize("url", ["", "file:", "file://", "memory:"])
def test_an_address_of_nothing_is_refused(url: str):
    with pytest.raises(ConfigurationError, match="expected a path or name"):
        open_log(url, create=True)


def test_all_spellings_of_a_path_are_one_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_log("runs/demo", create=True).steps.append(0, b"genesis")
    for url in ("file:runs/demo", f"{tmp_path}/runs/demo", f"file://{tmp_path}/runs/demo", "./runs/../runs/demo"):
        assert open_log(url).steps.read(0) == b"genesis"
    assert open_log("runs/demo").url == "file:runs/demo"


def test_a_path_with_spaces_and_signs_is_a_path(tmp_path):
    path = tmp_path / "größe 100% #1"
    open_log(f"file:{path}", create=True).steps.append(0, b"genesis")
    assert (path / "steps" / f"{0:020d}").read_bytes() == b"genesis"


def test_reading_where_there_is_no_run_says_so_and_makes_nothing(tmp_path):
    with pytest.raises(LogNotFound, match=r"no run at file:.*there is no .*start its learner"):
        open_log(f"file:{tmp_path}/nothing")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogNotFound, match="the log is empty"):
        open_log(f"file:{tmp_path}/empty")
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(LogNotFound, match="no run at memory:nobody"):
        open_log("memory:nobody")


def test_memory_logs_of_other_names_are_other_logs():
    open_log("memory:one of two", create=True).steps.append(0, b"one")
    open_log("memory:two of two", create=True).steps.append(0, b"two")
    assert open_log("memory:one of two").steps.read(0) == b"one"


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_worker_that_comes_first_can_wait_for_the_run_to_begin(kind: str, tmp_path):
    url = f"file:{tmp_path}/run" if kind == "file" else "memory:begun later"
    found = []
    worker = threading.Thread(target=lambda: found.append(open_log(url, wait=60.0).steps.read(0)))
    worker.start()
    open_log(url, create=True).steps.append(0, b"genesis")
    worker.join(60.0)
    assert found == [b"genesis"]


def test_a_worker_that_waits_in_vain_is_told_why(tmp_path):
    with pytest.raises(LogNotFound, match="there is no"):
        open_log(f"file:{tmp_path}/run", wait=0.02)


def test_a_file_in_the_place_of_the_directory_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("not a log")
    for url, create in ((f"file:{tmp_path}/file", False), (f"file:{tmp_path}/file", True)):
        with pytest.raises(LogUnavailable, match="is a file; expected a directory"):
            open_log(url, create=create)
    with pytest.raises(LogUnavailable, match="cannot open it: Not a directory; a part of the path is a file") as caught:
        open_log(f"file:{tmp_path}/file/run", create=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(LogNotFound):
        open_log(f"file:{tmp_path}/file/run")


@pytest.mark.parametrize("create", [False, True])
def test_a_path_that_cannot_be_is_one_clear_line(tmp_path, create: bool):
    with pytest.raises(ConfigurationError, match="there is no such home directory; write the whole path"):
        open_log("file:~nosuchuser/x", create=create)
    with pytest.raises(LogUnavailable, match="File name too long; use a shorter path"):
        open_log(f"file:{tmp_path}/{'x' * 300}", create=create)
