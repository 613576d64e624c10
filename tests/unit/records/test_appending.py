"""Records appended one by one are the records of the builder, byte for byte."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.records.appending import (
    COMPILED,
    HEADER_SIZE,
    NO_HEADERS,
    Records,
    Ticket,
    TopicAppender,
    group_rows,
    murmur2,
)
from kalda.records.arrow import Column
from kalda.records.values import encode_records

ROW = st.tuples(st.integers(-1, 2**62), st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=300))


@given(st.lists(ROW, min_size=1, max_size=20))
def test_the_bytes_are_those_of_the_builder(rows: list[tuple[int, bytes | None, bytes | None]]) -> None:
    expected, largest = encode_records([(*row, ()) for row in rows], HEADER_SIZE, 0, rows[0][0], False)
    records = Records(bytearray(len(expected)), len(expected))
    for index, (timestamp, key, value) in enumerate(rows):
        ticket = Ticket()
        assert records.put(timestamp, key, value, NO_HEADERS, ticket)
        assert ticket.index == index
    assert records.data[HEADER_SIZE : records.position] == expected[HEADER_SIZE:]
    assert (records.count, records.base_timestamp, records.max_timestamp) == (len(rows), rows[0][0], largest)
    assert not records.put(0, None, None, NO_HEADERS, Ticket()), "not one more byte"


@given(st.binary(max_size=30))
def test_the_hash_is_the_one_of_javas_client(key: bytes) -> None:
    h, m, mask = 0x9747B28C ^ len(key), 0x5BD1E995, 0xFFFFFFFF
    for at in range(0, len(key) & ~3, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if len(key) & 3:
        h = (h ^ int.from_bytes(key[len(key) & ~3 :], "little")) * m & mask
    h ^= h >> 13
    h = h * m & mask
    assert murmur2(key) == h ^ h >> 15


def test_a_closed_batch_takes_nothing() -> None:
    records = Records(bytearray(1_000), 1_000)
    records.is_open = False
    assert not records.put(0, None, b"v", NO_HEADERS, Ticket())
    assert records.count == 0


def test_the_first_record_may_be_larger_than_the_limit() -> None:
    records = Records(bytearray(400), 100)
    assert records.put(0, None, bytes(300), NO_HEADERS, Ticket())
    assert not records.put(0, None, b"v", NO_HEADERS, Ticket())


def test_an_appender_finds_the_batch_or_leaves_the_record_to_its_caller() -> None:
    appender = TopicAppender(Ticket, 3, False)
    assert appender.append(b"v", None, None, None, None, 1.5) is None, "no batch is open"
    appender.open = [Records(bytearray(1_000), 1_000) for _ in range(3)]
    appender.sticky = appender.open[1]
    sticky = appender.append(b"v", None, None, None, None, 1.5)
    assert (sticky.batch, sticky.timestamp) == (appender.open[1], 1_500)
    keyed = appender.append(b"v", b"key", None, 7, None, 1.5)
    assert (keyed.batch, keyed.timestamp) == (appender.open[(murmur2(b"key") & 0x7FFFFFFF) % 3], 7)
    assert appender.append(b"v", b"key", 2, 7, None, 1.5).batch is appender.open[2]
    for value, key, partition in (("text", None, None), (b"v", "text", None), (b"v", None, 3), (b"v", None, -1)):
        assert appender.append(value, key, partition, None, None, 1.5) is None
    appender.ignore_keys = True
    assert appender.append(b"v", b"key", None, 7, None, 1.5).batch is appender.open[1]


def test_an_appender_leaves_the_sticky_batch_when_a_switch_is_due() -> None:
    appender = TopicAppender(Ticket, 1, False)
    appender.sticky = batch = Records(bytearray(1_000), 1_000)
    batch.switch_at = 100
    while appender.append(bytes(10), None, None, 1, None, 0.0) is not None:
        pass
    assert appender.sticky is None
    assert 100 <= batch.position < 120


def test_tickets_with_callbacks_are_kept_in_order() -> None:
    records = Records(bytearray(1_000), 1_000)
    for callback in ("a", None, "b"):
        ticket = Ticket()
        ticket.callback = callback
        records.put(0, None, b"v", NO_HEADERS, ticket)
    assert [(ticket.index, ticket.callback) for ticket in records.tickets or ()] == [(0, "a"), (2, "b")]


def test_rows_are_grouped_by_the_partition_of_their_key() -> None:
    keys = [b"a", b"b", b"", b"c", b"a", b"d"]
    ends, data = [0], b"".join(keys)
    for key in keys:
        ends.append(ends[-1] + len(key))
    view = memoryview(bytearray(4 * len(ends))).cast("i")
    for at, end in enumerate(ends):
        view[at] = end
    order, starts = (memoryview(bytearray(8 * size)).cast("q") for size in (len(keys), 5))
    valid = memoryview(bytes([0b111011]))  # the third is null
    group_rows(Column(view, memoryview(data), valid), 4, 3, order, starts)
    groups = [list(order[starts[at] : starts[at + 1]]) for at in range(4)]
    expected: list[list[int]] = [[], [], [], []]
    for row, key in enumerate(keys):
        expected[3 if row == 2 else (murmur2(key) & 0x7FFFFFFF) % 4].append(row)
    assert groups == expected


@pytest.mark.skipif(not COMPILED, reason="uncompiled, the caller holds a lock")
def test_threads_append_to_one_batch_without_a_lock() -> None:
    records = Records(bytearray(4_000_000), 4_000_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    indexes: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        for _ in range(5_000):
            ticket = Ticket()
            assert records.put(0, None, b"value", NO_HEADERS, ticket)
            mine.append(ticket.index)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in indexes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(index for mine in indexes for index in mine) == list(range(20_000))
    assert all(mine == sorted(mine) for mine in indexes)
