"""Which batches are asked for and used, at every pace."""

from __future__ import annotations

import pytest

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.log import Order
from hilosync.runtime import OrderBook, Pace


def answer_all(book: OrderBook, orders: list[Order]) -> None:
    for order in orders:
        book.answer((order.version, order.batch), order)


def test_lockstep_asks_for_the_batches_of_one_version_at_a_time():
    book: OrderBook[Order] = OrderBook(Pace("lockstep", 0, 2))
    for version in range(4):
        orders = book.turn(version)
        assert orders == [Order(version, 0), Order(version, 1)]
        assert book.oldest == version and book.take() is None
        answer_all(book, orders)
        assert book.take() == orders


@pytest.mark.parametrize("staleness", [1, 3])
def test_pipelined_steps_use_the_oldest_batches_and_are_at_most_so_stale(staleness):
    book: OrderBook[Order] = OrderBook(Pace("pipelined", staleness, 2))
    issued: list[Order] = []
    for version in range(8):
        orders = book.turn(version)
        assert len(orders) == (2 * (staleness + 1) if version == 0 else 2)
        assert {order.version for order in orders} == {version}
        issued += orders
        answer_all(book, orders[::-1])
        used = book.take()
        assert used == issued[2 * version : 2 * version + 2]
        assert {version - order.version for order in used} == {min(version, staleness)}
        assert book.oldest == used[0].version


def test_a_pipelined_run_that_starts_again_asks_for_what_the_next_steps_need():
    first: OrderBook[Order] = OrderBook(Pace("pipelined", 2, 3))
    issued = [order for version in range(6) for order in first.turn(version)]
    again: OrderBook[Order] = OrderBook(Pace("pipelined", 2, 3))
    assert again.turn(5) == issued[15:]
    assert again.turn(6) == first.turn(6)
    assert again.turn(6) == []


def test_asynchronous_steps_take_what_arrives_first():
    book: OrderBook[Order] = OrderBook(Pace("asynchronous", 1, 2))
    orders = book.turn(4)
    assert orders == [Order(4, batch) for batch in range(4)]
    answer_all(book, orders[:0:-1])
    assert book.take() == [Order(4, 3), Order(4, 2)]
    assert book.take() is None
    assert book.turn(5) == [Order(5, 0), Order(5, 1)]
    assert book.oldest == 4


def test_an_asynchronous_run_withdraws_what_is_too_old_and_asks_anew():
    book: OrderBook[Order] = OrderBook(Pace("asynchronous", 1, 2))
    slow, *quick = book.turn(0)
    answer_all(book, quick[:2])
    for version in (1, 2):
        assert book.take() is not None
        orders = book.turn(version)
        answer_all(book, orders)
    assert (slow.version, slow.batch) not in book.open
    # The unanswered one, and the third of the quick ones, which no step had wanted.
    assert book.withdrawn == 2
    assert len(orders) == 4 and book.oldest == 1


@pytest.mark.parametrize("mode", ["pipelined", "asynchronous"])
def test_whatever_arrives_when_no_batch_is_used_twice_or_too_late(mode, rng):
    for _ in range(50):
        staleness, batches = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        book: OrderBook[Order] = OrderBook(Pace(mode, staleness, batches))
        used: list[Order] = []
        for version in range(20):
            book.turn(version)
            while (taken := book.take()) is None:
                assert len(book.open) <= (staleness + 1) * batches
                keys = list(book.open)
                key = keys[int(rng.integers(len(keys)))]
                if rng.random() < 0.3:
                    assert book.reissue(key).attempt == book.open[key].attempt > 0
                else:
                    book.answer(key, Order(*key))
            assert len(taken) == batches
            assert all(0 <= version - order.version <= staleness for order in taken)
            used += taken
        assert len(set(used)) == len(used) == 20 * batches


def test_a_pace_that_means_nothing_is_refused():
    with pytest.raises(UnknownName, match="mode"):
        Pace("hurried")
    for mode, staleness, batches in (
        ("lockstep", 1, 1),
        ("pipelined", 0, 1),
        ("asynchronous", -1, 1),
        ("lockstep", 0, 0),
    ):
        with pytest.raises(ConfigurationError, match="expected"):
            Pace(mode, staleness, batches)
