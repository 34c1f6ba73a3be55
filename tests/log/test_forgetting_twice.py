"""Two who forget at the same time: the slower one moves the mark back, and nobody is misled."""

from __future__ import annotations

import itertools

import pytest

from hilosync.errors import Fenced, Truncated
from hilosync.log import open_log
from hilosync.log.objects import memory_objects
from hilosync.log.polling import Polling
from hilosync.log.steps import ObjectStepLog

names = itertools.count()


@pytest.fixture
def address():
    """A log of ten records, the first six forgotten, whose mark was then moved back by a slower process."""
    name = f"forgetting-{next(names)}"
    steps = open_log(f"memory:{name}", create=True).steps
    for version in range(10):
        steps.append(version, b"%d" % version)
    steps.forget(before=7)
    memory_objects(name, create=False).replace("steps/oldest", b"2")
    return f"memory:{name}"


def test_a_removed_record_is_still_reported_as_removed(address):
    steps = open_log(address).steps
    with pytest.raises(Truncated, match="expected 7 or newer"):
        steps.read(4)
    assert steps.read(7) == b"7" and steps.head() == 9


def test_a_removed_record_cannot_be_written_again(address):
    steps = open_log(address).steps
    with pytest.raises(Fenced, match="removed it"):
        steps.append(4, b"other")
    assert steps.head() == 9


def test_whoever_forgets_next_sets_the_mark_right(address):
    steps = open_log(address).steps
    steps.forget(before=8)
    with pytest.raises(Truncated, match="expected 8 or newer"):
        steps.read(7)


def test_the_head_is_found_although_records_are_removed_meanwhile():
    name = f"forgetting-{next(names)}"
    other = open_log(f"memory:{name}", create=True).steps
    for version in range(10):
        other.append(version, b"%d" % version)
    other.forget(before=3)
    objects = memory_objects(name, create=False)
    steps = ObjectStepLog(objects, Polling())
    get = objects.get

    def get_and_let_the_other_forget(path):
        content = get(path)
        objects.get = get
        other.forget(before=6)
        return content

    objects.get = get_and_let_the_other_forget
    assert steps.head() == 9
