"""The simulated disk loses what was not synced, and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from hilosync.sim.planted import PLANTS
from hilosync.sim.volume import SimulatedDisk, Volume


class Killed(Exception):
    pass


def outcomes(make, runs: int = 60) -> set:
    """What a volume holds under the name `f` after a power failure, over many draws of chance."""
    found = set()
    for seed in range(runs):
        volume = Volume()
        make(volume)
        volume.crash(Random(seed))
        found.add(volume.read("f"))
    return found


def test_what_was_synced_survives_a_power_failure():
    def make(volume):
        volume.write("f", b"content")
        volume.sync("f")
        volume.sync_names()

    assert outcomes(make) == {b"content"}


def test_a_name_that_was_not_synced_may_be_lost():
    def make(volume):
        volume.write("f", b"content")
        volume.sync("f")

    assert outcomes(make) == {b"content", None}


def test_content_that_was_not_synced_may_be_torn_or_lost():
    def make(volume):
        volume.write("f", b"content")
        volume.sync_names()

    found = outcomes(make)
    assert {b"", b"content"} < found and all(b"content".startswith(content) for content in found)


def test_a_renamed_file_replaces_the_old_one_whole_or_not_at_all():
    def make(volume):
        volume.write("f", b"old")
        volume.sync("f")
        volume.sync_names()
        volume.write("new", b"new")
        volume.sync("new")
        volume.rename("new", "f")

    assert outcomes(make) == {b"old", b"new"}


def test_changes_of_names_keep_their_order():
    for seed in range(60):
        volume = Volume()
        for name in "abcd":
            volume.write(name, b"")
            volume.sync(name)
        volume.crash(Random(seed))
        assert sorted(volume.names()) == list("abcd")[: len(volume.names())]


@pytest.mark.parametrize("power", [False, True])
def test_a_write_that_is_killed_at_any_operation_leaves_the_old_bytes_or_the_new(power, rng):
    for stop in range(1, 7):
        volume, passed = Volume(), 0
        SimulatedDisk(volume, lambda what: None).write("f", [b"o", b"ld"])

        def operation(what: str, stop: int = stop):
            nonlocal passed
            passed += 1
            if passed == stop:
                raise Killed

        try:
            SimulatedDisk(volume, operation).write("f", [b"n", b"ew"])
            assert stop == 6
        except Killed:
            pass
        if power:
            volume.crash(Random(int(rng.integers(1 << 30))))
        disk = SimulatedDisk(volume, lambda what: None)
        assert disk.read("f") in ((b"new",) if stop == 6 else (b"old", b"new"))
        assert disk.names() == ["f"]


def test_the_planted_volume_loses_what_it_has_acknowledged():
    found = set()
    for seed in range(30):
        volume = PLANTS["ack-before-fsync"].new_volume()
        SimulatedDisk(volume, lambda what: None).write("f", [b"content"])
        volume.crash(Random(seed))
        found.add(volume.read("f"))
    assert None in found
