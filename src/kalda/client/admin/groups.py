"""Groups and their offsets.

Each type of group has an API: DescribeGroups describes classic groups, ConsumerGroupDescribe those of KIP-848,
StreamsGroupDescribe those of KIP-1071, and ShareGroupDescribe share groups (KIP-932). A group without members exists as
long as it has offsets.

A share group has a start offset for a partition: nothing before it is handed out any more. Behind it, records are
delivered and acknowledged one by one. Its lag counts those that are not done with (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from kalda.assignors.consumer_protocol import read_assignment
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.group_values import Group, ListedGroup, Member, StreamsTasks, group_target
from kalda.clientcore.administration import (
    PAUSE,
    Ask,
    Outcomes,
    Plan,
    by_topic,
    coordinator_of,
    error_in,
    error_of,
    errors_in,
    of_all_brokers,
    per_item,
    single,
)
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.consuming.positions import (
    MAX_OFFSET_COMMIT,
    MAX_OFFSET_FETCH,
    GroupMetadata,
    commit_request,
    committed_request,
    read_committed,
)
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kalda.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponseAssignment,
    StreamsGroupDescribeResponseTaskIds,
)
from kalda.protocol.notation import Request

_NO_SUCH_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def list_groups(*, states: Collection[str], types: Collection[str]) -> Plan[dict[str, ListedGroup]]:
    """ListGroups of every broker, sorted by name."""
    found = yield from of_all_brokers(
        lambda: ListGroupsRequest(states_filter=list(states), types_filter=list(types)),
        lambda answer, node_id: (
            ListedGroup(each.group_id, each.group_type, each.protocol_type, each.group_state, node_id)
            for each in answer.groups
        ),
    )
    return dict(sorted((each.group_id, each) for each in found))


def describe_groups(group_ids: Collection[str]) -> Plan[Outcomes[str, Group]]:
    """ConsumerGroupDescribe, then the APIs of the other types for those that are no consumer groups."""
    found: Outcomes[str, Group] = Outcomes()
    left = list(group_ids) if not isinstance(group_ids, str) else group_ids
    for build, read in _DESCRIPTIONS:
        found.update((yield from per_item(left, group_target, build, read)))
        left = [group_id for group_id, error in found.errors.items() if error.code in _NO_SUCH_GROUP]
        if not left:
            break
    for group_id, group in found.succeeded.items():
        found[group_id] = group._replace(coordinator=(yield from coordinator_of(group_target(group_id))))
    return found


_UPGRADED = {0: False, 1: True}
"""By the member type of ConsumerGroupDescribe."""
Read = Callable[[Any, list[str]], Iterator[tuple[str, Group | ApiError]]]


def _reader(kind: str, members_of: Callable[[Any], Iterable[Member]]) -> Read:
    """What reads the groups of this type, without their coordinators, out of the response of its API."""

    def read(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Group | ApiError]]:
        for group in answer.groups:
            name, assignor = group.group_id, group.assignor_name or ""
            yield (
                name,
                error_in(group, f"group {name!r}")
                or Group(
                    name, kind, group.group_state, assignor, -1, tuple(members_of(group)), group.group_epoch,
                    group.assignment_epoch,
                ),
            )  # fmt: skip

    return read


def _member(member: Any, partitions_of: Callable[[Any], tuple[TopicPartition, ...]]) -> Member:
    """What members of consumer groups and of streams groups have alike."""
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        partitions_of(member.assignment),
        member.member_epoch,
        partitions_of(member.target_assignment),
    )


def _consumers_of(group: Any) -> Iterator[Member]:
    for member in group.members:
        yield _member(member, _partitions)._replace(upgraded=_UPGRADED.get(member.member_type))


def _sharers_of(group: Any) -> Iterator[Member]:
    for member in group.members:
        partitions = _partitions(member.assignment)
        yield Member(member.member_id, None, member.client_id, member.client_host, partitions, member.member_epoch)


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in sorted(topic.partitions)
    )


def _streams_of(group: Any) -> Iterator[Member]:
    subtopologies = () if group.topology is None else group.topology.subtopologies or ()
    sources = {
        each.subtopology_id: (*each.source_topics, *(topic.name for topic in each.repartition_source_topics))
        for each in subtopologies
    }
    for member in group.members:
        assigned = member.assignment
        tasks = StreamsTasks(*map(_task_names, (assigned.active_tasks, assigned.standby_tasks, assigned.warmup_tasks)))
        yield _member(member, partial(_read_by, sources))._replace(tasks=tasks, process_id=member.process_id)


def _read_by(
    sources: Mapping[str, Collection[str]], assignment: StreamsGroupDescribeResponseAssignment
) -> tuple[TopicPartition, ...]:
    """Partitions of the active tasks. A topic may have fewer partitions than its subtopology has tasks."""
    return tuple(
        TopicPartition(topic, index)
        for task in assignment.active_tasks
        for topic in sorted(sources.get(task.subtopology_id, ()))
        for index in task.partitions
    )


def _task_names(tasks: Collection[StreamsGroupDescribeResponseTaskIds]) -> tuple[str, ...]:
    return tuple(f"{each.subtopology_id}_{partition}" for each in tasks for partition in each.partitions)


def _read_classic(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Group | ApiError]]:
    for group in answer.groups:
        code = group.error_code
        if not code and group.group_state == "Dead":
            code = ErrorCode.GROUP_ID_NOT_FOUND
        if code:
            yield group.group_id, refused(code, f"group {group.group_id!r}", group.error_message)
            continue
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
        yield group.group_id, Group(group.group_id, "classic", group.group_state, group.protocol_data, -1, members)


_DESCRIPTIONS: tuple[tuple[Callable[[list[str]], Request], Read], ...] = (
    (lambda ids: ConsumerGroupDescribeRequest(group_ids=ids), _reader("consumer", _consumers_of)),
    (lambda ids: ShareGroupDescribeRequest(group_ids=ids), _reader("share", _sharers_of)),
    (lambda ids: StreamsGroupDescribeRequest(group_ids=ids), _reader("streams", _streams_of)),
    (lambda ids: DescribeGroupsRequest(groups=ids), _read_classic),
)
"""The APIs, in the order in which groups are looked for; the last one's error is the answer for one that is nowhere."""


