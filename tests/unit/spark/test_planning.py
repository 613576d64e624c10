"""Cutting ranges of offsets into tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.spark.options import ReadOptions, TopicSubscription
from kalda.spark.partitions import OffsetRange, pack, split

RANGES = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(1, 10**9)).map(lambda one: OffsetRange("t", 0, one[0], sum(one))),
    max_size=5,
)


def test_one_task_a_partition() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 6)]
    assert split(ranges, None) == ranges
    assert split(ranges, 2) == ranges


def test_the_largest_is_cut_first() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 100, 140)]
    assert split(ranges, 4) == [
        OffsetRange("t", 0, 0, 10),
        OffsetRange("t", 1, 100, 113),
        OffsetRange("t", 1, 113, 126),
        OffsetRange("t", 1, 126, 140),
    ]


def test_no_task_is_empty() -> None:
    assert split([OffsetRange("t", 0, 7, 9)], 5) == [OffsetRange("t", 0, 7, 8), OffsetRange("t", 0, 8, 9)]
    assert split([], 5) == []


def test_no_task_is_larger_than_the_maximum() -> None:
    assert [piece.size for piece in split([OffsetRange("t", 0, 0, 25)], None, 10)] == [8, 8, 9]


@given(RANGES, st.integers(1, 40), st.none() | st.integers(10**8, 10**9))
def test_pieces_cover_what_was_cut(ranges: list[OffsetRange], wanted: int, largest: int | None) -> None:
    pieces = split(ranges, wanted, largest)
    assert all(piece.size > 0 for piece in pieces)
    assert largest is None or all(piece.size <= largest for piece in pieces)
    assert len(pieces) >= min(wanted, sum(one.size for one in ranges))
    joined: list[OffsetRange] = []
    for one in ranges:
        position = one.start
        while position < one.end:
            piece = pieces.pop(0)
            assert piece.start == position
            position = piece.end
        joined.append(one._replace(end=position))
    assert joined == ranges
    assert pieces == []


def test_small_ranges_share_tasks_and_large_ones_do_not() -> None:
    ranges = [OffsetRange("t", partition, 0, 10) for partition in range(100)]
    tasks = pack(ranges, ReadOptions({}, TopicSubscription(topics=("t",))))
    assert [one for task in tasks for one in task] == ranges
    assert len(tasks) == 9  # 1,000 offsets in eight tasks are 125 each, and twelve ranges fit in
    large = [OffsetRange("t", partition, 0, 1_000_000) for partition in range(4)]
    assert pack(large, ReadOptions({}, TopicSubscription(topics=("t",)))) == [(one,) for one in large]
    many = [OffsetRange("t", partition, 0, 100) for partition in range(10_000)]
    assert len(pack(many, ReadOptions({}, TopicSubscription(topics=("t",))))) == 100


@pytest.mark.parametrize(
    ("options", "least"),
    [({"min_partitions": 37}, 37), ({"task_offsets": 0}, 100), ({"max_records_per_partition": 20}, 50)],
)
def test_options_bound_how_many_ranges_share_a_task(options: dict[str, Any], least: int) -> None:
    ranges = [OffsetRange("t", partition, 0, 10) for partition in range(100)]
    tasks = pack(ranges, ReadOptions({}, TopicSubscription(topics=("t",)), **options))
    assert least <= len(tasks) <= 100
    assert pack([], ReadOptions({}, TopicSubscription(topics=("t",)), **options)) == []
