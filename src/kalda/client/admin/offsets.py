"""Offsets of partitions: ListOffsets by time, DeleteRecords."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.cluster_values import Leader
from kalda.protocol.messages.fetch import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)

_CONSUMER = -1
"""The replica id of a client that is not a replica."""


class FoundOffset(NamedTuple):
    """`offset` is -1 where every record is older than the requested timestamp. `timestamp` is -1 where the request was
    for an end of the log, which reads no record."""

    offset: int
    timestamp: int
    leader_epoch: int


def list_offsets(
    cluster: ClusterClient,
    times: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """For each partition, the first offset at or after a timestamp in ms, or one of `OffsetSpec`.

    The latest offset is the one after the last record that a consumer may see: the high watermark, or with
    `read_committed` the last stable offset. Raises `ApiError`.
    """

    def build(partitions: list[tuple[TopicPartition, Leader]]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition, leader in partitions:
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(
                    partition_index=partition.partition,
                    current_leader_epoch=leader.epoch,
                    timestamp=times[partition],
                )
            )
        return ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(read_committed),
            topics=[ListOffsetsTopic(name=name, partitions=entries) for name, entries in topics.items()],
            timeout_ms=cluster.timeout_ms,
        )

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, FoundOffset]]:
        for topic in answer.topics:
            for p in topic.partitions:
                found = FoundOffset(p.offset, p.timestamp, p.leader_epoch)
                yield TopicPartition(topic.name, p.partition_index), p.error_code, found

    return cluster.ask_leaders(times, build, read, timeout_ms=timeout_ms)


def offsets_at(
    cluster: ClusterClient, partitions: Collection[TopicPartition], mark: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The offset of each partition at `mark`, a timestamp in ms or an `OffsetSpec`; the latest offset where every
    record that a consumer may see is older."""
    found = list_offsets(cluster, dict.fromkeys(partitions, mark), read_committed=read_committed)
    missing = [partition for partition, at in found.items() if at.offset < 0]
    latest: dict[TopicPartition, int] = dict.fromkeys(missing, int(OffsetSpec.LATEST))
    ends = list_offsets(cluster, latest, read_committed=read_committed) if missing else {}
    return {partition: at.offset if at.offset >= 0 else ends[partition].offset for partition, at in found.items()}


def delete_records(cluster: ClusterClient, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records below an offset, or below the high watermark where it is -1; returns each partition's new log
    start offset. Raises `ApiError`.
    """

    def build(partitions: list[tuple[TopicPartition, Leader]]) -> DeleteRecordsRequest:
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for partition, _ in partitions:
            topics.setdefault(partition.topic, []).append(
                DeleteRecordsPartition(partition_index=partition.partition, offset=before[partition])
            )
        return DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=entries) for name, entries in topics.items()],
            timeout_ms=cluster.timeout_ms,
        )

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
        for topic in answer.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    return cluster.ask_leaders(before, build, read)