def delete_groups(group_ids: Collection[str]) -> Plan[Outcomes[str, None]]:
    """DeleteGroups."""

    def read(answer: Any, _ids: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.results:
            yield each.group_id, error_in(each, f"group {each.group_id!r}")

    return per_item(group_ids, group_target, lambda ids: DeleteGroupsRequest(groups_names=ids), read)


def list_group_offsets(
    group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
) -> Plan[Outcomes[TopicPartition, OffsetAndEpoch]]:
    """OffsetFetch of one group; partitions without an offset are left out. With `require_stable` it waits while a
    transaction that has written offsets is open (KIP-447)."""
    request = committed_request(group_id, partitions, require_stable=require_stable)
    while True:
        answer = yield from single(
            Ask(group_target(group_id), request, MAX_OFFSET_FETCH),
            error_of(f"group {group_id!r}"),
        )
        found, failed = read_committed(answer)
        if not any(ErrorCode(code).retriable for code in failed.values()) or (yield PAUSE):
            break
    if partitions is not None:
        asked = frozenset(partitions)
        found = {partition: offset for partition, offset in found.items() if partition in asked}
        failed = {partition: code for partition, code in failed.items() if partition in asked}
    outcomes: Outcomes[TopicPartition, OffsetAndEpoch] = Outcomes(found)
    for partition, code in failed.items():
        outcomes[partition] = refused(code, f"group {group_id!r}, partition {partition}")
    return outcomes


def alter_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndEpoch]
) -> Plan[Outcomes[TopicPartition, None]]:
    """OffsetCommit into a group without members."""

    def build(partitions: list[TopicPartition]) -> Any:
        return commit_request(GroupMetadata(group_id), {partition: offsets[partition] for partition in partitions})

    return per_item(
        offsets, lambda _: group_target(group_id), build, _read_offsets(group_id), max_version=MAX_OFFSET_COMMIT
    )


def delete_group_offsets(group_id: str, partitions: Collection[TopicPartition]) -> Plan[Outcomes[TopicPartition, None]]:
    """OffsetDelete."""

    def build(left: list[TopicPartition]) -> OffsetDeleteRequest:
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in by_topic(left).items()
        ]
        return OffsetDeleteRequest(group_id=group_id, topics=topics)

    return per_item(partitions, lambda _: group_target(group_id), build, _read_offsets(group_id))


def _read_offsets(group_id: str) -> Any:
    whole = f"group {group_id!r}"
    return lambda answer, partitions: errors_in(answer, answer.topics, partitions, whole, f"{whole}, ")


def remove_members(group_id: str, instance_ids: Collection[str], reason: str) -> Plan[Outcomes[str, None]]:
    """LeaveGroup for static members, by their instance ids."""

    def build(left: list[str]) -> LeaveGroupRequest:
        members = [MemberIdentity(group_instance_id=instance_id, reason=reason) for instance_id in left]
        return LeaveGroupRequest(group_id=group_id, members=members)

    def read(answer: Any, left: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        if answer.error_code:
            failed = refused(answer.error_code, f"group {group_id!r}")
            yield from ((instance_id, failed) for instance_id in left)
        for each in answer.members:
            what = f"static member {each.group_instance_id!r} of group {group_id!r}"
            yield each.group_instance_id, error_in(each, what)

    return per_item(instance_ids, lambda _: group_target(group_id), build, read)


class ShareGroupOffset(NamedTuple):
    """Of one partition of a share group. `lag` is None where the broker does not send it, or not yet."""

    start_offset: int
    leader_epoch: int
    lag: int | None


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
        return error_in(group, f"group {group_id!r}")

    answer = yield from single(Ask(group_target(group_id), request, None), check)
    outcomes: Outcomes[TopicPartition, ShareGroupOffset] = Outcomes()
    for topic in answer.groups[0].topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.topic_name, each.partition_index)
            if (error := error_in(each, f"group {group_id!r}, partition {partition}")) is not None:
                outcomes[partition] = error
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

    whole = f"group {group_id!r}"

    def read(answer: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        return errors_in(answer, answer.responses, partitions, whole, f"{whole}, ")

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
            yield topic.topic_name, error_in(topic, f"group {group_id!r}, topic {topic.topic_name}")

    return per_item(topics, lambda _: group_target(group_id), build, read)
