"""Replay or snapshot: the choice is the smaller of two sums, and says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilosync.errors import Truncated
from hilosync.protocol import Measurements, Rates, choose, new_epoch

RATES = Rates(read_seconds=0.5, apply_seconds=0.5, bytes_per_second=100.0)


def test_a_small_gap_is_replayed_and_a_large_one_is_leapt_over():
    near = choose(90, 100, replayable=True, snapshots=[50, 95], state_bytes=1000, rates=RATES)
    assert (near.kind, near.base, near.replay_seconds, near.snapshot_seconds) == ("replay", 90, 10.0, 15.0)
    far = choose(0, 100, replayable=True, snapshots=[50, 95], state_bytes=1000, rates=RATES)
    assert (far.kind, far.base, far.replay_seconds, far.snapshot_seconds) == ("snapshot", 95, 100.0, 15.0)
    assert far.why == "snapshot from version 95 to 100 (estimates: replay 100 s, snapshot 15 s)"


def test_only_snapshots_on_the_way_count():
    choice = choose(10, 30, replayable=True, snapshots=[5, 10, 40], state_bytes=1, rates=RATES)
    assert choice.kind == "replay" and choice.snapshot_seconds == float("inf")
    with pytest.raises(Truncated, match=r"no way from version 10 to 30: .*got snapshots of 5, 10, 40"):
        choose(10, 30, replayable=False, snapshots=[5, 10, 40], state_bytes=1, rates=RATES)


@given(
    held=st.integers(0, 50),
    gap=st.integers(1, 50),
    replayable=st.booleans(),
    snapshots=st.lists(st.integers(1, 120), max_size=5),
    state_bytes=st.integers(1, 10**6),
    rates=st.builds(Rates, *(st.floats(1e-6, 1e3) for _ in range(3))),
)
def test_no_other_way_is_cheaper(held, gap, replayable, snapshots, state_bytes, rates):
    target = held + gap
    ways = [(gap * rates.record_seconds, held)] if replayable else []
    ways += [
        (state_bytes / rates.bytes_per_second + (target - version) * rates.record_seconds, version)
        for version in snapshots
        if held < version <= target
    ]
    if not ways:
        with pytest.raises(Truncated):
            choose(held, target, replayable=False, snapshots=snapshots, state_bytes=state_bytes, rates=rates)
        return
    choice = choose(held, target, replayable=replayable, snapshots=snapshots, state_bytes=state_bytes, rates=rates)
    cheapest = min(choice.replay_seconds, choice.snapshot_seconds)
    assert cheapest == pytest.approx(min(ways)[0])
    assert (cheapest, choice.base) in [(pytest.approx(seconds), base) for seconds, base in ways]


def test_rates_are_medians_and_defaults_until_something_was_measured():
    measured = Measurements()
    assert measured.rates == Rates() and measured.apply_seconds == 0.0 and not measured.knows_bandwidth
    for seconds in (30.0, 1.0, 2.0):  # the first compiles the kernels
        measured.record_applied(seconds)
    measured.record_read(0.25)
    measured.chunk_read(1000, 2.0)
    assert measured.rates == Rates(0.25, 2.0, 500.0) and measured.knows_bandwidth


def test_epochs_grow_and_two_learners_that_take_over_together_differ():
    first = new_epoch(0, entropy=7)
    assert first >> 32 == 1
    one, other = new_epoch(first, entropy=1), new_epoch(first, entropy=2)
    assert one != other and one >> 32 == other >> 32 == 2 and min(one, other) > first
    assert new_epoch((1 << 32) - 1, 0) == 1 << 32
