"""Which fetcher fetches which partition."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartitionData,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kalda.replication import replica_fetcher
from kalda.replication.gauges import lag_sensors
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher, ReplicaFetchers


def partition(index: int, leader_id: int = 1) -> Any:
    return SimpleNamespace(
        topic_partition=TopicPartition("t", index),
        topic_id=Uuid(bytes(16)),
        leader_id=leader_id,
        leader_epoch=0,
        on_flushed=None,
        log=SimpleNamespace(cold=False),
    )


def test_partitions_are_spread_over_more_or_fewer_fetchers() -> None:
    started: list[ReplicaFetcher] = []
    fetchers = ReplicaFetchers(FetcherConfig(7, "cluster"), lambda: 1, started.append)
    followed = [partition(index) for index in range(12)]
    for each in followed:
        fetchers.follow(each)
    assert [len(fetcher) for fetcher in started] == [12]
    fetchers.resize(3)
    assert Counter(len(fetcher) for fetcher in started) == {4: 3}
    fetchers.resize(1)
    assert sorted(len(fetcher) for fetcher in started) == [0, 0, 12]
    for each in followed:
        fetchers.stop(each)
    assert sum(len(fetcher) for fetcher in started) == 0


def test_the_same_number_moves_nothing() -> None:
    started: list[ReplicaFetcher] = []
    fetchers = ReplicaFetchers(FetcherConfig(7, "cluster", fetchers_a_leader=2), lambda: 1, started.append)
    fetchers.follow(partition(0))
    fetchers.resize(2)
    assert sum(len(fetcher) for fetcher in started) == 1


def test_a_fetch_does_not_wait_long_without_a_partition_that_is_being_flushed() -> None:
    started: list[ReplicaFetcher] = []
    fetchers = ReplicaFetchers(FetcherConfig(7, "cluster", wait_max_ms=500), lambda: 1, started.append)
    synced, syncing = partition(0), partition(1)
    for each in (synced, syncing):
        each.may_fetch = True
        each.log = SimpleNamespace(
            cold=False, truncation=None, log_end_offset=5, log_start_offset=0, leader_epochs=SimpleNamespace(latest=0)
        )
        fetchers.follow(each)
    waits = []
    for ready in (True, False):
        syncing.may_fetch = ready
        request = started[0].next_request(0)
        assert isinstance(request, FetchRequest)
        waits.append(request.max_wait_ms)
        started[0].on_interrupted()
    assert waits[0] == 500
    assert waits[1] < 50


def test_the_largest_lag_is_that_of_the_last_responses() -> None:
    started: list[ReplicaFetcher] = []
    fetchers = ReplicaFetchers(FetcherConfig(7, "cluster"), lambda: 1, started.append)
    assert fetchers.max_lag == 0, "nothing is fetched"
    for index in range(2):
        followed = partition(index)
        followed.may_fetch, followed.append_as_follower = True, lambda *_: None
        followed.log = SimpleNamespace(
            cold=False, truncation=None, log_end_offset=5, log_start_offset=0, leader_epochs=SimpleNamespace(latest=0)
        )
        fetchers.follow(followed)
    for high_watermarks, lag in (((5, 12), 7), ((9, 5), 4), ((5, 4), 0)):
        assert started[0].next_request(0) is not None
        data = [
            FetchResponsePartitionData(partition_index=index, high_watermark=each)
            for index, each in enumerate(high_watermarks)
        ]
        topic = FetchableTopicResponse(topic_id=Uuid(bytes(16)), partitions=data)
        started[0].on_response(FetchResponse(responses=[topic]), 0)
        assert fetchers.max_lag == lag
        lags = {name.tags[2]: sensor.measure(0) for name, sensor in lag_sensors(fetchers.lags())}
        assert lags == {("partition", str(at)): max(0, each - 5) for at, each in enumerate(high_watermarks)}


def test_an_unknown_error_code_is_followed_by_a_pause() -> None:
    started: list[ReplicaFetcher] = []
    fetchers = ReplicaFetchers(FetcherConfig(7, "cluster"), lambda: 1, started.append)
    followed = partition(0)
    followed.may_fetch = True
    followed.log = SimpleNamespace(
        cold=False, truncation=None, log_end_offset=5, log_start_offset=0, leader_epochs=SimpleNamespace(latest=0)
    )
    fetchers.follow(followed)
    assert started[0].next_request(0) is not None
    started[0].on_response(FetchResponse(error_code=12_345), 0)
    assert started[0].next_request(0) is None
    assert started[0].next_request(1_000) is not None


class FollowedWorld:
    """A fetcher with one partition whose log ends at 5."""

    def __init__(self) -> None:
        self.fetcher = ReplicaFetcher(1, FetcherConfig(7, "cluster"), lambda: 1)
        self.partition = partition(0)
        self.partition.may_fetch = True
        self.partition.log = SimpleNamespace(
            cold=False,
            offline=False,
            truncation=None,
            log_end_offset=5,
            log_start_offset=0,
            high_watermark=3,
            leader_epochs=SimpleNamespace(latest=0),
            end_offset_for_epoch=lambda epoch: (epoch, 5),
        )
        self.failure: Exception | None = None
        self.partition.append_as_follower = self._append
        self.fetcher.add(self.partition)

    def _append(self, *_: object) -> None:
        if self.failure is not None:
            raise self.failure

    def answered(self, now_ms: int, **fields: Any) -> None:
        """What the leader answers to the fetch that is due now."""
        assert self.fetcher.next_request(now_ms) is not None
        data = FetchResponsePartitionData(partition_index=0, high_watermark=5, **fields)
        topic = FetchableTopicResponse(topic_id=Uuid(bytes(16)), partitions=[data])
        self.fetcher.on_response(FetchResponse(responses=[topic]), now_ms)


@pytest.mark.parametrize("kind", ["diverging", "corrupt", "unopenable"])
def test_a_partition_that_is_given_up_is_counted_said_once_and_tried_again(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log stays as it is. The same answer may follow, and the failure may have passed."""

    def damaged(*_: object) -> None:
        raise CorruptRecord("damaged")

    world = FollowedWorld()
    fields: dict[str, Any] = {"records": b""}
    if kind == "diverging":
        monkeypatch.setattr(replica_fetcher, "begin_truncation", damaged)
        fields = {"diverging_epoch": FetchResponseEpochEndOffset(epoch=0, end_offset=4)}
    elif kind == "corrupt":
        world.failure = CorruptRecord("damaged")
    else:
        world.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files")
    for now_ms in (0, 10_000, 20_000):
        world.answered(now_ms, **fields)
        assert world.fetcher.failed == 1
        assert world.fetcher.next_request(now_ms) is None, "a pause comes first"
    said = [record for record in caplog.records if "is given up, and tried again later" in record.message]
    assert [record.levelname for record in said] == ["WARNING"]
    world.failure = None
    world.answered(30_000, records=b"")
    assert world.fetcher.failed == 0
    assert world.fetcher.next_request(30_000) is not None


