"""Files replaced whole or not at all, refusals that say what helps, points that exist, clocks that cannot be set."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from disks import Killed, Killer

import hilosync
from hilosync.errors import ConfigurationError, DiskUnavailable
from hilosync.runtime import disk as disk_module
from hilosync.runtime.disk import FileDisk
from hilosync.runtime.points import KILL_VARIABLE, POINTS, reach

SOURCE = Path(hilosync.__file__).parent


def calls_of(function: str):
    """Every call of a function in the source: (file, the call)."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
                yield path.relative_to(SOURCE).as_posix(), node


def test_a_file_is_replaced_by_its_parts(tmp_path):
    disk = FileDisk(tmp_path / "made" / "on demand")
    assert disk.read("a") is None and disk.names() == []
    disk.write("a", [b"one ", memoryview(b"two")])
    disk.write("b.safetensors", [])
    assert disk.read("a") == b"one two" and disk.read("b.safetensors") == b"" and disk.names() == ["a", "b.safetensors"]
    disk.write("a", [b"three"])
    assert FileDisk(tmp_path / "made" / "on demand").read("a") == b"three"
    disk.remove("a")
    disk.remove("a")
    assert disk.names() == ["b.safetensors"]


@pytest.mark.parametrize("point", ["before rename", "after rename"])
def test_a_write_that_is_killed_leaves_the_old_bytes_or_the_new(tmp_path, monkeypatch, point):
    disk = FileDisk(tmp_path)
    disk.write("a", [b"old"])
    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "reach", Killer(point))
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # SIGKILL runs no handler
        with pytest.raises(Killed):
            disk.write("a", [b"new"])
    assert disk.read("a") == (b"old" if point == "before rename" else b"new")
    assert disk.names() == ["a"]
    disk.write("a", [b"newest"])
    assert disk.read("a") == b"newest" and [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_a_refusal_names_the_file_and_what_helps_and_leaves_the_old_bytes(tmp_path, monkeypatch, number):
    disk = FileDisk(tmp_path)
    disk.write("a", [b"old"])

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(disk_module.os, "fsync", refuse)
        with pytest.raises(DiskUnavailable, match=rf"cannot write {tmp_path}/a: {os.strerror(number)}; .*folder"):
            disk.write("a", [b"new"])
    assert disk.read("a") == b"old" and [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_device_is_named():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with (
        pytest.raises(DiskUnavailable, match="No space left on device; free some space"),
        disk_module._explained(Path("/dev/full"), "write"),
    ):
        descriptor = os.open("/dev/full", os.O_WRONLY)
        try:
            os.write(descriptor, b"x")
        finally:
            os.close(descriptor)


def test_a_file_in_the_folders_place_and_a_folder_in_the_files_place_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskUnavailable, match=r"another folder|File exists"):
        FileDisk(tmp_path / "file").write("a", [b""])
    (tmp_path / "a").mkdir()
    with pytest.raises(DiskUnavailable, match="Is a directory"):
        FileDisk(tmp_path).read("a")


@pytest.mark.parametrize("name", ["", "../a", ".hidden", "a/b", "a" * 129, "x.partial"])
def test_names_cannot_lead_elsewhere(tmp_path, name):
    with pytest.raises(ConfigurationError, match="cannot be named"):
        FileDisk(tmp_path).write(name, [b""])


def test_every_named_point_is_passed_somewhere_and_no_other():
    passed = {node.args[0].value for _, node in calls_of("reach") if isinstance(node.args[0], ast.Constant)}
    assert passed == set(POINTS)


def test_a_process_is_killed_at_the_passage_that_was_asked_for():
    program = "from hilosync.runtime.points import reach\nfor i in range(5):\n    print(i, flush=True)\n"
    program += "    reach('before append')\n    reach('after append')\n"
    environment = os.environ | {KILL_VARIABLE: "after append:3"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL and ended.stdout.split() == ["0", "1", "2"]


@pytest.mark.parametrize("wanted", ["nowhere", "after append:soon", "after append:-1"])
def test_a_point_that_does_not_exist_is_refused(monkeypatch, wanted):
    monkeypatch.setenv(KILL_VARIABLE, wanted)
    with pytest.raises(ConfigurationError, match="expected one of before append"):
        reach("before append")


def test_no_wait_and_no_decision_reads_a_clock_that_can_be_set():
    """A wall clock jumps when it is corrected; then waits would last for hours, or not at all."""
    wall = ("time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow", "date.today")
    found = [f"{path}:{node.lineno}" for clock in wall for path, node in calls_of(clock)]
    assert found == []
