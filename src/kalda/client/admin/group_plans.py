"""Plans about groups and their offsets, and about transactions and producers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.groups import Group, ListedGroup, Member
from kalda.client.admin.topic_plans import by_topic, leader_of
from kalda.client.admin.transactions import ActiveProducer, FencedProducer, ListedTransaction, Transaction
from kalda.client.core.administration import ANY, PAUSE, Ask, Kind, Outcomes, Plan, Target, per_item, single
from kalda.client.core.cluster_values import read_metadata
from kalda.client.core.commits import (
    MAX_OFFSET_COMMIT,
    MAX_OFFSET_FETCH,
    GroupMetadata,
    commit_request,
    committed_request,
    read_committed,
)
from kalda.client.core.consumer_protocol import read_assignment
from kalda.client.core.errors import refused
from kalda.client.core.subscription import OffsetAndEpoch
from kalda.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kalda.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.offsets import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
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

_FENCING_TIMEOUT_MS = 30_000
"""The transaction timeout of a producer that only fences others. Coordinators of Apache Kafka wait that long for the
replicas of the record with the new epoch, so it is a request timeout, as in Kafka's own client (KAFKA-16570)."""
_MAX_INIT = 5
"""Version 6 is for two-phase commit (KIP-939)."""
_NO_MODERN_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def _group(group_id: str) -> Target:
    return Target(Kind.GROUP, group_id)


def _all_brokers() -> Plan[list[int]]:
    answer = yield from single(Ask(ANY, MetadataRequest(topics=[], allow_auto_topic_creation=False)))
    return sorted(read_metadata(answer).brokers)


def list_groups(*, states: Collection[str], types: Collection[str]) -> Plan[dict[str, ListedGroup]]:
    """ListGroups of every broker, sorted by name."""
    nodes = yield from _all_brokers()

    def build(_nodes: list[int]) -> ListGroupsRequest:
        return ListGroupsRequest(states_filter=list(states), types_filter=list(types))

    def read(answer: Any, group: list[int]) -> Iterator[tuple[int, list[ListedGroup] | ApiError]]:
        (node_id,) = group
        if answer.error_code:
            yield node_id, refused(answer.error_code, f"broker {node_id}")
            return
        yield (
            node_id,
            [
                ListedGroup(each.group_id, each.group_type, each.protocol_type, each.group_state, node_id)
                for each in answer.groups
            ],
        )

    found = yield from per_item(nodes, lambda node_id: Target(Kind.BROKER, node_id), build, read)
    found.check()
    listed = {each.group_id: each for groups in found.succeeded.values() for each in groups}
    return dict(sorted(listed.items()))


def describe_groups(group_ids: Collection[str]) -> Plan[Outcomes[str, Group]]:
    """ConsumerGroupDescribe, and DescribeGroups for those that are classic groups."""
    modern = yield from per_item(
        group_ids, _group, lambda ids: ConsumerGroupDescribeRequest(group_ids=ids), _read_modern
    )
    classic = [group_id for group_id, error in modern.errors.items() if error.code in _NO_MODERN_GROUP]
    if classic:
        modern.update(
            (yield from per_item(classic, _group, lambda ids: DescribeGroupsRequest(groups=ids), _read_classic))
        )
    for group_id, group in modern.succeeded.items():
        modern[group_id] = group._replace(coordinator=(yield from _coordinator(_group(group_id))))
    return modern


def _coordinator(target: Target) -> Plan[int]:
    """The node id of the coordinator, which has just answered; -1 where it is unknown by now."""
    (node_id,) = yield [Ask(target, None)]
    return -1 if isinstance(node_id, ApiError) else node_id


