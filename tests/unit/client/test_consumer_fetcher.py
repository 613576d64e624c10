"""The fetcher of consumers against a scripted leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition
from kalda.client.cluster_client import ClusterClient
from kalda.client.consumer_fetcher import ConsumerFetcher, OutOfRange, Slice
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kalda.records.builder import build_batch

PER_BATCH = 5


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.address, timeout_ms=5_000) as client:
        yield client


class Log:
    """A scripted broker's log from `start` to `end`, the same for all partitions, in batches of five records.

    `failures` are the errors of the next responses; None closes the connection. `cut` bytes are missing at the end of
    each response.
    """

    def __init__(self, broker: ScriptedBroker, start: int = 0, end: int = 20) -> None:
        self.start, self.end = start, end
        self.failures: list[ErrorCode | None] = []
        self.aborted: list[AbortedTransaction] = []
        self.batches_per_response = 1
        self.cut = 0
        broker.answers[ApiKey.FETCH] = self.fetch
        broker.answers[ApiKey.LIST_OFFSETS] = self.list_offsets

    def fetch(self, request: Any, version: int) -> Any:
        if self.failures:
            code = self.failures.pop(0)
            if code is None:
                return None
        else:
            code = ErrorCode.NONE
        topics = [
            FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=[self.read(p, code) for p in topic.partitions]
            )
            for topic in request.topics
        ]
        return FetchResponse(responses=topics)

    def read(self, partition: Any, code: ErrorCode) -> FetchResponsePartitionData:
        if not self.start <= partition.fetch_offset <= self.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if code:
            return FetchResponsePartitionData(partition_index=partition.partition, error_code=code, high_watermark=-1)
        first = partition.fetch_offset - partition.fetch_offset % PER_BATCH
        last = min(self.end, first + PER_BATCH * self.batches_per_response)
        records = b"".join(bytes(self.batch(base)) for base in range(first, last, PER_BATCH))
        return FetchResponsePartitionData(
            partition_index=partition.partition,
            high_watermark=self.end,
            aborted_transactions=self.aborted,
            records=records[: len(records) - self.cut],
        )

    def batch(self, base: int) -> bytearray:
        rows = [(1_000, b"k", b"%d" % (base + i), ()) for i in range(PER_BATCH)]
        return build_batch(
            rows, base_offset=base, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=base == 5
        )

    def list_offsets(self, request: Any, version: int) -> ListOffsetsResponse:
        topic = request.topics[0]
        partitions = [
            ListOffsetsPartitionResponse(
                partition_index=p.partition_index, offset=self.start if p.timestamp == -2 else self.end
            )
            for p in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=partitions)])


def offsets(fetcher: ConsumerFetcher) -> list[tuple[int, int]]:
    with fetcher:
        return sorted((fetched.partition, record.offset) for fetched in fetcher for record in fetched.records())


@pytest.mark.parametrize("batches_per_response", [1, 2, 100])
def test_only_records_of_the_slices_are_returned(
    broker: ScriptedBroker, cluster: ClusterClient, batches_per_response: int
) -> None:
    Log(broker).batches_per_response = batches_per_response
    found = offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 3, 12), Slice("logs", 1, 0, 20)]))
    assert found == [*((0, offset) for offset in range(3, 12)), *((1, offset) for offset in range(20))]


def test_batches_wholly_beyond_the_end_are_not_returned(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker).batches_per_response = 4
    with ConsumerFetcher(cluster, [Slice("logs", 0, 0, 7)]) as fetcher:
        (fetched,) = fetcher
    assert len(fetched.buffer) == 2 * len(Log(broker).batch(0))
    assert (fetched.next_offset, fetched.start, fetched.end) == (10, 0, 7)


def test_an_empty_slice_sends_no_request(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker)
    assert offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 9, 9)])) == []
    assert not broker.received


def test_a_batch_that_is_cut_off_is_fetched_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    log = Log(broker)
    log.batches_per_response, log.cut = 3, 10
    assert offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 10)])) == [(0, offset) for offset in range(10)]


@pytest.mark.parametrize(
    "failure",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID, None],
    ids=str,
)
def test_a_leader_that_moves_is_looked_up_again(
    broker: ScriptedBroker, cluster: ClusterClient, failure: ErrorCode | None
) -> None:
    log = Log(broker)
    log.failures = [ErrorCode.NONE, failure]
    assert offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 20)])) == [(0, offset) for offset in range(20)]
    assert len(broker.requests(ApiKey.METADATA)) >= 2


def test_a_partition_without_a_leader_does_not_delay_the_others(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    """Partition 1 gets a leader only when partition 0 has been read."""
    Log(broker)
    broker.topics["logs"] = [1, -1]
    found: list[tuple[int, int]] = []
    with ConsumerFetcher(cluster, [Slice("logs", 1, 0, 5), Slice("logs", 0, 0, 10)]) as fetcher:
        for fetched in fetcher:
            found += [(fetched.partition, record.offset) for record in fetched.records()]
            if (0, 9) in found:
                broker.topics["logs"] = [1, 1]
    assert found == [*((0, offset) for offset in range(10)), *((1, offset) for offset in range(5))]


def test_a_partition_that_never_has_a_leader_fails_at_the_deadline(broker: ScriptedBroker) -> None:
    Log(broker)
    broker.topics["logs"] = [1, -1]
    with ClusterClient(broker.address, timeout_ms=300) as cluster, pytest.raises(ApiError, match="no leader"):
        offsets(ConsumerFetcher(cluster, [Slice("logs", 1, 0, 5)]))


def test_an_error_that_is_not_retriable_is_raised(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker).failures = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(ApiError, match="logs-0") as raised:
        offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 20)]))
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_requests_use_topic_ids_if_the_broker_has_them(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker)
    offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 5)]))
    broker.topic_id = ZERO_UUID
    cluster.forget(["logs"])
    offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 5)]))
    versions = [version for key, version, _ in broker.received if key is ApiKey.FETCH]
    assert versions[0] >= 13
    assert versions[-1] == 12


def test_the_error_for_an_offset_out_of_range_has_the_range(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker, start=10)
    with pytest.raises(ApiError, match="offset 3 is not there; it has 10 to 20") as raised:
        offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 3, 20)]))
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_after_out_of_range_reading_continues_at_an_end(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker, start=10)
    resets: list[tuple[TopicPartition, int, int]] = []
    fetcher = ConsumerFetcher(
        cluster,
        [Slice("logs", 0, 3, 20)],
        on_out_of_range=OutOfRange.EARLIEST,
        on_reset=lambda partition, requested, offset: resets.append((partition, requested, offset)),
    )
    assert offsets(fetcher) == [(0, offset) for offset in range(10, 20)]
    assert resets == [(TopicPartition("logs", 0), 3, 10)]


def test_an_end_that_the_log_does_not_reach_is_an_error(broker: ScriptedBroker) -> None:
    Log(broker)
    with (
        ClusterClient(broker.address, timeout_ms=300) as cluster,
        pytest.raises(ApiError, match="nothing to read beyond 20"),
    ):
        offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 99)], max_wait_ms=50))


def test_poll_without_new_records_returns_none(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    log = Log(broker, end=5)
    with ConsumerFetcher(cluster, [Slice("logs", 0, 0)], max_wait_ms=10) as fetcher:
        assert not fetcher.at_end
        assert fetcher.poll(5_000) is not None
        assert fetcher.at_end
        assert fetcher.poll(0) is None
        log.end = 10
        more = fetcher.poll(5_000)
        assert more is not None
        assert (more.start, more.next_offset) == (5, 10)


def test_aborted_batches_are_not_returned(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    log = Log(broker)
    log.aborted = [AbortedTransaction(producer_id=7, first_offset=5)]
    found = offsets(ConsumerFetcher(cluster, [Slice("logs", 0, 0, 20)], read_committed=True))
    assert found == [(0, offset) for offset in range(20) if not 5 <= offset < 10]
    assert all(request.isolation_level == 1 for request in broker.requests(ApiKey.FETCH))
