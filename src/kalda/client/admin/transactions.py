"""Transactions: ListTransactions, DescribeTransactions, DescribeProducers (KIP-664), and those that hang.

A transaction hangs where a partition holds its records, but no coordinator holds it as ongoing with this partition: no
one will ever write its marker, and the partition's last stable offset does not move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.cluster_values import Leader
from kalda.client.core.errors import refused
from kalda.protocol.messages.groups import CoordinatorType
from kalda.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
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


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition, and its producer."""

    partition: TopicPartition
    producer: ActiveProducer


def list_transactions(
    cluster: ClusterClient,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """The transactional ids of all coordinators, sorted; with `duration_ms` >= 0 those that have run longer, with
    `pattern` those whose id the regular expression matches. Raises `ApiError`."""
    found: list[ListedTransaction] = []
    for node_id in sorted(cluster.metadata(()).brokers):
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )

        def check(answer: Any, node_id: int = node_id) -> None:
            if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise refused(answer.error_code, f"pattern {pattern!r}", "it is not a regular expression of RE2")
            if answer.error_code:
                raise refused(answer.error_code, f"broker {node_id}")

        answer = cluster.broker(node_id, request, check=check)
        found += [
            ListedTransaction(each.transactional_id, node_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]
    return sorted(found)


def describe_transaction(cluster: ClusterClient, transactional_id: str) -> Transaction:
    """The state of one transactional id. Raises `ApiError`; TRANSACTIONAL_ID_NOT_FOUND where there is none."""

    def check(answer: Any) -> None:
        for each in answer.transaction_states:
            if each.error_code:
                raise refused(each.error_code, f"transactional id {transactional_id!r}")

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    key_type = CoordinatorType.TRANSACTION
    each = cluster.ask_coordinator(transactional_id, request, check=check, key_type=key_type).transaction_states[0]
    return Transaction(
        transactional_id,
        cluster.coordinator(transactional_id, key_type=key_type),
        each.producer_id,
        each.producer_epoch,
        each.transaction_state,
        each.transaction_timeout_ms,
        each.transaction_start_time_ms,
        tuple(sorted(TopicPartition(topic.topic, index) for topic in each.topics for index in topic.partitions)),
    )


def describe_producers(
    cluster: ClusterClient, partitions: Collection[TopicPartition], *, broker_id: int | None = None
) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
    """The active producers of each partition, at its leader or at `broker_id`, which has to have a replica. Raises
    `ApiError`."""

    def build(requested: list[tuple[TopicPartition, Leader]]) -> DescribeProducersRequest:
        return _producers_request(partition for partition, _ in requested)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, tuple[ActiveProducer, ...]]]:
        for topic in answer.topics:
            for p in topic.partitions:
                producers = tuple(
                    ActiveProducer(
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.current_txn_start_offset,
                    )
                    for each in p.active_producers
                )
                yield TopicPartition(topic.name, p.partition_index), p.error_code, producers

    if broker_id is None:
        return cluster.ask_leaders(partitions, build, read)

    def check(answer: Any) -> None:
        for partition, code, _ in read(answer):
            if code:
                raise refused(code, f"partition {partition} on broker {broker_id}")

    answer = cluster.broker(broker_id, _producers_request(partitions), check=check)
    return {partition: producers for partition, _, producers in read(answer)}


def _producers_request(partitions: Collection[TopicPartition] | Iterator[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, DescribeProducersRequestTopicRequest] = {}
    for name, index in partitions:
        topics.setdefault(name, DescribeProducersRequestTopicRequest(name=name)).partition_indexes.append(index)
    return DescribeProducersRequest(topics=list(topics.values()))


def find_hanging(
    cluster: ClusterClient,
    partitions: Collection[TopicPartition],
    *,
    started_before_ms: int,
    broker_id: int | None = None,
) -> list[OpenTransaction]:
    """The transactions of these partitions that hang, and whose last record is older than `started_before_ms` (wall
    clock). That has to be longer ago than any transaction timeout. Raises `ApiError`."""
    candidates = [
        OpenTransaction(partition, producer)
        for partition, producers in describe_producers(cluster, partitions, broker_id=broker_id).items()
        for producer in producers
        if producer.start_offset >= 0 and producer.last_timestamp < started_before_ms
    ]
    if not candidates:
        return []
    producer_ids = sorted({each.producer.producer_id for each in candidates})
    names = {each.producer_id: each.transactional_id for each in list_transactions(cluster, producer_ids=producer_ids)}
    ongoing: dict[int, Collection[TopicPartition]] = {}
    for producer_id, transactional_id in names.items():
        try:
            ongoing[producer_id] = describe_transaction(cluster, transactional_id).partitions
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return sorted(each for each in candidates if each.partition not in ongoing.get(each.producer.producer_id, ()))
