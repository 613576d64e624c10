"""Membership of a classic consumer group: join, synchronize, heartbeats, leave.

The member that leads the group assigns the partitions by range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.assignors import Subscriber, assign_range
from kalda.client.core.consumer_protocol import read_assignment, write_assignment, write_subscription
from kalda.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kalda.protocol.notation import Request
from kalda.sim.client import SimClient

REJOIN = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID))
"""After these a member joins again."""


class Membership:
    """One member of a group. Every method raises `ApiError`."""

    def __init__(
        self, client: SimClient, group: str, counts: Mapping[str, int], session_ms: int, rebalance_ms: int
    ) -> None:
        """`counts`: the number of partitions of each topic of the group."""
        self._client = client
        self._group = group
        self._counts = dict(counts)
        self._session_ms = session_ms
        self._rebalance_ms = rebalance_ms
        self._joins = 0
        self.member_id = ""
        """Empty before the first join, and where the member joins as a new one."""
        self.generation = -1
        self.assigned: list[TopicPartition] = []

    async def join(self) -> None:
        """Join, with a subscription that has changed: so the group begins a new generation."""
        self._joins += 1
        joined = await self.ask(self._join_request(), 9)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = await self.ask(self._join_request(), 9)
        check(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        synced = await self.ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
                assignments=self._assign(joined) if joined.leader == self.member_id else [],
            ),
            5,
        )
        check(synced.error_code)
        self.assigned = [TopicPartition(each.topic, each.partition) for each in read_assignment(synced.assignment)]

    def _join_request(self) -> JoinGroupRequest:
        subscription = write_subscription(sorted(self._counts), b"%d" % self._joins)
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )

    def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        topics = tuple(sorted(self._counts))
        subscribers = [Subscriber(member.member_id, topics, None) for member in joined.members]
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions))
            for member_id, partitions in assign_range(subscribers, self._counts).items()
        ]

    async def heartbeat(self) -> ErrorCode:
        """The answer's error."""
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self.member_id)
        return ErrorCode((await self.ask(request, 4)).error_code)

    async def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        await self.ask(LeaveGroupRequest(group_id=self._group, members=[identity]), 5)
        self.member_id = ""

    async def ask(self, request: Request, version: int) -> Any:
        """A request to the group's coordinator."""
        return await self._client.ask_coordinator(self._group, request, version)


def check(code: int) -> None:
    """Raise an error of a response."""
    if code:
        raise ApiError(ErrorCode(code))
