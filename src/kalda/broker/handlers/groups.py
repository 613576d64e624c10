"""The group APIs: passed to the coordinator, with the time.

JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups
(42), OffsetCommit (8), OffsetFetch (9), OffsetDelete (47), TxnOffsetCommit (28).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.clock import Clock
from kalda.base.errors import ApiError
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.broker.handlers.chunks import Chunks
from kalda.broker.handlers.visible_offsets import only_visible_offsets
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.item_checks import Handler, Items, itself
from kalda.broker.requests.rows import Authorization, Row, message_of, on_group
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.protocol.access import (
    DELETE_GROUP,
    DESCRIBE_GROUP,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    operations_on,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.caller import CLUSTER_RESOURCE_NAME, Caller
from kalda.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kalda.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


class _NamesTopic(Protocol):
    name: str
    topic_id: Uuid


Q = TypeVar("Q")
R = TypeVar("R")

_FIRST_JOIN_WITHOUT_NAME = 7
_FIRST_DESCRIBE_WITH_MESSAGE = 6
_FIRST_FETCH_ERROR_ON_TOP = 2
_FIRST_FETCH_OF_GROUPS = 8
_STEP_ITEMS = 2_000


class GroupHandlers:
    """Classic groups and their offsets."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        clock: Clock,
        on_handled: Callable[[], None],
        topic_name: Callable[[Uuid], str | None] = lambda _: None,
    ) -> None:
        """`on_handled` is called after each request: the coordinator's next deadline may be nearer than its timer.
        `topic_name(id)` looks a topic up."""
        self._topic_name = topic_name
        self._coordinator = coordinator
        self._clock = clock
        self._on_handled = on_handled

    def rows(self) -> list[Row]:
        """One row an API."""
        return [*self._rows_of_members(), *self._rows_of_groups(), *self._rows_of_offsets()]

    def _rows_of_members(self) -> list[Row]:
        coordinator, timed, read = self._coordinator, self._timed, on_group(READ_GROUP)
        return [
            Row(ApiKey.JOIN_GROUP, timed(coordinator.join_group), join_group_failed, read),
            Row(ApiKey.SYNC_GROUP, timed(coordinator.sync_group), sync_group_failed, read),
            Row(ApiKey.HEARTBEAT, timed(coordinator.heartbeat), heartbeat_failed, read),
            Row(ApiKey.LEAVE_GROUP, timed(coordinator.leave_group), leave_group_failed, read),
        ]

    def _rows_of_groups(self) -> list[Row]:
        coordinator, timed, per_item = self._coordinator, self._timed, Authorization.PER_ITEM
        described = Items(DESCRIBE_GROUP, describe_groups_failed, "groups", "groups", itself)
        deleted = Items(DELETE_GROUP, delete_groups_failed, "groups_names", "results", itself)
        chunks = Chunks(("groups_names",), ("results",), delete_groups_failed)
        return [
            Row(
                ApiKey.DESCRIBE_GROUPS,
                timed(self._describe_groups),
                describe_groups_failed,
                per_item,
                items=described.stage,
                has_large_answer=True,
            ),
            Row(ApiKey.LIST_GROUPS, timed(self._list_groups), list_groups_failed, per_item, has_large_answer=True),
            Row(
                ApiKey.DELETE_GROUPS,
                chunks.handler(timed(coordinator.delete_groups)),
                delete_groups_failed,
                per_item,
                items=deleted.stage,
            ),
        ]

    def _rows_of_offsets(self) -> list[Row]:
        coordinator, timed = self._coordinator, self._timed
        committed = Items(READ_TOPIC, offset_commit_failed, name_of=self._name_of)
        committed_in_transaction = Items(READ_TOPIC, txn_offset_commit_failed)
        deleted = Items(READ_TOPIC, _offsets_not_deleted, handles_none=True)
        of_topics = ("topics", "partitions")
        return [
            Row(
                ApiKey.OFFSET_COMMIT,
                Chunks(of_topics, of_topics, offset_commit_failed).handler(timed(coordinator.offset_commit)),
                offset_commit_failed,
                on_group(READ_GROUP),
                items=committed.stage,
            ),
            Row(
                ApiKey.OFFSET_FETCH,
                self._fetched_in_chunks(timed(coordinator.offset_fetch)),
                offset_fetch_failed,
                Authorization.PER_ITEM,
                items=partial(only_visible_offsets, self._name_of),
                has_large_answer=True,
            ),
            Row(
                ApiKey.OFFSET_DELETE,
                Chunks(of_topics, of_topics, offset_delete_failed).handler(timed(coordinator.offset_delete)),
                offset_delete_failed,
                on_group(DELETE_GROUP),
                items=deleted.stage,
            ),
            Row(
                ApiKey.TXN_OFFSET_COMMIT,
                Chunks(of_topics, of_topics, txn_offset_commit_failed).handler(timed(coordinator.txn_offset_commit)),
                txn_offset_commit_failed,
                _may_commit_in_transaction,
                items=committed_in_transaction.stage,
            ),
        ]

    def _fetched_in_chunks(self, handler: Handler) -> Handler:
        """`handler`, in chunks of many partitions. All offsets of a group are one item."""
        partitions = ("topics", "partition_indexes")
        by_group = Chunks(("groups", *partitions), ("groups", "topics", "partitions"), offset_fetch_failed)
        by_topic = Chunks(partitions, ("topics", "partitions"), offset_fetch_failed)
        of_many, of_one = by_group.handler(handler), by_topic.handler(handler)

        def handle(context: RequestContext, request: OffsetFetchRequest) -> Reply[OffsetFetchResponse]:
            if context.api_version < _FIRST_FETCH_OF_GROUPS:
                return of_one(context, request)
            if any(group.topics is None for group in request.groups):  # a group may have them once
                return handler(context, request)
            return of_many(context, request)

        return handle

    def _name_of(self, topic: _NamesTopic) -> str | None:
        """The name of a topic that a request has by name or by id; None for an unknown id."""
        if topic.topic_id == ZERO_UUID:
            return topic.name
        return self._topic_name(topic.topic_id)

    def _timed(self, handle: Callable[[RequestContext, Q, int], R]) -> Callable[[RequestContext, Q], R]:
        clock, on_handled = self._clock, self._on_handled

        def handler(context: RequestContext, request: Q) -> R:
            reply = handle(context, request, clock.mono_ms())
            on_handled()
            return reply

        return handler

    def _describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest, now_ms: int
    ) -> Steps[DescribeGroupsResponse]:
        response = DescribeGroupsResponse()
        in_step = 0
        for group in self._coordinator.describe_groups(context, request, now_ms):
            if in_step >= ITEMS_A_STEP:
                in_step = 0
                yield
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = operations_on(context, AclResourceType.GROUP, group.group_id)
            response.groups.append(group)
            in_step += 1 + len(group.members)
        return response

    def _list_groups(
        self, context: RequestContext, request: ListGroupsRequest, now_ms: int
    ) -> Steps[ListGroupsResponse]:
        """In steps: a coordinator may have very many groups. Who may describe the cluster sees all, others those that
        they may describe."""
        sees_all = context.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False)
        return _listed_groups(context, self._coordinator.list_groups(request, now_ms), sees_all)


