"""Groups and their offsets.

Each type of group has an API: DescribeGroups describes classic groups, ConsumerGroupDescribe those of KIP-848. A group
without members exists as long as it has offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.cluster import ClusterClient
from kalda.client.core.consumer_protocol import read_assignment
from kalda.client.core.errors import refused
from kalda.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kalda.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kalda.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)

_MAX_OFFSET_FETCH = 7
"""The last version with one group a request; it has topic names and no topic ids."""
_MAX_OFFSET_COMMIT = 9
"""The last version with topic names instead of topic ids."""


class ListedGroup(NamedTuple):
    """Type and state are empty where the broker's version of ListGroups does not have them."""

    group_id: str
    type: str
    protocol_type: str
    state: str
    coordinator: int


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Group(NamedTuple):
    group_id: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str | None


def list_groups(
    cluster: ClusterClient, *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[ListedGroup]:
    """All groups of all coordinators, sorted by name. Raises `ApiError`."""
    found = {}
    for node_id in sorted(cluster.metadata(()).brokers):
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))

        def check(answer: Any, node_id: int = node_id) -> None:
            if answer.error_code:
                raise refused(answer.error_code, f"broker {node_id}")

        for group in cluster.broker(node_id, request, check=check).groups:
            found[group.group_id] = ListedGroup(
                group.group_id, group.group_type, group.protocol_type, group.group_state, node_id
            )
    return [found[group_id] for group_id in sorted(found)]


def describe_group(cluster: ClusterClient, group_id: str) -> Group:
    """A group of either protocol, with its members. Raises `ApiError` where the group does not exist."""
    try:
        return _describe_modern(cluster, group_id)
    except ApiError as error:
        if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            raise
    return _describe_classic(cluster, group_id)


def _describe_modern(cluster: ClusterClient, group_id: str) -> Group:
    def check(answer: Any) -> None:
        for group in answer.groups:
            if group.error_code:
                raise refused(group.error_code, f"group {group_id!r}", group.error_message)

    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    group = cluster.ask_coordinator(group_id, request, check=check).groups[0]
    members = tuple(
        Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in sorted(topic.partitions)
            ),
        )
        for member in group.members
    )
    coordinator = cluster.coordinator(group_id)
    return Group(group_id, "consumer", group.group_state, group.assignor_name, coordinator, members)


def _describe_classic(cluster: ClusterClient, group_id: str) -> Group:
    def check(answer: Any) -> None:
        for group in answer.groups:
            if group.error_code:
                raise refused(group.error_code, f"group {group_id!r}", group.error_message)

    request = DescribeGroupsRequest(groups=[group_id])
    group = cluster.ask_coordinator(group_id, request, check=check).groups[0]
    if group.group_state == "Dead":
        raise refused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r}")
    is_consumer = group.protocol_type in ("consumer", "")
    members = tuple(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            read_assignment(member.member_assignment) if is_consumer else (),
        )
        for member in group.members
    )
    coordinator = cluster.coordinator(group_id)
    return Group(group_id, "classic", group.group_state, group.protocol_data, coordinator, members)


def delete_group(cluster: ClusterClient, group_id: str) -> None:
    """Delete a group without members, with its offsets. Raises `ApiError`."""

    def check(answer: Any) -> None:
        for result in answer.results:
            if result.error_code:
                raise refused(result.error_code, f"group {group_id!r}")

    cluster.ask_coordinator(group_id, DeleteGroupsRequest(groups_names=[group_id]), check=check)


def committed_offsets(
    cluster: ClusterClient,
    group_id: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    """The group's committed offsets of these partitions, or with None of all; partitions without one are left out.

    With `require_stable` it waits while a transaction that has written offsets is open (KIP-447). Raises `ApiError`."""

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"group {group_id!r}")
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise refused(p.error_code, f"group {group_id!r}, partition {topic.name}-{p.partition_index}")

    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(partitions).items()
        ]
    request = OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=require_stable)
    answer = cluster.ask_coordinator(group_id, request, check=check, max_version=_MAX_OFFSET_FETCH)
    return {
        TopicPartition(topic.name, p.partition_index): CommittedOffset(
            p.committed_offset, p.committed_leader_epoch, p.metadata
        )
        for topic in answer.topics
        for p in topic.partitions
        if p.committed_offset >= 0
    }


def commit_offsets(
    cluster: ClusterClient,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation_id: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> None:
    """Commit offsets as a member; without `member_id`, into a group without members. Raises `ApiError`."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offsets[TopicPartition(name, index)], committed_metadata=""
                )
                for index in indexes
            ],
        )
        for name, indexes in _by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=topics,
    )

    def check(answer: Any) -> None:
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise refused(p.error_code, f"group {group_id!r}, partition {topic.name}-{p.partition_index}")

    cluster.ask_coordinator(group_id, request, check=check, max_version=_MAX_OFFSET_COMMIT)


def delete_offsets(cluster: ClusterClient, group_id: str, partitions: Collection[TopicPartition]) -> None:
    """Delete the group's offsets of these partitions. Raises `ApiError`."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in _by_topic(partitions).items()
        ],
    )

    def check(answer: Any) -> None:
        if answer.error_code:
            raise refused(answer.error_code, f"group {group_id!r}")
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    raise refused(p.error_code, f"group {group_id!r}, partition {topic.name}-{p.partition_index}")

    cluster.ask_coordinator(group_id, request, check=check)


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics
