"""Conditions of a query that reduce what is read: on topic, partition, offset and timestamp.

Those on topic, partition and offset are applied exactly here, and Spark does not apply them again. A lower bound on the
timestamp only moves the start: the records before the first one of that time are older, but records after it may be
older too, so Spark applies it again. An upper bound on the timestamp gives no bound of offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What remains to be read after the conditions; None and the widest bounds where there is none. `end_offset` is
    exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _MAX_OFFSET
    start_timestamp_ms: int | None = None

    def includes(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def narrow(filters: Sequence[Filter]) -> tuple[Narrowing, list[Filter]]:
    """The conjunction of `filters`, and those of them that Spark must still apply."""
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start, end = 0, _MAX_OFFSET
    since: int | None = None
    left: list[Filter] = []
    for one in filters:
        column, values = _column_and_values(one)
        if column == "topic" and (names := _all(str, values)) is not None:
            topics = names if topics is None else topics & names
        elif column == "partition" and (numbers := _all(int, values)) is not None:
            partitions = numbers if partitions is None else partitions & numbers
        elif column == "offset" and (bounds := _offset_bounds(one)) is not None:
            start, end = max(start, bounds[0]), min(end, bounds[1])
        else:
            left.append(one)
            if column == "timestamp" and (moment := _lower_bound_ms(one)) is not None:
                since = moment if since is None else max(since, moment)
    return Narrowing(topics, partitions, start, end, since), left


def _column_and_values(one: Filter) -> tuple[str | None, tuple[object, ...] | None]:
    """The column of a condition on a single column, and its values where it is = or IN; else None."""
    match one:
        case EqualTo((column,), value):
            return column, (value,)
        case In((column,), values):
            return column, tuple(values)
        case GreaterThan((column,)) | GreaterThanOrEqual((column,)) | LessThan((column,)) | LessThanOrEqual((column,)):
            return column, None
    return None, None


def _all(kind: type[T], values: tuple[object, ...] | None) -> frozenset[T] | None:
    """The values if all are of this kind, else None. So Spark applies a comparison with null."""
    if values is None:
        return None
    found = frozenset(value for value in values if isinstance(value, kind))
    return found if len(found) == len(frozenset(values)) else None


def _offset_bounds(one: Filter) -> tuple[int, int] | None:
    match one:
        case EqualTo(_, int(value)):
            return value, value + 1
        case GreaterThan(_, int(value)):
            return value + 1, _MAX_OFFSET
        case GreaterThanOrEqual(_, int(value)):
            return value, _MAX_OFFSET
        case LessThan(_, int(value)):
            return 0, value
        case LessThanOrEqual(_, int(value)):
            return 0, value + 1
    return None


def _lower_bound_ms(one: Filter) -> int | None:
    match one:
        case EqualTo(_, datetime() as moment) | GreaterThan(_, datetime() as moment):
            pass
        case GreaterThanOrEqual(_, datetime() as moment):
            pass
        case _:
            return None
    if moment.tzinfo is None:
        return None
    since = (moment - _EPOCH) // _MILLISECOND
    return max(0, since)
