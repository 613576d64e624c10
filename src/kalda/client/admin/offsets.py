"""Offsets of partitions by time, and deletion of the records before one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.administration import Outcomes, Plan, Target, TargetKind, by_topic, error_in, leader_of, per_item
from kalda.clientcore.connections.metadata import FoundOffset
from kalda.protocol.messages.partitions import (
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


def list_offsets(
    times: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    timeout_ms: int,
    leaders: Mapping[TopicPartition, int] | None = None,
) -> Plan[Outcomes[TopicPartition, FoundOffset]]:
    """ListOffsets, in one request to each leader. `leaders`: the node ids of leaders that the caller has from metadata,
    which is then not requested before those have failed."""
    known = {partition: leader for partition, leader in (leaders or {}).items() if leader >= 0 and partition in times}

    def build(partitions: list[TopicPartition]) -> ListOffsetsRequest:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=i, timestamp=times[TopicPartition(name, i)]) for i in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ]
        return ListOffsetsRequest(
            replica_id=_CONSUMER, isolation_level=int(read_committed), topics=topics, timeout_ms=timeout_ms
        )

    def read(answer: Any, _partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, FoundOffset | ApiError]]:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                found = FoundOffset(each.offset, each.timestamp, each.leader_epoch)
                yield partition, error_in(each, f"partition {partition}") or found

    found = yield from per_item(known, lambda one: Target(TargetKind.BROKER, known[one]), build, read, retries=False)
    succeeded = found.succeeded
    rest = yield from per_item([one for one in times if one not in succeeded], leader_of, build, read)
    found.update(rest)
    return found


def offsets_at(
    partitions: Collection[TopicPartition], mark: int, *, read_committed: bool, timeout_ms: int
) -> Plan[dict[TopicPartition, int]]:
    """The offset of each partition at `mark`, a timestamp in ms or an `OffsetSpec`; the latest offset where every
    record that a consumer may see is older. Raises `ApiError`."""

    def listed(which: Iterable[TopicPartition], at: int) -> Plan[dict[TopicPartition, int]]:
        found = yield from list_offsets(dict.fromkeys(which, at), read_committed=read_committed, timeout_ms=timeout_ms)
        return {partition: each.offset for partition, each in found.check().succeeded.items()}

    offsets = yield from listed(partitions, mark)
    missing = [partition for partition, offset in offsets.items() if offset < 0]
    if missing:
        offsets |= yield from listed(missing, int(OffsetSpec.LATEST))
    return offsets


def delete_records(before: Mapping[TopicPartition, int], *, timeout_ms: int) -> Plan[Outcomes[TopicPartition, int]]:
    """DeleteRecords: the new log start offsets."""

    def build(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=i, offset=before[TopicPartition(name, i)]) for i in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)

    def read(answer: Any, _partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, int | ApiError]]:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                error = error_in(each, f"partition {partition}")
                yield partition, each.low_watermark if error is None else error

    return per_item(before, leader_of, build, read)
