"""Options, conditions and offsets of logs to ranges and tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.offsets import list_offsets
from kalda.clientcore.administration import Outcomes, TargetKind
from kalda.protocol.messages.partitions import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kalda.spark.options import ReadOptions, TopicSubscription
from kalda.spark.partitions import Narrowing, OffsetRange, narrow, pack, split

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


MOMENT = datetime(2024, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
MOMENT_MS = 1704067200001


def test_conditions_on_topic_and_partition_are_applied_exactly() -> None:
    narrowing, left = narrow([In(("topic",), ("a", "b")), EqualTo(("topic",), "b"), EqualTo(("partition",), 3)])
    assert left == []
    assert narrowing.topics == {"b"}
    assert narrowing.includes("b", 3)
    assert not narrowing.includes("b", 2)
    assert not narrowing.includes("a", 3)


@pytest.mark.parametrize(
    ("condition", "start", "end"),
    [
        (EqualTo(("offset",), 7), 7, 8),
        (GreaterThan(("offset",), 7), 8, None),
        (GreaterThanOrEqual(("offset",), 7), 7, None),
        (LessThan(("offset",), 7), 0, 7),
        (LessThanOrEqual(("offset",), 7), 0, 8),
    ],
)
def test_bounds_of_offsets(condition: object, start: int, end: int | None) -> None:
    narrowing, left = narrow([condition])  # type: ignore[list-item]
    assert left == []
    assert narrowing.start_offset == start
    assert narrowing.end_offset == (Narrowing().end_offset if end is None else end)


def test_several_bounds_are_combined() -> None:
    narrowing, _ = narrow([GreaterThan(("offset",), 3), GreaterThan(("offset",), 1), LessThan(("offset",), 9)])
    assert (narrowing.start_offset, narrowing.end_offset) == (4, 9)


def test_a_lower_bound_on_the_timestamp_only_moves_the_start() -> None:
    """Timestamps need not ascend, so Spark applies the condition again."""
    conditions = [
        GreaterThan(("timestamp",), MOMENT),
        EqualTo(("timestamp",), MOMENT),
        LessThan(("timestamp",), MOMENT),
    ]
    narrowing, left = narrow(conditions)
    assert left == conditions
    assert narrowing == Narrowing(start_timestamp_ms=MOMENT_MS)
    narrowing, left = narrow(conditions[2:])
    assert narrowing == Narrowing()
    assert left == conditions[2:]


def test_other_conditions_are_left_to_spark() -> None:
    conditions = [
        EqualTo(("value",), b"x"),
        Not(EqualTo(("partition",), 1)),
        IsNotNull(("topic",)),
        EqualTo(("topic",), None),
        In(("partition",), (1, None)),
        EqualTo(("offset",), None),
        GreaterThan(("timestamp",), MOMENT.replace(tzinfo=None)),
    ]
    narrowing, left = narrow(conditions)
    assert narrowing == Narrowing()
    assert left == conditions


def response(*partitions: int) -> ListOffsetsResponse:
    """The offset of each partition is its number."""
    found = [ListOffsetsPartitionResponse(partition_index=each, offset=each) for each in partitions]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])


def targets(asks: Any) -> list[tuple[TargetKind, Any]]:
    return [(each.target.kind, each.target.key) for each in asks]


def test_a_request_for_each_leader_and_after_an_error_for_each_leader_by_metadata() -> None:
    partitions = [TopicPartition("t", number) for number in range(5)]
    leaders = {partitions[0]: 7, partitions[1]: 8, partitions[2]: 7, partitions[3]: -1}
    plan = list_offsets(dict.fromkeys(partitions, -1), read_committed=False, timeout_ms=1000, leaders=leaders)
    assert targets(next(plan)) == [(TargetKind.BROKER, 7), (TargetKind.BROKER, 8)]
    dead = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "it is not alive")
    asks = plan.send([dead, response(1)])
    assert targets(asks) == [(TargetKind.LEADER, partitions[number]) for number in (0, 2, 3, 4)]
    assert not any(each.request for each in asks)
    asks = plan.send([9, 8, 9, 9])
    assert targets(asks) == [(TargetKind.NODE_THAT_LEADS, 9), (TargetKind.NODE_THAT_LEADS, 8)]
    with pytest.raises(StopIteration) as end:
        plan.send([response(0, 3, 4), response(2)])
    found = end.value.value.succeeded
    assert {each.partition: at.offset for each, at in found.items()} == {number: number for number in range(5)}


def test_what_has_succeeded_is_found_out_once_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a pass over all of them: ten thousand passes over ten thousand partitions take a quarter of a minute."""
    passes = []
    whole = Outcomes.succeeded.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Outcomes, "succeeded", property(lambda self: passes.append(len(self)) or whole(self)))
    partitions = [TopicPartition("t", number) for number in range(10)]
    leaders = dict.fromkeys(partitions, 7)
    plan = list_offsets(dict.fromkeys(partitions, -1), read_committed=False, timeout_ms=1000, leaders=leaders)
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([response(*range(10))])
    assert (passes, len(end.value.value)) == ([10], 10)
