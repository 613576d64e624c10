"""Conditions of queries: those that reduce what is read, and those that Spark must still apply."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
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

from kalda.spark.filters import Narrowing, narrow

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
