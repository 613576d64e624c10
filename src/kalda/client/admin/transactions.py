"""Transactions and the producers of partitions (KIP-664): describe, abort, fence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import (
    Outcomes,
    Plan,
    Target,
    TargetKind,
    by_topic,
    coordinator_of,
    errors_in,
    leader_of,
    of_all_brokers,
    per_item,
)
from kalda.clientcore.connections.errors import refused
from kalda.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


class ListedTransaction(NamedTuple):
    """The state of one transactional id, in Kafka's words: Empty, Ongoing, PrepareCommit, …"""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Transaction(NamedTuple):
    """`start_time_ms` is wall-clock time of the coordinator; -1 where no transaction is ongoing."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """A producer of a partition. -1: it has no open transaction (`start_offset`), or no marker was written
    (`coordinator_epoch`)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    start_offset: int


class FencedProducer(NamedTuple):
    """The producer id and epoch of a transactional id after its producers were fenced."""

    producer_id: int
    producer_epoch: int


_FENCING_TIMEOUT_MS = 30_000
"""The transaction timeout of a producer that only fences others. Coordinators of Apache Kafka wait that long for the
replicas of the record with the new epoch, so it is a request timeout, as in Kafka's own client (KAFKA-16570)."""


_MAX_INIT = 5
"""Version 6 is for two-phase commit (KIP-939)."""


def list_transactions(
    *, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
) -> Plan[dict[str, ListedTransaction]]:
    """ListTransactions of every broker; with `duration_ms` >= 0 those that have run longer."""

    def check(answer: Any) -> ApiError | None:
        if answer.error_code != ErrorCode.INVALID_REGULAR_EXPRESSION:
            return None
        return refused(answer.error_code, f"pattern {pattern!r}", "it is not a regular expression of RE2")

    found = yield from of_all_brokers(
        lambda: ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        ),
        lambda answer, node_id: (
            ListedTransaction(each.transactional_id, node_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ),
        check,
    )
    return dict(sorted((each.transactional_id, each) for each in found))


def describe_transactions(transactional_ids: Collection[str]) -> Plan[Outcomes[str, Transaction]]:
    """DescribeTransactions."""

    def read(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Transaction | ApiError]]:
        for each in answer.transaction_states:
            if each.error_code:
                yield each.transactional_id, refused(each.error_code, f"transactional id {each.transactional_id!r}")
                continue
            partitions = sorted(TopicPartition(t.topic, index) for t in each.topics for index in t.partitions)
            yield (
                each.transactional_id,
                Transaction(
                    each.transactional_id,
                    -1,
                    each.producer_id,
                    each.producer_epoch,
                    each.transaction_state,
                    each.transaction_timeout_ms,
                    each.transaction_start_time_ms,
                    tuple(partitions),
                ),
            )

    found = yield from per_item(
        transactional_ids, _transaction, lambda ids: DescribeTransactionsRequest(transactional_ids=ids), read
    )
    for transactional_id, each in found.succeeded.items():
        coordinator = yield from coordinator_of(_transaction(transactional_id))
        found[transactional_id] = each._replace(coordinator=coordinator)
    return found


def _transaction(transactional_id: str) -> Target:
    return Target(TargetKind.TRANSACTION, transactional_id)


def describe_producers(
    partitions: Collection[TopicPartition], *, broker_id: int | None = None
) -> Plan[Outcomes[TopicPartition, tuple[ActiveProducer, ...]]]:
    """DescribeProducers at the partitions' leaders, or at a broker that has to have a replica."""
    where = "" if broker_id is None else f" on broker {broker_id}"

    def read(
        answer: Any, _partitions: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, tuple[ActiveProducer, ...] | ApiError]]:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    yield partition, refused(each.error_code, f"partition {partition}{where}", each.error_message)
                    continue
                yield (
                    partition,
                    tuple(
                        ActiveProducer(
                            one.producer_id,
                            one.producer_epoch,
                            one.coordinator_epoch,
                            one.last_sequence,
                            one.last_timestamp,
                            one.current_txn_start_offset,
                        )
                        for one in each.active_producers
                    ),
                )

    def target_of(partition: TopicPartition) -> Target:
        return leader_of(partition) if broker_id is None else Target(TargetKind.BROKER, broker_id)

    return per_item(partitions, target_of, _producers_request, read)


def _producers_request(partitions: Collection[TopicPartition]) -> DescribeProducersRequest:
    """DescribeProducers of these partitions."""
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequestTopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    )


def abort_transaction(
    partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> Plan[None]:
    """WriteTxnMarkers: an abort marker in one partition, past the coordinator. A coordinator epoch of -1 is sent as 0,
    which no coordinator's epoch is below."""

    def build(_: list[TopicPartition]) -> WriteTxnMarkersRequest:
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            coordinator_epoch=max(0, coordinator_epoch),
        )
        return WriteTxnMarkersRequest(markers=[marker])

    def read(answer: Any, _: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        for marker in answer.markers:
            yield from errors_in(marker, marker.topics, (), "")

    outcomes: Outcomes[TopicPartition, None] = yield from per_item([partition], leader_of, build, read)
    outcomes.check()


def fence_producers(transactional_ids: Collection[str]) -> Plan[Outcomes[str, FencedProducer]]:
    """InitProducerId of each id, at its coordinator: its ongoing transaction is aborted, its producers are fenced."""

    def build(ids: list[str]) -> InitProducerIdRequest:
        (transactional_id,) = ids
        return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS)

    def read(answer: Any, ids: list[str]) -> Iterator[tuple[str, FencedProducer | ApiError]]:
        (transactional_id,) = ids
        if answer.error_code:
            yield transactional_id, refused(answer.error_code, f"transactional id {transactional_id!r}")
        else:
            yield transactional_id, FencedProducer(answer.producer_id, answer.producer_epoch)

    return per_item(
        transactional_ids,
        _transaction,
        build,
        read,
        max_version=_MAX_INIT,
    )
