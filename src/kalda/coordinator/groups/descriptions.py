"""Groups as ConsumerGroupDescribe (69) and ShareGroupDescribe (77) show them, at an epoch of the timeline. Topics that
do not exist are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kalda.base.ids import Uuid
from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.coordinator.groups.consumer_member import ConsumerMember
from kalda.coordinator.groups.share_group import ShareGroup, ShareMember
from kalda.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)
from kalda.protocol.messages.share import (
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1
_SHARE_ASSIGNOR = "simple"
NameOf = Callable[[Uuid], "str | None"]
"""The name of a topic id; None where there is no such topic."""


def describe_consumer_group(
    group: ConsumerGroup, epoch: int, default_assignor: str, name_of: NameOf
) -> ConsumerGroupDescribeResponseDescribedGroup:
    """A consumer group."""
    epochs = group.epochs_at(epoch)
    return ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state(epoch).value,
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=group.preferred_assignor(default_assignor, epoch),
        members=[
            _consumer_member(member, group.target(member.member_id, epoch), name_of)
            for member in group.members.values(epoch)
        ],
    )


def _consumer_member(
    member: ConsumerMember, target: Mapping[Uuid, Iterable[int]], name_of: NameOf
) -> ConsumerGroupDescribeResponseMember:
    """Its assignment has what it is to give back too: it is responsible for that until then."""
    owned: dict[Uuid, list[int]] = {}
    for topic_id, partition in member.owned():
        owned.setdefault(topic_id, []).append(partition)
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_consumer_assignment(owned, name_of),
        target_assignment=_consumer_assignment(target, name_of),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _consumer_assignment(
    topics: Mapping[Uuid, Iterable[int]], name_of: NameOf
) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions)
            )
            for topic_id, partitions in topics.items()
            if (name := name_of(topic_id)) is not None
        ]
    )


def describe_share_group(group: ShareGroup, epoch: int, name_of: NameOf) -> ShareGroupDescribeResponseDescribedGroup:
    """A share group."""
    epochs = group.epochs_at(epoch)
    return ShareGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state(epoch).value,
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=_SHARE_ASSIGNOR,
        members=[_share_member(member, name_of) for member in group.members.values(epoch)],
    )


def _share_member(member: ShareMember, name_of: NameOf) -> ShareGroupDescribeResponseMember:
    return ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=ShareGroupDescribeResponseAssignment(
            topic_partitions=[
                ShareGroupDescribeResponseTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=sorted(numbers)
                )
                for topic_id, numbers in member.assigned.items()
                if (name := name_of(topic_id)) is not None
            ]
        ),
    )
