"""The conformance suite of `SnapshotIndex`, and of how a blob store lists and removes."""

from __future__ import annotations

import random
import threading

import pytest
from blake3 import blake3

from hilosync.errors import LogNotFound

LIMIT = 60.0  # seconds after which a wait that should end by itself is a failure


def manifest(version: int) -> bytes:
    return f"manifest {version}".encode() * 5


def together(*tasks) -> None:
    """Runs all tasks at once, each in a thread of its own, and raises what one of them raised."""
    start, raised = threading.Barrier(len(tasks)), []

    def run(task) -> None:
        try:
            start.wait(LIMIT)
            task()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def test_a_new_index_is_empty(log):
    assert log.snapshots.versions() == []
    assert log.snapshots.read(0) is None and log.snapshots.read(7) is None
    log.snapshots.forget(before=0)
    assert log.snapshots.versions() == []


def test_what_was_published_is_found_by_everyone_in_order_of_versions(opens):
    writer = opens().snapshots
    for version in (30, 2, 100, 7):
        assert writer.publish(version, manifest(version))
    reader = opens().snapshots
    assert reader.versions() == [2, 7, 30, 100]
    assert [reader.read(version) for version in (2, 7, 30, 100)] == [manifest(v) for v in (2, 7, 30, 100)]
    assert reader.read(3) is None


def test_a_large_version_is_a_version(opens):
    largest = (1 << 63) - 1
    assert opens().snapshots.publish(largest, b"m")
    assert opens().snapshots.versions() == [largest]


def test_of_two_manifests_for_a_version_the_first_counts(opens):
    assert opens().snapshots.publish(5, b"first")
    assert opens().snapshots.publish(5, b"first")
    assert opens().snapshots.publish(5, b"another")
    assert opens().snapshots.read(5) == b"first"
    assert opens().snapshots.versions() == [5]


def test_forgotten_versions_are_gone_for_good(opens):
    index = opens().snapshots
    for version in (10, 20, 30):
        index.publish(version, manifest(version))
    index.forget(before=20)
    for view in (index, opens().snapshots):
        assert view.versions() == [20, 30]
        assert view.read(10) is None and view.read(20) == manifest(20)
        assert not view.publish(10, manifest(10))
        assert not view.publish(19, manifest(19))
        assert view.versions() == [20, 30] and view.read(19) is None
    assert index.publish(25, manifest(25))
    assert opens().snapshots.versions() == [20, 25, 30]


def test_forgetting_again_or_less_changes_nothing(opens):
    index = opens().snapshots
    for version in (10, 20, 30):
        index.publish(version, manifest(version))
    for before in (20, 20, 10, 0):
        opens().snapshots.forget(before=before)
        assert index.versions() == [20, 30]
        assert not index.publish(10, manifest(10))


def test_everything_may_be_forgotten_before_it_is_there(opens):
    opens().snapshots.forget(before=1000)
    index = opens().snapshots
    assert not index.publish(999, manifest(999))
    assert index.publish(1000, manifest(1000)) and index.versions() == [1000]


def test_racing_publishers_leave_one_whole_manifest(opens):
    contents = [bytes([racer]) * 20_000 for racer in range(4)]
    views = [opens().snapshots for _ in contents]
    together(*(lambda v=view, c=content: v.publish(8, c) for view, content in zip(views, contents, strict=True)))
    seen = {view.read(8) for view in views}
    assert len(seen) == 1 and seen <= set(contents)
    assert opens().snapshots.versions() == [8]


def test_what_is_published_while_others_forget_is_either_refused_or_stays(opens, seed):
    """Whoever was told that a manifest is visible can rely on it, unless it lies below the mark."""
    random.seed(seed)
    versions = list(range(1, 13))
    random.shuffle(versions)
    told: dict[int, bool] = {}

    def publish(view, part) -> None:
        for version in part:
            told[version] = view.publish(version, manifest(version))

    def forget(view) -> None:
        for before in (3, 6, 8):
            view.forget(before=before)

    views = [opens().snapshots for _ in range(3)]
    together(lambda: publish(views[0], versions[:6]), lambda: publish(views[1], versions[6:]), lambda: forget(views[2]))
    left = opens().snapshots
    assert left.versions() == list(range(8, 13))
    assert all(told[version] for version in range(8, 13))
    for version in range(1, 8):
        assert left.read(version) is None
        assert not left.publish(version, manifest(version))


def test_every_stored_blob_is_listed_and_nothing_else(opens):
    log = opens()
    assert log.blobs.keys() == []
    contents = [f"chunk {number}".encode() for number in range(6)]
    for content in contents:
        log.blobs.put(content)
    log.blobs.put(contents[0])
    log.snapshots.publish(3, manifest(3))
    log.steps.append(0, b"genesis")
    assert sorted(opens().blobs.keys()) == sorted(blake3(content).hexdigest() for content in contents)


def test_a_removed_blob_is_gone_until_it_is_stored_again(opens):
    log = opens()
    key, other = log.blobs.put(b"chunk"), log.blobs.put(b"another")
    log.blobs.remove(key)
    with pytest.raises(LogNotFound, match="or was removed"):
        opens().blobs.get(key)
    assert opens().blobs.keys() == [other] and opens().blobs.get(other) == b"another"
    assert opens().blobs.put(b"chunk") == key
    assert opens().blobs.get(key) == b"chunk"


@pytest.mark.parametrize("key", ["0" * 64, "", "A" * 64, "../steps/" + "0" * 20, "0" * 64 + "\n"])
def test_removing_what_is_not_there_changes_nothing(opens, key: str):
    log = opens()
    log.steps.append(0, b"genesis")
    kept = log.blobs.put(b"chunk")
    log.blobs.remove(key)
    assert opens().steps.read(0) == b"genesis"
    assert opens().blobs.keys() == [kept]


def test_racing_to_store_and_to_remove_leaves_a_blob_whole_or_absent(opens):
    content = bytes(range(256)) * 400
    key = blake3(content).hexdigest()
    storing, removing = opens().blobs, opens().blobs

    def store() -> None:
        for _ in range(6):
            storing.put(content)

    def remove() -> None:
        for _ in range(6):
            removing.remove(key)

    together(store, remove)
    try:
        assert opens().blobs.get(key) == content
    except LogNotFound:
        assert opens().blobs.keys() == []
