"""Consumer groups of KIP-848: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).

They are served and announced while the feature `group.version` is finalized at level 1 and
`group.coordinator.rebalance.protocols` has `consumer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.handlers.shared import described, error_on_items, error_on_top
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import Authorization, Items, Row, itself, on_group
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.protocol.access import DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_GROUP
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

Q = TypeVar("Q")
R = TypeVar("R")

Timed = Callable[[Callable[[RequestContext, Q, int], R]], Callable[[RequestContext, Q], R]]


class ConsumerGroupHandlers:
    """Both APIs, on the coordinator of groups."""

    def __init__(self, coordinator: GroupCoordinator, is_enabled: Callable[[], bool]) -> None:
        """`is_enabled()`: whether they are served now."""
        self._coordinator = coordinator
        self._is_enabled = is_enabled

    def rows(self, timed: Timed) -> list[Row]:  # type: ignore[type-arg]
        """One row an API. `timed` makes a handler of a method that takes the time."""
        described = Items(DESCRIBE_GROUP, consumer_group_describe_failed, "group_ids", "groups", itself)
        return [
            Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, timed(self._heartbeat), error_on_top, on_group(READ_GROUP)),
            Row(
                ApiKey.CONSUMER_GROUP_DESCRIBE,
                timed(self._describe),
                consumer_group_describe_failed,
                Authorization.PER_ITEM,
                items=described.stage,
                has_large_answer=True,
            ),
        ]

    def _heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> Reply[ConsumerGroupHeartbeatResponse]:
        """A member must be allowed to describe all topics that it names."""
        if not self._is_enabled():
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        names = request.subscribed_topic_names
        if names and DESCRIBE_TOPIC.refused(context, dict.fromkeys(names, 1)) is not None:
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        return self._coordinator.consumer_group_heartbeat(context, request, now_ms)

    def _describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest, now_ms: int
    ) -> Steps[ConsumerGroupDescribeResponse]:
        if not self._is_enabled():
            unsupported = ApiError(ErrorCode.UNSUPPORTED_VERSION)
            failed: ConsumerGroupDescribeResponse
            failed = consumer_group_describe_failed(request, context.api_version, unsupported)
            return failed
        groups = self._coordinator.describe_consumer_groups(request, now_ms)
        return ConsumerGroupDescribeResponse(groups=(yield from described(context, request, groups, _visible)))


def _visible(
    context: RequestContext, group: ConsumerGroupDescribeResponseDescribedGroup
) -> ConsumerGroupDescribeResponseDescribedGroup:
    """The group; an error in its place where the caller may not describe all of its topics."""
    if context.authorizer is None:
        return group
    names = {
        topic.topic_name: 1
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    if DESCRIBE_TOPIC.refused(context, names) is None:
        return group
    return ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )


consumer_group_describe_failed = error_on_items("groups", "group_ids")
