"""What only files can do: racing processes, full disks, power cuts, damage."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from racers import LIMIT, PROCESSES, ROUNDS, begin_and_die, race_to_append, race_to_take

import hilosync.log.objects as objects
from hilosync.errors import Fenced, LogUnavailable, MalformedRecord
from hilosync.log import Order, open_log


def results_of_eight(target, url: str) -> dict[int, list]:
    start, results = PROCESSES.Barrier(8), PROCESSES.Queue()
    racers = [PROCESSES.Process(target=target, args=(url, racer, start, results)) for racer in range(8)]
    for racer in racers:
        racer.start()
    found = dict(results.get(timeout=LIMIT) for _ in racers)
    for racer in racers:
        racer.join(LIMIT)
        assert racer.exitcode == 0
    return found


@pytest.mark.slow
def test_of_eight_racing_processes_exactly_one_writes_each_version(tmp_path):
    url = f"file:{tmp_path}/run"
    won = results_of_eight(race_to_append, url)
    assert sorted(version for versions in won.values() for version in versions) == list(range(ROUNDS))
    steps = open_log(url).steps
    for racer, versions in won.items():
        for version in versions:
            assert steps.read(version) == bytes([racer]) * 10_000
    assert list((tmp_path / "run" / "staging").iterdir()) == []


@pytest.mark.slow
def test_of_eight_racing_workers_exactly_one_takes_each_order(tmp_path):
    url = f"file:{tmp_path}/run"
    orders = [Order(1 + index // 10, index % 10) for index in range(40)]
    open_log(url, create=True).mailbox.offer(orders)
    taken = results_of_eight(race_to_take, url)
    assert sorted(order for mine in taken.values() for order in mine) == [(o.version, o.batch) for o in orders]


@pytest.mark.slow
@pytest.mark.parametrize(("at_sync", "head"), [(1, -1), (2, 0)], ids=["before it has its name", "after"])
def test_a_learner_killed_in_an_append_has_written_all_or_nothing(tmp_path, at_sync: int, head: int):
    url = f"file:{tmp_path}/run"
    learner = PROCESSES.Process(target=begin_and_die, args=(url, at_sync))
    learner.start()
    learner.join(LIMIT)
    assert learner.exitcode == -signal.SIGKILL
    steps = open_log(url, create=True).steps
    assert steps.head() == head
    assert steps.read(0) == (b"genesis" if head == 0 else None)
    steps.append(0, b"genesis")
    assert steps.read(0) == b"genesis"


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    log = open_log(f"file:{tmp_path}/run", create=True)
    seen = []

    def watch(path: Path) -> None:
        seen.append((path.parent.name if path.is_file() else path.name, log.steps.head()))

    monkeypatch.setattr(objects, "sync", watch)
    log.steps.append(0, b"genesis")
    assert seen == [("staging", -1), ("steps", 0)]
    log.steps.append(0, b"genesis")  # again: the first writer may have died before it synced the folder
    assert seen[-1] == ("steps", 0)


def test_a_disk_that_fails_at_the_sync_leaves_no_record_and_no_litter(tmp_path, monkeypatch):
    log = open_log(f"file:{tmp_path}/run", create=True)

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(objects, "sync", fail)
        with pytest.raises(LogUnavailable, match=r"cannot write steps/0+: No space left on device; free some space"):
            log.steps.append(0, b"genesis")
    assert log.steps.head() == -1
    assert list((tmp_path / "run" / "staging").iterdir()) == []
    log.steps.append(0, b"genesis")


def steps_of_three(folder: Path, name: str):
    steps = open_log(f"file:{folder}", create=True).steps
    for version in range(3):
        steps.append(version, f"{name} {version}".encode())
    return steps


def test_a_learner_whose_folder_was_removed_writes_nothing_more(tmp_path):
    steps = steps_of_three(tmp_path / "run", "mine")
    shutil.rmtree(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(
            LogUnavailable, match="version 2 is missing; this learner appended it, so the log was removed"
        ):
            steps.append(3, b"mine 3")
    assert not (tmp_path / "run").exists()


def test_a_learner_whose_folder_was_given_to_another_run_is_fenced_and_writes_nothing(tmp_path):
    steps = steps_of_three(tmp_path / "run", "mine")
    shutil.rmtree(tmp_path / "run")
    theirs = steps_of_three(tmp_path / "run", "theirs")
    with pytest.raises(Fenced, match="another learner has written version 2: expected the record that this learner"):
        steps.append(3, b"mine 3")
    assert theirs.head() == 2
    theirs.append(3, b"theirs 3")


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tiny_disk):
    log = open_log(f"file:{tiny_disk}/run", create=True)
    log.steps.append(0, b"genesis")
    for write in (
        lambda: log.steps.append(1, bytes(1 << 20)),
        lambda: log.blobs.put(bytes(1 << 20)),
        lambda: log.mailbox.post("learner", bytes(1 << 20)),
    ):
        with pytest.raises(
            LogUnavailable, match=r"cannot write .*: No space left on device; free some space"
        ) as caught:
            write()
        assert "\n" not in str(caught.value)
    assert log.steps.head() == 0
    log.steps.append(1, b"smaller")
    assert log.steps.read(1) == b"smaller"


def test_a_limit_on_file_sizes_is_one_clear_line(tmp_path):
    log = open_log(f"file:{tmp_path}/run", create=True)
    log.steps.append(0, b"genesis")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(LogUnavailable, match=r"cannot write steps/0+1: File too large; raise the limit"):
            log.steps.append(1, bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.steps.head() == 0
    log.steps.append(1, bytes(200_000))


def test_a_folder_that_may_not_be_written_is_one_clear_line(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    log = open_log(f"file:{tmp_path}/run", create=True)
    (tmp_path / "run" / "staging").chmod(0o500)
    with pytest.raises(LogUnavailable, match="Permission denied; ask for access"):
        log.steps.append(0, b"genesis")


def test_a_disk_that_is_mounted_read_only_can_be_read(tiny_disk):
    log = open_log(f"file:{tiny_disk}/run", create=True)
    log.steps.append(0, b"genesis")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True, timeout=30)
    log = open_log(f"file:{tiny_disk}/run")
    assert log.steps.read(0) == b"genesis"
    with pytest.raises(LogUnavailable, match="Read-only file system; mount it writable"):
        log.steps.append(1, b"one")


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied"])
def test_a_damaged_blob_is_never_returned(tmp_path, damage: str):
    log = open_log(f"file:{tmp_path}/run", create=True)
    key = log.blobs.put(b"the bytes of a chunk")
    path = tmp_path / "run" / "blobs" / key
    content = {"flipped": b"the bites of a chunk", "truncated": b"the bytes", "emptied": b""}[damage]
    path.write_bytes(content)
    with pytest.raises(MalformedRecord, match=f"damaged blob: expected {key[:16]}"):
        log.blobs.get(key)


def test_an_absurdly_large_object_is_not_read(tmp_path):
    log = open_log(f"file:{tmp_path}/run", create=True)
    with (tmp_path / "run" / "steps" / f"{0:020d}").open("wb") as file:
        file.truncate((1 << 31) + 1)  # a sparse file
    with pytest.raises(LogUnavailable, match=f"has {(1 << 31) + 1} bytes: expected at most {1 << 31}"):
        log.steps.read(0)


def test_a_damaged_mark_of_the_oldest_version_is_reported(tmp_path):
    log = open_log(f"file:{tmp_path}/run", create=True)
    (tmp_path / "run" / "steps" / "oldest").write_bytes(b"-7 or so")
    with pytest.raises(LogUnavailable, match="steps/oldest is damaged: expected a version, got b'-7 or so'"):
        log.steps.read(1)


def test_a_record_behind_a_hole_is_found_by_the_listing(tmp_path):
    steps = steps_of_three(tmp_path / "run", "mine")
    (tmp_path / "run" / "steps" / f"{1:020d}").unlink()
    (tmp_path / "run" / "steps" / "99.txt").write_bytes(b"")
    assert (steps.head(), steps.highest()) == (0, 2)
    assert open_log(f"file:{tmp_path}/run").steps.highest() == 2


def test_files_that_are_no_part_of_a_mailbox_are_ignored(tmp_path):
    log = open_log(f"file:{tmp_path}/run", create=True)
    for folder in ("orders", "claims", "rollouts"):
        (tmp_path / "run" / folder / ".DS_Store").write_bytes(b"")
        (tmp_path / "run" / folder / "notes.txt").write_bytes(b"")
    (tmp_path / "run" / "rollouts" / "1-0-0").write_bytes(b"")  # cut short by a power cut elsewhere
    assert log.mailbox.take("w") is None
    assert log.mailbox.claims(1) == {}
    assert log.mailbox.collect(1) == []
