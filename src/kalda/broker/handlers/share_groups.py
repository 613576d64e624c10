"""Share groups (KIP-932): ShareGroupHeartbeat (76), ShareGroupDescribe (77), DescribeShareGroupOffsets (90),
AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), at the coordinator of the group.

They are served and announced, with ShareFetch and ShareAcknowledge, while the feature `share.version` is finalized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.shared import described, error_on_items, error_on_top
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import Authorization, Items, Row, itself, message_of, on_group
from kalda.coordinator.answers import answer_after_all
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.protocol.access import DELETE_GROUP, DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_GROUP, READ_TOPIC
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

Q = TypeVar("Q")
R = TypeVar("R")

Timed = Callable[[Callable[[RequestContext, Q, int], R]], Callable[[RequestContext, Q], R]]


class ShareGroupHandlers:
    """All five APIs, on the coordinator of groups."""

    def __init__(self, coordinator: GroupCoordinator, is_enabled: Callable[[], bool]) -> None:
        """`is_enabled()`: whether they are served now."""
        self._coordinator = coordinator
        self._is_enabled = is_enabled

    def rows(self, timed: Timed) -> list[Row]:  # type: ignore[type-arg]
        """One row an API. `timed` makes a handler of a method that takes the time."""
        described = Items(DESCRIBE_GROUP, share_group_describe_failed, "group_ids", "groups", itself)
        offsets = Items(
            DESCRIBE_GROUP, describe_offsets_failed, "groups", "groups", name_of=lambda group: str(group.group_id)
        )
        altered = Items(
            READ_TOPIC, _alter_failed_of_topics, "topics", "responses", name_of=lambda topic: str(topic.topic_name)
        )
        deleted = Items(
            READ_TOPIC, _delete_failed_of_topics, "topics", "responses", name_of=lambda topic: str(topic.topic_name)
        )
        return [
            Row(ApiKey.SHARE_GROUP_HEARTBEAT, timed(self._heartbeat), error_on_top, on_group(READ_GROUP)),
            Row(
                ApiKey.SHARE_GROUP_DESCRIBE,
                timed(self._describe),
                share_group_describe_failed,
                Authorization.PER_ITEM,
                items=described.stage,
                has_large_answer=True,
            ),
            Row(
                ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
                timed(self._describe_offsets),
                describe_offsets_failed,
                Authorization.PER_ITEM,
                items=offsets.stage,
            ),
            Row(
                ApiKey.ALTER_SHARE_GROUP_OFFSETS,
                timed(self._alter_offsets),
                error_on_top,
                on_group(READ_GROUP),
                items=altered.stage,
            ),
            Row(
                ApiKey.DELETE_SHARE_GROUP_OFFSETS,
                timed(self._delete_offsets),
                error_on_top,
                on_group(DELETE_GROUP),
                items=deleted.stage,
            ),
        ]

    def _check_enabled(self) -> None:
        if not self._is_enabled():
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def _heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest, now_ms: int
    ) -> Reply[ShareGroupHeartbeatResponse]:
        """A member must be allowed to describe all topics that it names."""
        self._check_enabled()
        names = request.subscribed_topic_names
        if names and DESCRIBE_TOPIC.refused(context, dict.fromkeys(names, 1)) is not None:
            return ShareGroupHeartbeatResponse(error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        return self._coordinator.share_group_heartbeat(context, request, now_ms)

    def _describe(
        self, context: RequestContext, request: ShareGroupDescribeRequest, now_ms: int
    ) -> Steps[ShareGroupDescribeResponse]:
        self._check_enabled()
        groups = self._coordinator.describe_share_groups(request, now_ms)
        return ShareGroupDescribeResponse(groups=(yield from described(context, request, groups, _visible)))

    def _describe_offsets(
        self, context: RequestContext, request: DescribeShareGroupOffsetsRequest, now_ms: int
    ) -> Reply[DescribeShareGroupOffsetsResponse]:
        self._check_enabled()
        self._coordinator.runtime.advance(now_ms)
        described = [self._coordinator.share_offsets.describe(group) for group in request.groups]

        def finish() -> DescribeShareGroupOffsetsResponse:
            return DescribeShareGroupOffsetsResponse(
                groups=[
                    _visible_offsets(context, group.group_id, outcome)
                    for group, outcome in zip(request.groups, described, strict=True)
                ]
            )

        return answer_after_all(described, finish)

    def _alter_offsets(
        self, context: RequestContext, request: AlterShareGroupOffsetsRequest, now_ms: int
    ) -> Pending[AlterShareGroupOffsetsResponse]:
        self._check_enabled()
        self._coordinator.runtime.advance(now_ms)
        return self._coordinator.share_offsets.alter(request)

    def _delete_offsets(
        self, context: RequestContext, request: DeleteShareGroupOffsetsRequest, now_ms: int
    ) -> Pending[DeleteShareGroupOffsetsResponse]:
        self._check_enabled()
        self._coordinator.runtime.advance(now_ms)
        return self._coordinator.share_offsets.delete(request)


def _visible(
    context: RequestContext, group: ShareGroupDescribeResponseDescribedGroup
) -> ShareGroupDescribeResponseDescribedGroup:
    """The group; an error in its place where the caller may not describe all of its topics."""
    if context.authorizer is None:
        return group
    names = {topic.topic_name: 1 for member in group.members for topic in member.assignment.topic_partitions}
    if DESCRIBE_TOPIC.refused(context, names) is None:
        return group
    return ShareGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )


def _visible_offsets(
    context: RequestContext, group_id: str, outcome: Pending[DescribeShareGroupOffsetsResponseGroup]
) -> DescribeShareGroupOffsetsResponseGroup:
    """Offsets of topics that the caller may describe."""
    if outcome.error is not None or outcome.value is None:
        code = ErrorCode.UNKNOWN_SERVER_ERROR if outcome.error is None else outcome.error.code
        return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=int(code))
    group = outcome.value
    refused = DESCRIBE_TOPIC.refused(context, dict.fromkeys((topic.topic_name for topic in group.topics), 1))
    if refused is not None:
        group.topics = [topic for topic in group.topics if topic.topic_name not in refused]
    return group


# How each API reports that the whole request failed.


share_group_describe_failed = error_on_items("groups", "group_ids")


describe_offsets_failed = error_on_items("groups")


def _alter_failed_of_topics(request: Any, version: int, error: ApiError) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(
        responses=[
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=[
                    AlterShareGroupOffsetsResponsePartition(
                        partition_index=each.partition_index,
                        error_code=int(error.code),
                        error_message=message_of(error),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete_failed_of_topics(request: Any, version: int, error: ApiError) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(
        responses=[
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, error_code=int(error.code), error_message=message_of(error)
            )
            for topic in request.topics
        ]
    )