def _read_modern(answer: Any, _ids: list[str]) -> Iterator[tuple[str, Group | ApiError]]:
    for group in answer.groups:
        if group.error_code:
            yield group.group_id, refused(group.error_code, f"group {group.group_id!r}", group.error_message)
            continue
        members = tuple(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in sorted(topic.partitions)
                ),
            )
            for member in group.members
        )
        yield group.group_id, Group(group.group_id, "consumer", group.group_state, group.assignor_name, -1, members)


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


def delete_groups(group_ids: Collection[str]) -> Plan[Outcomes[str, None]]:
    """DeleteGroups."""

    def read(answer: Any, _ids: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.results:
            error = refused(each.error_code, f"group {each.group_id!r}") if each.error_code else None
            yield each.group_id, error

    return per_item(group_ids, _group, lambda ids: DeleteGroupsRequest(groups_names=ids), read)


def list_group_offsets(
    group_id: str, partitions: Collection[TopicPartition] | None, *, require_stable: bool
) -> Plan[Outcomes[TopicPartition, OffsetAndEpoch]]:
    """OffsetFetch of one group; partitions without an offset are left out. With `require_stable` it waits while a
    transaction that has written offsets is open (KIP-447)."""
    request = committed_request(group_id, partitions, require_stable=require_stable)
    while True:
        answer = yield from single(
            Ask(_group(group_id), request, MAX_OFFSET_FETCH),
            lambda found: refused(found.error_code, f"group {group_id!r}") if found.error_code else None,
        )
        found, failed = read_committed(answer)
        if not any(ErrorCode(code).retriable for code in failed.values()) or (yield PAUSE):
            break
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

    return per_item(offsets, lambda _: _group(group_id), build, _read_offsets(group_id), max_version=MAX_OFFSET_COMMIT)


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

    return per_item(partitions, lambda _: _group(group_id), build, _read_offsets(group_id))


def _read_offsets(group_id: str) -> Any:
    def read(answer: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        code = getattr(answer, "error_code", 0)
        if code:
            failed = refused(code, f"group {group_id!r}")
            yield from ((partition, failed) for partition in partitions)
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                what = f"group {group_id!r}, partition {partition}"
                yield partition, refused(each.error_code, what) if each.error_code else None

    return read


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
            yield each.group_instance_id, refused(each.error_code, what) if each.error_code else None

    return per_item(instance_ids, lambda _: _group(group_id), build, read)


def list_transactions(
    *, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
) -> Plan[dict[str, ListedTransaction]]:
    """ListTransactions of every broker; with `duration_ms` >= 0 those that have run longer."""
    nodes = yield from _all_brokers()

    def build(_nodes: list[int]) -> ListTransactionsRequest:
        return ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )

    def read(answer: Any, group: list[int]) -> Iterator[tuple[int, list[ListedTransaction] | ApiError]]:
        (node_id,) = group
        if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            what = f"pattern {pattern!r}"
            yield node_id, refused(answer.error_code, what, "it is not a regular expression of RE2")
            return
        if answer.error_code:
            yield node_id, refused(answer.error_code, f"broker {node_id}")
            return
        yield (
            node_id,
            [
                ListedTransaction(each.transactional_id, node_id, each.producer_id, each.transaction_state)
                for each in answer.transaction_states
            ],
        )

    found = yield from per_item(nodes, lambda node_id: Target(Kind.BROKER, node_id), build, read)
    found.check()
    listed = {each.transactional_id: each for all_of in found.succeeded.values() for each in all_of}
    return dict(sorted(listed.items()))


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
        coordinator = yield from _coordinator(_transaction(transactional_id))
        found[transactional_id] = each._replace(coordinator=coordinator)
    return found


def _transaction(transactional_id: str) -> Target:
    return Target(Kind.TRANSACTION, transactional_id)


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
        return leader_of(partition) if broker_id is None else Target(Kind.BROKER, broker_id)

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
            for topic in marker.topics:
                for each in topic.partitions:
                    which = TopicPartition(topic.name, each.partition_index)
                    yield which, refused(each.error_code, f"partition {which}") if each.error_code else None

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
