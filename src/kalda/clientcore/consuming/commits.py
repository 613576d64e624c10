"""The requests that commit offsets and fetch committed ones, and what their responses mean."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kalda.protocol.naming import MAX_PARTITIONS_NAMED

MAX_OFFSET_FETCH = 7
"""The last version with one group a request; it has topic names and no topic ids."""
MAX_OFFSET_COMMIT = 9
"""The last version with topic names instead of topic ids."""
FENCED = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)
"""Errors of a commit: the member is not in the group any more, or its generation is over."""


class GroupMetadata(NamedTuple):
    """What a commit names of a member: Kafka's ConsumerGroupMetadata. A consumer without membership has -1 and ""."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def commit_request(
    group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndEpoch], topic_ids: Mapping[str, Uuid] | None = None
) -> OffsetCommitRequest:
    """Commit `offsets` as a member of the group. `topic_ids`: of the topics; else `MAX_OFFSET_COMMIT` is the version to
    send it in."""
    topic_ids = topic_ids or {}
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for partition, position in offsets.items():
        topic = topics.get(partition.topic)
        if topic is None:
            topic_id = topic_ids.get(partition.topic, ZERO_UUID)
            topic = topics[partition.topic] = OffsetCommitRequestTopic(name=partition.topic, topic_id=topic_id)
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )


def committed_errors(
    request: OffsetCommitRequest, response: OffsetCommitResponse
) -> Iterator[tuple[TopicPartition, ErrorCode]]:
    """The partitions that were not committed."""
    names = {topic.topic_id: topic.name for topic in request.topics}
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code:
                name = topic.name or names.get(topic.topic_id, "")
                yield TopicPartition(name, each.partition_index), ErrorCode(each.error_code)


def committed_request(
    group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
) -> OffsetFetchRequest:
    """The committed offsets of `partitions`; None: of all, which are requested for very many of them, too."""
    if partitions is not None and len(partitions) > MAX_PARTITIONS_NAMED:
        partitions = None
    topics: dict[str, list[int]] = {}
    for topic, index in partitions or ():
        topics.setdefault(topic, []).append(index)
    named = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    return OffsetFetchRequest(
        group_id=group_id, topics=None if partitions is None else named, require_stable=require_stable
    )


def read_committed(
    response: OffsetFetchResponse,
) -> tuple[dict[TopicPartition, OffsetAndEpoch], dict[TopicPartition, ErrorCode]]:
    """Committed offsets, and the partitions whose offset could not be read. Partitions without one are in neither."""
    found: dict[TopicPartition, OffsetAndEpoch] = {}
    failed: dict[TopicPartition, ErrorCode] = {}
    for topic in response.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                failed[partition] = ErrorCode(each.error_code)
            elif each.committed_offset >= 0:
                found[partition] = OffsetAndEpoch(
                    each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                )
    return found, failed