def test_a_fenced_leader_epoch_is_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    """As in each change of a leader: the metadata follows."""
    world = FollowedWorld()
    world.answered(0, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    assert world.fetcher.next_request(0) is None
    assert world.fetcher.next_request(10_000) is not None
    assert (world.fetcher.failed, caplog.messages) == (0, [])


def test_a_partition_whose_disk_has_failed_is_counted_until_it_is_removed() -> None:
    world = FollowedWorld()
    world.failure, world.partition.log.offline = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "disk"), True
    world.answered(0, records=b"")
    assert world.fetcher.next_request(10_000) is None
    assert world.fetcher.failed == 1
    world.fetcher.remove(world.partition)
    assert world.fetcher.failed == 0


@pytest.mark.parametrize("leader_start", [0, 5])
def test_a_fetch_out_of_range_though_the_leader_has_that_offset_is_followed_by_a_pause(leader_start: int) -> None:
    """As where it has no epoch at or above the follower's: the same would follow."""
    fetcher = ReplicaFetcher(1, FetcherConfig(7, "cluster"), lambda: 1)
    followed = partition(0)
    followed.may_fetch = True
    epochs = SimpleNamespace(latest=0)
    followed.log = SimpleNamespace(
        cold=False, truncation=None, log_end_offset=5, log_start_offset=0, leader_epochs=epochs
    )
    fetcher.add(followed)
    assert isinstance(fetcher.next_request(0), FetchRequest)
    data = [FetchResponsePartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)]
    topic = FetchableTopicResponse(topic_id=Uuid(bytes(16)), partitions=data)
    fetcher.on_response(FetchResponse(responses=[topic]), 0)
    for offset in (9, leader_start):
        assert isinstance(fetcher.next_request(0), ListOffsetsRequest)
        answer = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        fetcher.on_response(ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])]), 0)
    assert fetcher.next_request(0) is None
    assert isinstance(fetcher.next_request(1_000), FetchRequest)
