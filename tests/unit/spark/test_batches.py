"""Batches of a streaming query: their ends, their ranges, and what is data loss."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kalda.base.ids import TopicPartition
from kalda.spark.options import ReadOptions, TopicSubscription, read_options
from kalda.spark.planning import OffsetRange
from kalda.spark.source import (
    BatchBounds,
    StreamDataLoss,
    from_json,
    latest_position,
    ranges_between,
    to_json,
    with_new,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options(**more: str) -> ReadOptions:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a,b", **more}
    return read_options(given, is_streaming=True)


class Logs:
    """Logs with given ends; `requests` counts what a planner has requested."""

    def __init__(self, *ends: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.ends = list(ends)
        self.requests = 0

    @property
    def now(self) -> Mapping[TopicPartition, tuple[int, int]]:
        return self.ends[0]

    def partitions(self, subscription: TopicSubscription, *, missing_is_error: bool) -> list[TopicPartition]:
        return sorted(self.now)

    def offsets_at(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        raise AssertionError("no times are looked up")

    def earliest(
        self, partitions: Iterable[TopicPartition], *, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        self.requests += 1
        return {one: self.now[one][0] for one in partitions if one in self.now}

    def latest(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        self.requests += 1
        found = {one: self.now[one][1] for one in partitions}
        if len(self.ends) > 1:
            self.ends.pop(0)
        return found


def test_equal_positions_are_equal_texts_and_come_back() -> None:
    position = {TopicPartition("b", 10): 5, TopicPartition("b", 9): 2**62, A0: 0}
    text = json.dumps(to_json(position))
    assert text == json.dumps({"a": {"0": 0}, "b": {"9": 2**62, "10": 5}})
    assert from_json(json.loads(text)) == position
    with pytest.raises(ValueError, match="not an offset of topics"):
        from_json({"logOffset": 5})  # type: ignore[dict-item]


def test_a_batch_is_shared_among_partitions_by_what_they_have() -> None:
    rate = BatchBounds(options(maxOffsetsPerTrigger="10"), lambda: 0)
    start, latest = {A0: 0, A1: 0, B0: 7}, {A0: 9_000, A1: 10, B0: 7}
    assert rate.limited(start, latest) == {A0: 9, A1: 1, B0: 7}
    assert rate.limited({A0: 0, A1: 4, B0: 7}, {A0: 3, A1: 6, B0: 7}) == {A0: 3, A1: 6, B0: 7}
    assert rate.limited(latest, latest) == latest


def test_every_batch_but_an_empty_one_advances() -> None:
    rate = BatchBounds(options(maxOffsetsPerTrigger="1"), lambda: 0)
    position, latest = {A0: 0, A1: 0}, {A0: 3, A1: 50}
    batches = 0
    while position != latest:
        position = rate.limited(position, latest)
        batches += 1
    assert batches <= 53


def test_a_small_batch_is_delayed_until_the_longest_delay() -> None:
    now = [1_000]
    rate = BatchBounds(options(minOffsetsPerTrigger="10", maxTriggerDelay="60s"), lambda: now[0])
    assert not rate.is_delayed({A0: 0}, {A0: 1})  # the first batch of a query comes at once
    assert rate.is_delayed({A0: 1}, {A0: 10})
    assert not rate.is_delayed({A0: 1}, {A0: 11})
    now[0] += 59_999
    assert rate.is_delayed({A0: 11}, {A0: 12})
    now[0] += 1
    assert not rate.is_delayed({A0: 11}, {A0: 12})


def test_new_partitions_are_read_from_their_first_offset() -> None:
    logs = Logs({A0: (0, 5), A1: (0, 3)})
    assert ranges_between(logs, options(), {A0: 2}, {A0: 5, A1: 3}) == [
        OffsetRange("a", 0, 2, 5),
        OffsetRange("a", 1, 0, 3),
    ]
    assert with_new(logs, {A0: 2}, {A0: 5, A1: 3}) == {A0: 2, A1: 0}


def test_a_batch_of_known_partitions_requests_nothing() -> None:
    logs = Logs({A0: (0, 5)})
    assert ranges_between(logs, options(), {A0: 2}, {A0: 5}) == [OffsetRange("a", 0, 2, 5)]
    assert ranges_between(logs, options(), {A0: 5}, {A0: 5}) == []
    assert logs.requests == 0


@pytest.mark.parametrize(
    ("logs", "start", "end", "words", "left"),
    [
        ({A0: (0, 5)}, {A0: 0, A1: 4}, {A0: 5}, "a-1 do not exist any more", [OffsetRange("a", 0, 0, 5)]),
        ({A0: (3, 5)}, {}, {A0: 5}, "a-0 was added, and its log starts at offset 3", [OffsetRange("a", 0, 3, 5)]),
        ({}, {}, {A0: 5}, "a-0 were added and deleted", []),
        ({A0: (0, 5)}, {A0: 9}, {A0: 5}, "a-0 was read up to offset 9, and its log now ends at 5", []),
    ],
)
def test_data_loss_fails_the_query_or_is_passed_over(
    logs: dict[TopicPartition, tuple[int, int]],
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    words: str,
    left: list[OffsetRange],
) -> None:
    with pytest.raises(StreamDataLoss, match=f"{words}.*set option failOnDataLoss to false"):
        ranges_between(Logs(logs), options(), start, end)
    assert ranges_between(Logs(logs), options(failOnDataLoss="false"), start, end) == left


def test_ends_below_what_was_read_are_requested_again_for_a_bounded_number_of_times() -> None:
    paused: list[int] = []
    stale, good = {A0: (0, 4)}, {A0: (0, 9)}
    assert latest_position(Logs(stale, good), options(), {A0: 7}, paused.append) == {A0: 9}
    assert paused == [10]
    given = options(**{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "5"})
    logs = Logs(stale)
    assert latest_position(logs, given, {A0: 7}, paused.append) == {A0: 4}
    assert (paused, logs.requests) == ([10, 5, 5], 3)


def test_a_stream_from_the_ends_of_the_logs_keeps_where_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls `initialOffset` more than once, and writes only ends of batches to the checkpoint."""
    source = pytest.importorskip("kalda.spark.source")
    logs = Logs(*({A0: (0, end)} for end in (10, 20, 30, 40, 50, 60)))
    monkeypatch.setattr(source, "admin", lambda _: logs)
    every = source.ReadAllAvailable()

    def made() -> Any:
        return source.KaldaSource({"kafka.bootstrap.servers": "h:1", "subscribe": "a"}).streamReader(source.COLUMNS)

    first = made()
    start = first.initialOffset()
    end = first.latestOffset(start, every)
    assert start == first.initialOffset() == end == {"a": {"0": 10}}
    assert first.partitions(start, end) == []
    assert first.latestOffset(end, every) == {"a": {"0": 20}}
    again = made()  # restarted before the first batch has ended
    assert again.partitions(again.initialOffset(), end) == []
    then = again.latestOffset(end, every)
    assert then == {"a": {"0": 40}}
    assert [each.value for each in again.partitions(end, then)] == [(("a", 0, 10, 40),)]
    short = made()
    short.prepareForTriggerAvailableNow()
    start = short.initialOffset()  # the log has grown meanwhile
    assert short.latestOffset(start, every) == short.latestOffset(start, every) == start == {"a": {"0": 60}}
