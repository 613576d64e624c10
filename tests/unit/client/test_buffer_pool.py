"""A producer's memory: bounded, first come first served, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.clientcore.producing.producer_batch import BufferPool, Waiter


def nothing() -> None:
    return None


def test_buffers_of_the_kept_size_are_reused() -> None:
    pool = BufferPool(100, 40)
    buffer = pool.take(40)
    assert buffer is not None
    pool.give_back(buffer)
    assert pool.take(40) is buffer


def test_too_little_memory_gives_nothing() -> None:
    pool = BufferPool(100, 40)
    assert pool.take(80) is not None
    assert pool.take(40) is None
    assert pool.available_bytes == 20


def test_more_than_the_whole_pool_is_an_error() -> None:
    with pytest.raises(ValueError, match="101 bytes are more than the 100"):
        BufferPool(100, 40).take(101)


def test_kept_buffers_make_room_for_other_sizes() -> None:
    pool = BufferPool(100, 40)
    kept = [pool.take(40), pool.take(40)]
    for buffer in kept:
        assert buffer is not None
        pool.give_back(buffer)
    assert pool.take(90) is not None
    assert pool.available_bytes == 10


def test_waiters_are_served_in_order_and_a_large_one_gathers() -> None:
    pool = BufferPool(100, 25)
    taken = [pool.take(25) for _ in range(4)]
    order: list[str] = []
    large = pool.wait(75, lambda: order.append("large"))
    small = pool.wait(25, lambda: order.append("small"))
    for index, buffer in enumerate(taken):
        assert buffer is not None
        assert order == ([] if index < 3 else ["large"])
        pool.give_back(buffer)
    assert order == ["large", "small"]
    assert large.buffer is not None
    assert small.buffer is not None
    assert pool.available_bytes == 0


def test_nobody_overtakes_a_waiter() -> None:
    pool = BufferPool(100, 40)
    first = pool.take(80)
    pool.wait(60, nothing)
    assert pool.take(10) is None, "there are 20 bytes, but they are for the one that waits"
    assert first is not None


def test_a_waiter_that_gives_up_loses_nothing() -> None:
    pool = BufferPool(100, 40)
    taken = pool.take(80)
    waiter = pool.wait(60, nothing)
    behind = pool.wait(20, nothing)
    assert pool.available_bytes == 0, "all is set aside for the first"
    pool.cancel(waiter)
    assert behind.buffer is not None
    assert taken is not None
    pool.give_back(taken)
    pool.give_back(behind.buffer)
    assert pool.available_bytes == 100


def test_a_waiter_that_gives_up_too_late_gives_its_buffer_back() -> None:
    pool = BufferPool(100, 40)
    waiter = pool.wait(40, nothing)
    assert waiter.buffer is not None
    pool.cancel(waiter)
    pool.cancel(waiter)
    assert pool.available_bytes == 100


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "wait", "cancel"]), st.integers(1, 100)), max_size=80))
def test_memory_is_neither_lost_nor_made(steps: list[tuple[str, int]]) -> None:
    pool = BufferPool(100, 16)
    held: list[bytearray] = []
    waiting: list[Waiter] = []
    for step, number in steps:
        if step == "take":
            buffer = pool.take(number)
            held += [] if buffer is None else [buffer]
        elif step == "give" and held:
            pool.give_back(held.pop(number % len(held)))
        elif step == "wait":
            waiting.append(pool.wait(number, nothing))
        elif step == "cancel" and waiting:
            pool.cancel(waiting.pop(number % len(waiting)))
        held += [waiter.buffer for waiter in waiting if waiter.buffer is not None]
        waiting = [waiter for waiter in waiting if waiter.buffer is None]
        reserved = sum(waiter.reserved_bytes for waiter in waiting)
        assert pool.available_bytes >= 0
        assert pool.available_bytes + reserved + sum(map(len, held)) == 100
        assert pool.waiting == len(waiting)
        assert not waiting or pool.available_bytes == 0 or reserved + pool.available_bytes < waiting[0].size_bytes
