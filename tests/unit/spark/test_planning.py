"""Cutting ranges of offsets into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kalda.spark.planning import OffsetRange, split

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
