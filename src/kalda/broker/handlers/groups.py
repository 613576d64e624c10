"""The group APIs: handed to the coordinator, with the time.

After each one the coordinator's next deadline may be nearer than the timer that is set; `on_handled` is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.base.clock import Clock
from kalda.base.pending import Pending
from kalda.broker.dispatch import Handler, Reply, RequestContext
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kalda.protocol.messages.security import AclOperation

# Without an authorizer everybody may do everything.
GROUP_OPERATIONS = AclOperation.bits(
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)


class GroupHandlers:
    """Classic groups and their offsets."""

    def __init__(self, coordinator: GroupCoordinator, clock: Clock, on_handled: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._on_handled = on_handled

    def table(self) -> dict[ApiKey, Handler]:
        """A handler for each API."""
        coordinator = self._coordinator
        return {
            ApiKey.JOIN_GROUP: self._timed(coordinator.join_group),
            ApiKey.SYNC_GROUP: self._timed(coordinator.sync_group),
            ApiKey.HEARTBEAT: self._timed(coordinator.heartbeat),
            ApiKey.LEAVE_GROUP: self._timed(coordinator.leave_group),
            ApiKey.DESCRIBE_GROUPS: self._timed(self._describe_groups),
            ApiKey.LIST_GROUPS: self._timed(coordinator.list_groups),
            ApiKey.DELETE_GROUPS: self._timed(coordinator.delete_groups),
            ApiKey.OFFSET_COMMIT: self._timed(coordinator.offset_commit),
            ApiKey.OFFSET_FETCH: self._timed(coordinator.offset_fetch),
            ApiKey.OFFSET_DELETE: self._timed(coordinator.offset_delete),
        }

    def _timed(self, handle: Callable[[RequestContext, Any, int], Reply]) -> Handler:
        clock, on_handled = self._clock, self._on_handled

        def handler(context: RequestContext, request: Any) -> Reply:
            reply = handle(context, request, clock.mono_ms())
            on_handled()
            return reply

        return handler

    def _describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest, now_ms: int
    ) -> DescribeGroupsResponse | Pending[DescribeGroupsResponse]:
        response = self._coordinator.describe_groups(context, request, now_ms)
        if request.include_authorized_operations and isinstance(response, DescribeGroupsResponse):
            for group in response.groups:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return response
