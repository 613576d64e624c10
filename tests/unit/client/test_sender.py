"""The sender against a scripted leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.errors import ApiError, ErrorCode
from kalda.client.cluster_client import ClusterClient
from kalda.client.sender import Delivery, Sender
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import InitProducerIdResponse
from kalda.records.batch import BatchHeader, check_crc, read_header
from kalda.records.builder import build_batch


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.address, timeout_ms=5_000) as client:
        yield client


class Log:
    """The batches written by partition, and `failures` for the next requests; None closes the connection."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.written: dict[int, list[BatchHeader]] = {}
        self.failures: list[ErrorCode | None] = []
        broker.answers[ApiKey.PRODUCE] = self.produce
        broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, version: InitProducerIdResponse(
            producer_id=77, producer_epoch=3
        )

    def produce(self, request: Any, version: int) -> Any:
        code = self.failures.pop(0) if self.failures else ErrorCode.NONE
        if code is None:
            return None
        topics = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                header = read_header(data.records)
                check_crc(data.records, 0, header)
                log = self.written.setdefault(data.index, [])
                offset = sum(one.records_count for one in log)
                if not code:
                    log.append(header)
                answers.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        return ProduceResponse(responses=topics)


def batch(count: int) -> bytearray:
    return build_batch([(count, None, b"x", ())] * count)


@pytest.mark.parametrize(
    "failures", [[], [None], [ErrorCode.NOT_LEADER_OR_FOLLOWER, None, ErrorCode.NOT_ENOUGH_REPLICAS]], ids=str
)
def test_order_holds_through_failures(
    broker: ScriptedBroker, cluster: ClusterClient, failures: list[ErrorCode | None]
) -> None:
    log = Log(broker)
    log.failures = failures
    delivered: list[Delivery] = []
    with Sender(cluster, on_delivery=delivered.append) as sender:
        for count in range(1, 6):
            sender.send("logs", 0, batch(count))
            sender.send("logs", 1, batch(count))
    assert [header.records_count for header in log.written[0]] == [1, 2, 3, 4, 5]
    assert [one.base_offset for one in delivered if one.partition == 1] == [0, 1, 3, 6, 10]


def test_idempotent_batches_are_numbered(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    log = Log(broker)
    with Sender(cluster, idempotent=True) as sender:
        for count in (3, 4):
            sender.send("logs", 0, batch(count))
        sender.send("logs", 1, batch(1))
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in log.written[0]] == [(77, 3, 0), (77, 3, 3)]
    assert log.written[1][0].base_sequence == 0
    assert len(broker.requests(ApiKey.INIT_PRODUCER_ID)) == 1


def test_a_duplicate_counts_as_written(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker).failures = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    delivered: list[Delivery] = []
    with Sender(cluster, idempotent=True, on_delivery=delivered.append) as sender:
        sender.send("logs", 0, batch(1))
    assert len(delivered) == 1


def test_an_error_that_is_not_retriable_is_raised(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    Log(broker).failures = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(ApiError, match=r"logs-0: .*max\.message\.bytes"), Sender(cluster) as sender:
        sender.send("logs", 0, batch(1))


def test_a_refused_batch_does_not_hide_a_written_one_of_the_same_response(
    broker: ScriptedBroker, cluster: ClusterClient
) -> None:
    log = Log(broker)
    log.failures = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    delivered: list[Delivery] = []

    def produce(request: Any, version: int) -> Any:
        answer = log.produce(request, version)
        if len(partitions := answer.responses[0].partition_responses) == 2:
            partitions[0].error_code = ErrorCode.MESSAGE_TOO_LARGE
        return answer

    broker.answers[ApiKey.PRODUCE] = produce
    sender = Sender(cluster, on_delivery=delivered.append)
    sender.send("logs", 0, batch(1))  # refused at first, then sent together with the next batch
    sender.send("logs", 1, batch(1))
    with pytest.raises(ApiError, match="logs-0"):
        sender.flush()
    sender.close()
    assert [one.partition for one in delivered] == [1]


def test_a_partition_without_a_leader_does_not_delay_the_others(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    """Partition 1 gets a leader only when all batches of partition 0 are written."""
    log = Log(broker)
    broker.topics["logs"] = [1, -1]

    def delivered(one: Delivery) -> None:
        if len(log.written[0]) == 5:
            broker.topics["logs"] = [1, 1]

    with Sender(cluster, on_delivery=delivered) as sender:
        for count in range(1, 6):
            sender.send("logs", 1, batch(count))
            sender.send("logs", 0, batch(count))
    assert [header.records_count for header in log.written[0]] == [1, 2, 3, 4, 5]
    assert [header.records_count for header in log.written[1]] == [1, 2, 3, 4, 5]


def test_a_partition_that_never_has_a_leader_fails_at_the_deadline(broker: ScriptedBroker) -> None:
    Log(broker)
    broker.topics["logs"] = [1, -1]
    with ClusterClient(broker.address, timeout_ms=300) as cluster, pytest.raises(ApiError, match="no leader"):  # noqa: SIM117
        with Sender(cluster) as sender:
            sender.send("logs", 1, batch(1))


def test_retries_end_at_the_deadline(broker: ScriptedBroker) -> None:
    Log(broker).failures = [ErrorCode.NOT_ENOUGH_REPLICAS] * 100
    with ClusterClient(broker.address, timeout_ms=300) as cluster, pytest.raises(ApiError, match="in sync"):  # noqa: SIM117
        with Sender(cluster) as sender:
            sender.send("logs", 0, batch(1))


def test_a_request_is_bounded(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    log = Log(broker)
    written: list[int] = []
    with Sender(
        cluster, max_request_bytes=100, max_buffered_bytes=200, on_delivery=lambda one: written.append(one.size_bytes)
    ) as sender:
        for count in range(1, 7):
            sender.send("logs", count % 2, batch(5))
            assert count * len(batch(5)) - sum(written) <= 200
    assert all(len(request.topic_data[0].partition_data) == 1 for request in broker.requests(ApiKey.PRODUCE))
    assert [len(log.written[partition]) for partition in (0, 1)] == [3, 3]


def test_idempotence_requires_all_acks(cluster: ClusterClient) -> None:
    with pytest.raises(ValueError, match="acks=1"):
        Sender(cluster, acks=1, idempotent=True)
