"""Batches of a streaming query: their ends, their ranges, and what is data loss."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import Outcomes
from kalda.spark.options import ReadOptions, TopicSubscription, read_options
from kalda.spark.partitions import OffsetRange, StreamOffset, from_json, to_json
from kalda.spark.source import (
    BatchBounds,
    StreamDataLoss,
    latest_offset,
    ranges_between,
    ranges_of_batch,
    with_new,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def options(**more: str) -> ReadOptions:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a,b", **more}
    return read_options(given, is_streaming=True)


class Logs:
    """Logs with given ends; `requests` counts what a planner has requested."""

    def __init__(
        self, *ends: Mapping[TopicPartition, tuple[int, int]], topic_ids: Mapping[str, str] | None = None
    ) -> None:
        self.ends = list(ends)
        self.topic_ids = topic_ids or {}
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
    text = json.dumps(to_json(StreamOffset(position, {"b": "y", "a": "x", "other": "z"})))
    partitions = {"a": {"0": 0}, "b": {"9": 2**62, "10": 5}}
    assert text == json.dumps(partitions | {"topic ids": {"a": "x", "b": "y"}})
    assert from_json(json.loads(text)) == StreamOffset(position, {"a": "x", "b": "y"})
    assert from_json(partitions) == StreamOffset(position, {})  # of brokers or of a version without ids
    assert to_json(StreamOffset(position, {})) == partitions
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
        (
            {A0: (0, 5)},
            {A0: 0, TopicPartition("c", 0): 4},
            {A0: 5},
            "the query has read c-0, which option subscribe does not name any more",
            [OffsetRange("a", 0, 0, 5)],
        ),
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
    known = StreamOffset({A0: 7}, {})
    assert latest_offset(Logs(stale, good), options(), known, paused.append) == StreamOffset({A0: 9}, {})
    assert paused == [10]
    given = options(**{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "5"})
    logs = Logs(stale)
    assert latest_offset(logs, given, known, paused.append) == StreamOffset({A0: 4}, {})
    assert (paused, logs.requests) == ([10, 5, 5], 3)


OLD, NEW = {"a": "old"}, {"a": "new"}
REPLACED = "topic a was deleted and created again: the query has read the one with the id old, .* with the id new"


@pytest.mark.parametrize("length", [3, 7, 70])
@pytest.mark.parametrize(
    ("start_ids", "end_ids", "is_planned_anew", "is_read"),
    [
        (OLD, NEW, False, True),  # all batches had ended: the next one reads the new topic
        (OLD, NEW, True, True),  # that one was planned, and has not ended
        (OLD, OLD, True, False),  # a batch of the old topic was planned, and has not ended
        (NEW, OLD, True, False),  # it was the query's first one, whose start is not in the checkpoint
    ],
)
def test_a_topic_that_was_made_anew_is_noticed_in_every_state_of_a_stopped_query(
    length: int, start_ids: dict[str, str], end_ids: dict[str, str], is_planned_anew: bool, is_read: bool
) -> None:
    """Whether the new topic has fewer records, as many or more than were read of the old one."""
    logs = Logs({A0: (0, length)}, topic_ids=NEW)
    start = StreamOffset({A0: 0 if start_ids == NEW else 5, A1: 1}, start_ids)
    end = StreamOffset({A0: length if end_ids == NEW else 7}, end_ids)
    if end_ids == OLD:
        end.position[A1] = 2
    with pytest.raises(StreamDataLoss, match=REPLACED):
        ranges_of_batch(logs, options(), start, end, is_planned_anew=is_planned_anew)
    lenient = options(failOnDataLoss="false")
    found = ranges_of_batch(logs, lenient, start, end, is_planned_anew=is_planned_anew)
    assert found == ([OffsetRange("a", 0, 0, length)] if is_read else [])


def test_offsets_without_ids_continue_whatever_the_topic_has() -> None:
    logs = Logs({A0: (0, 9)}, topic_ids=NEW)
    start, end = StreamOffset({A0: 5}, {}), StreamOffset({A0: 7}, {})
    expected = [OffsetRange("a", 0, 5, 7)]
    assert ranges_of_batch(logs, options(), start, end, is_planned_anew=True) == expected
    assert ranges_of_batch(logs, options(), start, end._replace(ids=NEW), is_planned_anew=False) == expected


def test_the_end_of_a_new_topic_is_not_below_what_was_read_of_the_old_one() -> None:
    paused: list[int] = []
    logs = Logs({A0: (0, 4)}, topic_ids=NEW)
    found = latest_offset(logs, options(), StreamOffset({A0: 7}, OLD), paused.append)
    assert (found, paused) == (StreamOffset({A0: 4}, NEW), [])


def test_a_frame_of_a_topic_that_does_not_exist_is_refused_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = pytest.importorskip("kalda.spark.source")
    asked: list[bool] = []

    class NoTopic(Logs):
        def partitions(self, subscription: TopicSubscription, *, missing_is_error: bool) -> list[TopicPartition]:
            asked.append(missing_is_error)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic a")

    monkeypatch.setattr(source, "admin", lambda _: NoTopic({}))
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
    assert source.KaldaSource(given).schema() == source.COLUMNS  # the default
    with pytest.raises(ApiError, match="topic a"):
        source.KaldaSource(given | {"kalda.check.topics": "true"}).schema()
    assert asked == [True]


def test_the_end_of_a_batch_is_committed_to_a_group_and_a_failure_ends_no_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = pytest.importorskip("kalda.spark.source")
    taken: list[tuple[str, dict[TopicPartition, int]]] = []
    errors: dict[TopicPartition, ApiError] = {}

    class Groups(Logs):
        def alter_group_offsets(self, group: str, offsets: dict[TopicPartition, int]) -> Outcomes[TopicPartition, None]:
            taken.append((group, offsets))
            return Outcomes(errors)

    monkeypatch.setattr(source, "admin", lambda _: Groups({A0: (0, 12)}))
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
    everything = source.ReadAllAvailable()
    source.KaldaSource(given).streamReader(source.COLUMNS).latestOffset({"a": {"0": 7}}, everything)
    assert taken == []
    stream = source.KaldaSource(given | {"kalda.commit.group": "lag"}).streamReader(source.COLUMNS)
    for _ in range(2):
        assert stream.latestOffset({"a": {"0": 7}}, everything) == {"a": {"0": 12}}
    assert taken == [("lag", {A0: 7})], "a batch is committed once"
    assert caplog.text == ""
    errors[A0] = ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members")
    assert stream.latestOffset({"a": {"0": 8}}, everything) == {"a": {"0": 12}}
    assert "the group lag has not got the query's offsets: " in caplog.text
    assert "the group has members" in caplog.text


def test_batches_of_a_new_topic_are_limited_from_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    source = pytest.importorskip("kalda.spark.source")
    logs = Logs({A0: (0, 12)}, topic_ids=NEW)
    monkeypatch.setattr(source, "admin", lambda _: logs)
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingOffsets": "earliest"}
    stream = source.KaldaSource(given | {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "10"}).streamReader(
        source.COLUMNS
    )
    start = {"a": {"0": 500}, "topic ids": OLD}
    end = stream.latestOffset(start, source.ReadMaxRows(10))
    assert end == {"a": {"0": 10}, "topic ids": NEW}
    assert [each.value for each in stream.partitions(start, end)] == [(("a", 0, 0, 10),)]


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