def _listed_groups(context: RequestContext, every: Iterable[ListedGroup], sees_all: bool) -> Steps[ListGroupsResponse]:
    response = ListGroupsResponse()
    for count, group in enumerate(every, 1):
        if count % _STEP_ITEMS == 0:
            yield
        if sees_all or DESCRIBE_GROUP.holds_quietly(context, group.group_id):
            response.groups.append(group)
    return response


def _may_commit_in_transaction(caller: Caller, request: TxnOffsetCommitRequest) -> ApiError | None:
    """The caller must be allowed to write under the transactional id, and to read the group."""
    refusal = WRITE_TRANSACTIONAL_ID.refusal(caller, request.transactional_id)
    return refusal if refusal is not None else READ_GROUP.refusal(caller, request.group_id)


def _offsets_not_deleted(request: OffsetDeleteRequest, version: int, error: ApiError) -> OffsetDeleteResponse:
    """The error of every partition."""
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=error.code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# How each API reports that the whole request failed.


def txn_offset_commit_failed(request: TxnOffsetCommitRequest, version: int, error: ApiError) -> TxnOffsetCommitResponse:
    """The error of every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error.code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def join_group_failed(request: JoinGroupRequest, version: int, error: ApiError) -> JoinGroupResponse:
    """The error on top. No protocol is null from version 7 on, an empty name before."""
    name = None if version >= _FIRST_JOIN_WITHOUT_NAME else ""
    return JoinGroupResponse(error_code=error.code, protocol_name=name)


def sync_group_failed(request: SyncGroupRequest, version: int, error: ApiError) -> SyncGroupResponse:
    """The error on top."""
    return SyncGroupResponse(error_code=error.code)


def heartbeat_failed(request: HeartbeatRequest, version: int, error: ApiError) -> HeartbeatResponse:
    """The error on top."""
    return HeartbeatResponse(error_code=error.code)


def leave_group_failed(request: LeaveGroupRequest, version: int, error: ApiError) -> LeaveGroupResponse:
    """The error on top."""
    return LeaveGroupResponse(error_code=error.code)


def describe_groups_failed(request: DescribeGroupsRequest, version: int, error: ApiError) -> DescribeGroupsResponse:
    """The error of every group."""
    message = message_of(error) if version >= _FIRST_DESCRIBE_WITH_MESSAGE else None
    return DescribeGroupsResponse(
        groups=[
            DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error.code, error_message=message)
            for group_id in request.groups
        ]
    )


def list_groups_failed(request: ListGroupsRequest, version: int, error: ApiError) -> ListGroupsResponse:
    """The error on top."""
    return ListGroupsResponse(error_code=error.code)


def delete_groups_failed(request: DeleteGroupsRequest, version: int, error: ApiError) -> DeleteGroupsResponse:
    """The error of every group."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error.code) for group_id in request.groups_names]
    )


def offset_commit_failed(request: OffsetCommitRequest, version: int, error: ApiError) -> OffsetCommitResponse:
    """The error of every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error.code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def offset_fetch_failed(request: OffsetFetchRequest, version: int, error: ApiError) -> OffsetFetchResponse:
    """The error of every group from version 8 on, on top in versions 2 to 7, of every partition in version 1."""
    if version >= _FIRST_FETCH_OF_GROUPS:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code) for group in request.groups
            ]
        )
    if version >= _FIRST_FETCH_ERROR_ON_TOP:
        return OffsetFetchResponse(error_code=error.code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=error.code)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def offset_delete_failed(request: OffsetDeleteRequest, version: int, error: ApiError) -> OffsetDeleteResponse:
    """The error on top."""
    return OffsetDeleteResponse(error_code=error.code)
