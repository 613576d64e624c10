"""Share groups (KIP-932): what ShareGroupDescribe says of one, and the offset at which it begins in each partition.

A share group has a start offset for a partition: nothing before it is handed out any more. Behind it, records are
delivered and acknowledged one by one. Its lag counts those that are not done with (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.group_values import Group, Member, group_target
from kalda.clientcore.administration import Ask, Outcomes, Plan, by_topic, per_item, single
from kalda.clientcore.connections.errors import refused
from kalda.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)


class ShareGroupOffset(NamedTuple):
    """Of one partition of a share group. `lag` is None where the broker does not say it, or does not know it yet."""

    start_offset: int
    leader_epoch: int
    lag: int | None


def read_share_groups(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Group | ApiError]]:
    """The groups of a ShareGroupDescribe response, without their coordinators."""
    for group in answer.groups:
        if group.error_code:
            yield group.group_id, refused(group.error_code, f"group {group.group_id!r}", group.error_message)
            continue
        members = tuple(
            Member(
                member.member_id,
                None,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in sorted(topic.partitions)
                ),
                member.member_epoch,
            )
            for member in group.members
        )
        yield (
            group.group_id,
            Group(
                group.group_id,
                "share",
                group.group_state,
                group.assignor_name,
                -1,
                members,
                group.group_epoch,
                group.assignment_epoch,
            ),
        )


def list_share_group_offsets(
    group_id: str, partitions: Collection[TopicPartition] | None
) -> Plan[Outcomes[TopicPartition, ShareGroupOffset]]:
    """DescribeShareGroupOffsets; partitions that the group has not begun with are left out."""
    topics = None
    if partitions is not None:
        topics = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)]
    )

    def check(answer: Any) -> ApiError | None:
        (group,) = answer.groups
        return refused(group.error_code, f"group {group_id!r}", group.error_message) if group.error_code else None

    answer = yield from single(Ask(group_target(group_id), request, None), check)
    outcomes: Outcomes[TopicPartition, ShareGroupOffset] = Outcomes()
    for topic in answer.groups[0].topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.topic_name, each.partition_index)
            if each.error_code:
                what = f"group {group_id!r}, partition {partition}"
                outcomes[partition] = refused(each.error_code, what, each.error_message)
            elif each.start_offset >= 0:
                lag = each.lag if each.lag >= 0 else None
                outcomes[partition] = ShareGroupOffset(each.start_offset, each.leader_epoch, lag)
    return outcomes


def alter_share_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, int]
) -> Plan[Outcomes[TopicPartition, None]]:
    """AlterShareGroupOffsets of a group without members: it begins there, and what it did behind that is forgotten."""

    def build(partitions: list[TopicPartition]) -> AlterShareGroupOffsetsRequest:
        topics = [
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(
                        partition_index=index, start_offset=offsets[TopicPartition(name, index)]
                    )
                    for index in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ]
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

    def read(answer: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        if answer.error_code:
            failed = refused(answer.error_code, f"group {group_id!r}", answer.error_message)
            yield from ((partition, failed) for partition in partitions)
        for topic in answer.responses:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic_name, each.partition_index)
                what = f"group {group_id!r}, partition {partition}"
                yield partition, refused(each.error_code, what, each.error_message) if each.error_code else None

    return per_item(offsets, lambda _: group_target(group_id), build, read)


def delete_share_group_offsets(group_id: str, topics: Collection[str]) -> Plan[Outcomes[str, None]]:
    """DeleteShareGroupOffsets of a group without members, for whole topics."""

    def build(names: list[str]) -> DeleteShareGroupOffsetsRequest:
        return DeleteShareGroupOffsetsRequest(
            group_id=group_id, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
        )

    def read(answer: Any, names: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        if answer.error_code:
            failed = refused(answer.error_code, f"group {group_id!r}", answer.error_message)
            yield from ((name, failed) for name in names)
        for topic in answer.responses:
            what = f"group {group_id!r}, topic {topic.topic_name}"
            yield topic.topic_name, refused(topic.error_code, what, topic.error_message) if topic.error_code else None

    return per_item(topics, lambda _: group_target(group_id), build, read)
