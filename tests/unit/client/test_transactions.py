"""The producer of transactions against a scripted broker, which is leader and coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.cluster_client import ClusterClient
from kalda.client.core.transaction_errors import AbortableTransactionError
from kalda.client.transactions import TransactionalProducer, Written
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import FindCoordinatorResponse
from kalda.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kalda.records.batch import BatchHeader, check_crc, read_header

A, B = TopicPartition("logs", 0), TopicPartition("logs", 1)


class Coordinator:
    """`failures`: by API, what the next requests get: an error code, or None for a closed connection."""

    def __init__(self, broker: ScriptedBroker, version: int) -> None:
        self.broker = broker
        self.epoch = 0
        self.version = version
        self.written: list[tuple[int, BatchHeader]] = []
        self.failures: dict[ApiKey, list[ErrorCode | None]] = {}
        broker.features = {"transaction.version": version}
        for key, answer in {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.INIT_PRODUCER_ID: self.init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add,
            ApiKey.ADD_OFFSETS_TO_TXN: lambda request, code: AddOffsetsToTxnResponse(error_code=code),
            ApiKey.TXN_OFFSET_COMMIT: self.commit_offsets,
            ApiKey.END_TXN: self.end,
            ApiKey.PRODUCE: self.produce,
        }.items():
            broker.answers[key] = self.failing(key, answer)

    def failing(self, key: ApiKey, answer: Any) -> Any:
        def reply(request: Any, version: int) -> Any:
            codes = self.failures.get(key, [])
            code = codes.pop(0) if codes else ErrorCode.NONE
            return None if code is None else answer(request, code)

        return reply

    def find(self, request: Any, code: ErrorCode) -> Any:
        return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.broker.port, error_code=code)

    def init(self, request: Any, code: ErrorCode) -> Any:
        self.epoch += 1
        return InitProducerIdResponse(producer_id=9, producer_epoch=self.epoch, error_code=code)

    def add(self, request: Any, code: ErrorCode) -> Any:
        results = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def commit_offsets(self, request: Any, code: ErrorCode) -> Any:
        partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
        return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="logs", partitions=[partition])])

    def end(self, request: Any, code: ErrorCode) -> Any:
        if self.version < 2 or code:
            return EndTxnResponse(error_code=code)
        self.epoch += 1
        return EndTxnResponse(error_code=code, producer_id=9, producer_epoch=self.epoch)

    def produce(self, request: Any, code: ErrorCode) -> Any:
        topics = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                header = read_header(data.records)
                check_crc(data.records, 0, header)
                assert header.is_transactional
                self.written += [] if code else [(data.index, header)]
                answers.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=40 + data.index))
            topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
        return ProduceResponse(responses=topics)

    def keys(self) -> list[str]:
        """The requests besides Metadata, in their order."""
        return [key.name for key, _, _ in self.broker.received if key is not ApiKey.METADATA]


RECORD = (1, b"k", b"v", ())


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction(broker: ScriptedBroker, cluster: ClusterClient, version: int) -> None:
    coordinator = Coordinator(broker, version)
    producer = TransactionalProducer(cluster, "tx")
    producer.init()
    producer.begin()
    producer.send("logs", 0, [RECORD] * 2)
    producer.send("logs", 1, [RECORD])
    assert producer.flush() == {A: Written(40, 2), B: Written(41, 1)}
    producer.send("logs", 0, [RECORD])
    producer.send_offsets("g", {A: 3})
    assert producer.commit() == {A: Written(40, 1)}
    added = ["ADD_PARTITIONS_TO_TXN"] if version == 1 else []
    offsets = [*(["ADD_OFFSETS_TO_TXN"] if version == 1 else []), "FIND_COORDINATOR", "TXN_OFFSET_COMMIT"]
    assert coordinator.keys() == [
        "FIND_COORDINATOR", "INIT_PRODUCER_ID", *added, "PRODUCE", *offsets, "PRODUCE", "END_TXN"
    ]  # fmt: skip
    assert [(index, h.producer_epoch, h.base_sequence) for index, h in coordinator.written] == [
        (0, 1, 0), (1, 1, 0), (0, 1, 2)
    ]  # fmt: skip
    versions = {key: served for key, served, _ in broker.received}
    assert (versions[ApiKey.PRODUCE] >= 12) == (version == 2)
    assert all(request.transactional_id == "tx" for request in broker.requests(ApiKey.PRODUCE))


def test_a_lost_answer_to_the_commit_is_requested_again(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    coordinator = Coordinator(broker, 2)
    coordinator.failures = {ApiKey.END_TXN: [None, ErrorCode.CONCURRENT_TRANSACTIONS]}
    producer = TransactionalProducer(cluster, "tx")
    producer.init()
    producer.begin()
    producer.send("logs", 0, [RECORD])
    producer.commit()
    assert coordinator.keys()[-4:] == ["END_TXN", "FIND_COORDINATOR", "END_TXN", "END_TXN"]
    assert producer.manager.producer_epoch == 2


def test_a_refused_batch_has_to_be_aborted(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    coordinator = Coordinator(broker, 2)
    coordinator.failures = {ApiKey.PRODUCE: [ErrorCode.TRANSACTION_ABORTABLE]}
    producer = TransactionalProducer(cluster, "tx")
    producer.init()
    producer.begin()
    producer.send("logs", 0, [RECORD])
    with pytest.raises(AbortableTransactionError):
        producer.commit()
    producer.abort()
    producer.begin()
    producer.send("logs", 0, [RECORD])
    producer.commit()
    assert [request.committed for request in broker.requests(ApiKey.END_TXN)] == [False, True]
    assert [h.base_sequence for _, h in coordinator.written] == [0]


def test_an_abort_drops_what_is_buffered(broker: ScriptedBroker, cluster: ClusterClient) -> None:
    coordinator = Coordinator(broker, 2)
    producer = TransactionalProducer(cluster, "tx")
    producer.init()
    producer.begin()
    producer.send("logs", 0, [RECORD])
    producer.abort()
    producer.begin()
    assert producer.commit() == {}
    assert not coordinator.written


def test_a_coordinator_that_never_ends_the_transaction(broker: ScriptedBroker) -> None:
    """The call ends at its deadline, and a later call continues."""
    coordinator = Coordinator(broker, 2)
    with ClusterClient(broker.address, timeout_ms=300) as cluster:
        producer = TransactionalProducer(cluster, "tx")
        producer.init()
        producer.begin()
        producer.send("logs", 0, [RECORD])
        coordinator.failures = {ApiKey.END_TXN: [ErrorCode.CONCURRENT_TRANSACTIONS] * 1_000}
        with pytest.raises(ApiError, match="still committing after 300 ms") as raised:
            producer.commit()
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        coordinator.failures = {}
        assert producer.commit() == {}
    assert {request.committed for request in broker.requests(ApiKey.END_TXN)} == {True}
