"""The conformance suite of `StepLog`."""

from __future__ import annotations

import random
import threading

import pytest

from hilosync.errors import Fenced, LogUnavailable, Truncated

LIMIT = 60.0  # seconds after which a wait that should end by itself is a failure


def record(version: int) -> bytes:
    return f"record {version}".encode() * (1 + version % 3)


def fill(steps, versions: int) -> None:
    for version in range(versions):
        steps.append(version, record(version))


def test_an_empty_log_has_no_head_and_no_records(log):
    assert log.steps.head() == -1
    assert log.steps.head(at_least=7) == -1
    assert log.steps.read(0) is None


def test_what_was_appended_is_read_by_everyone(opens):
    fill(opens().steps, 12)
    reader = opens().steps
    assert [reader.read(version) for version in range(12)] == [record(version) for version in range(12)]
    assert reader.read(12) is None


def test_a_record_needs_its_predecessor(log):
    with pytest.raises(LogUnavailable, match="version 0 is missing"):
        log.steps.append(1, b"one")
    fill(log.steps, 3)
    with pytest.raises(LogUnavailable, match="version 3 is missing"):
        log.steps.append(4, b"four")
    assert log.steps.read(4) is None
    assert log.steps.head() == 2


def test_appending_the_same_bytes_again_succeeds(opens):
    log = opens()
    fill(log.steps, 5)
    log.steps.append(4, record(4))
    log.steps.append(1, record(1))
    opens().steps.append(4, record(4))
    log.steps.append(5, record(5))
    assert log.steps.head() == 5


def test_other_bytes_for_a_version_are_fenced_and_change_nothing(opens):
    log = opens()
    fill(log.steps, 3)
    for version in range(3):
        with pytest.raises(Fenced, match=f"another learner has written version {version}"):
            opens().steps.append(version, b"another")
    with pytest.raises(Fenced):
        log.steps.append(2, record(2)[:-1])
    assert [log.steps.read(version) for version in range(4)] == [record(0), record(1), record(2), None]


def test_of_two_learners_only_one_goes_on(opens):
    first, second = opens().steps, opens().steps
    fill(first, 4)
    first.append(4, b"first")
    with pytest.raises(Fenced):
        second.append(4, b"second")
    first.append(5, b"first")
    assert second.read(4) == second.read(5) == b"first"


@pytest.mark.parametrize("versions", [1, 2, 3, 4, 5, 8, 16, 17])
def test_the_head_is_found_from_any_hint(opens, versions: int):
    fill(opens().steps, versions)
    for hint in [*range(versions), versions + 1, 100]:
        assert opens().steps.head(at_least=hint) == versions - 1


def test_a_reader_that_waits_gets_the_record_when_it_comes(opens):
    fill(opens().steps, 1)
    waiting, got = threading.Event(), []

    def read() -> None:
        steps = opens().steps
        waiting.set()
        got.append(steps.read(1, wait=LIMIT))

    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(LIMIT)
    opens().steps.append(1, record(1))
    reader.join(LIMIT)
    assert got == [record(1)]


def test_a_reader_that_waits_in_vain_is_told_so(log):
    assert log.steps.read(0, wait=0.02) is None


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_a_record_of_any_size_comes_back(opens, size: int):
    data = random.Random(size).randbytes(size)
    opens().steps.append(0, data)
    assert opens().steps.read(0) == data


def test_forgotten_records_are_truncated_and_the_rest_stays(opens):
    fill(opens().steps, 10)
    opens().steps.forget(before=6)
    steps = opens().steps
    assert steps.read(0) == record(0)
    for version in range(1, 6):
        with pytest.raises(Truncated, match=f"version {version} has been removed: expected 6 or newer"):
            steps.read(version, wait=LIMIT)
    assert [steps.read(version) for version in range(6, 11)] == [*map(record, range(6, 10)), None]
    assert steps.head() == steps.head(at_least=3) == steps.head(at_least=8) == 9
    opens().steps.append(9, record(9))
    opens().steps.append(10, record(10))
    assert steps.head() == 10


def test_forgetting_again_or_less_or_everything_keeps_the_newest_record(opens):
    fill(opens().steps, 4)
    for before in (2, 2, 1, 0, -1, 100, 3):
        opens().steps.forget(before)
    steps = opens().steps
    assert steps.head() == 3
    assert steps.read(3) == record(3)
    with pytest.raises(Truncated):
        steps.read(2)
    steps.append(3, record(3))
    with pytest.raises(Fenced):
        opens().steps.append(3, b"another")


def test_an_overtaken_learner_cannot_write_a_forgotten_version_again(opens):
    overtaken = opens().steps
    fill(overtaken, 2)
    fill(opens().steps, 6)
    opens().steps.forget(before=4)
    for version, steps in ((2, overtaken), (1, opens().steps), (3, opens().steps)):
        for content in (b"another", record(version)):
            with pytest.raises(Fenced, match=f"written version {version}, and removed it: expected 4 or newer"):
                steps.append(version, content)
    with pytest.raises(Truncated):
        opens().steps.read(2)
    assert opens().steps.head() == 5


def test_the_highest_number_is_found_by_listing(log):
    assert log.steps.highest() == -1
    fill(log.steps, 6)
    assert log.steps.highest() == 5
    log.steps.forget(before=4)
    assert log.steps.highest() == 5


def test_forgetting_in_an_empty_log_changes_nothing(log):
    log.steps.forget(5)
    log.steps.append(0, b"")
    log.steps.forget(5)
    assert log.steps.head() == 0
