"""A member of a classic group: join, sync, heartbeat, commit, leave, with the range assignor.

There is no thread: the caller calls `poll` between batches, which sends a heartbeat when one is due and returns False
when the group rebalances. Then the caller commits what it has read and calls `join` again. Requests have a lane of
their own, so that a fetch that waits for records delays no heartbeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.groups import CommittedOffset, commit_offsets, committed_offsets
from kalda.client.cluster_client import ClusterClient
from kalda.client.core.assignors import Subscriber, assign_range
from kalda.client.core.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kalda.client.errors import refused
from kalda.client.retry import Deadline
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

_LANE = "group"
_PROTOCOL_TYPE = "consumer"
_ASSIGNOR = "range"
_SLACK_MS = 5_000
"""How long a response may take beyond the rebalance timeout."""
_REJOIN = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID))
"""Errors after which the member joins again."""


class GroupMember:
    """Joins the group with `join`; a context manager that leaves it at its end."""

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        topics: Collection[str],
        *,
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 60_000,
        heartbeat_interval_ms: int = 3_000,
    ) -> None:
        self.group_id = group_id
        self.member_id = ""
        """Given by the coordinator; empty before the first `join`, and after the coordinator removed the member."""
        self.generation_id = -1
        self.assignment: tuple[TopicPartition, ...] = ()
        self._cluster = cluster
        self._topics = sorted(topics)
        self._instance_id = instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._next_heartbeat = Deadline(0)

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def join(self) -> tuple[TopicPartition, ...]:
        """Join, and join again while rebalances are interrupted by others; returns the partitions to read.

        Raises `ApiError`, for example where the other members do not support the range assignor.
        """
        left = Deadline(2 * self._rebalance_timeout_ms + self._cluster.timeout_ms)
        while True:
            try:
                joined = self._join()
                self.member_id, self.generation_id = joined.member_id, joined.generation_id
                self.assignment = self._sync(joined)
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                if error.code not in _REJOIN or left.is_past:
                    raise
            else:
                self._next_heartbeat = Deadline(self._heartbeat_interval_ms)
                return self.assignment

    def poll(self) -> bool:
        """Send a heartbeat where one is due. False: the group rebalances, or removed this member; `join` again."""
        if not self._next_heartbeat.is_past:
            return True
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
        )
        try:
            self._request(request, self._session_timeout_ms)
        except ApiError as error:
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            if error.code not in _REJOIN:
                raise
            return False
        self._next_heartbeat = Deadline(self._heartbeat_interval_ms)
        return True

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """The group's committed offsets of the assigned partitions; partitions without one are left out."""
        if not self.assignment:
            return {}
        return committed_offsets(self._cluster, self.group_id, self.assignment, lane=_LANE)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets to read next. Raises `ApiError`: one of `REBALANCE_IN_PROGRESS`, `ILLEGAL_GENERATION` and
        `UNKNOWN_MEMBER_ID` where the partitions were reassigned, so that other members read the records again."""
        if offsets:
            commit_offsets(
                self._cluster,
                self.group_id,
                offsets,
                generation_id=self.generation_id,
                member_id=self.member_id,
                instance_id=self._instance_id,
                lane=_LANE,
            )

    def leave(self) -> None:
        """Leave, so that the other members take over without waiting for the session timeout. A static member does
        not leave, since it may return under the same instance id. Raises no `ApiError`."""
        if not self.member_id or self._instance_id is not None:
            return
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(member_id=self.member_id, reason="the consumer stops")]
        )
        with contextlib.suppress(ApiError):  # it has left already, or the session timeout will remove it
            self._request(request, self._heartbeat_interval_ms)
        self.member_id = ""

    # -- one rebalance

    def _join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=_ASSIGNOR, metadata=write_subscription(self._topics))],
        )
        timeout_ms = self._rebalance_timeout_ms + _SLACK_MS
        try:
            answer = self._request(request, timeout_ms)
        except _MemberIdRequired as error:
            request.member_id = self.member_id = error.member_id
            answer = self._request(request, timeout_ms)
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def _sync(self, joined: JoinGroupResponse) -> tuple[TopicPartition, ...]:
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = self._assign(joined)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        answer = self._request(request, self._rebalance_timeout_ms + _SLACK_MS)
        return read_assignment(answer.assignment)

    def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        subscribers = [
            Subscriber(member.member_id, read_subscription(member.metadata), member.group_instance_id)
            for member in joined.members
        ]
        names = sorted({topic for subscriber in subscribers for topic in subscriber.topics})
        topics = self._cluster.metadata(names).topics if names else {}
        assigned = assign_range(subscribers, {name: len(topic.partitions) for name, topic in topics.items()})
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions))
            for member_id, partitions in assigned.items()
        ]

    def _request(self, request: Any, timeout_ms: int) -> Any:
        def check(answer: Any) -> None:
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                raise _MemberIdRequired(answer.member_id)
            if answer.error_code:
                raise refused(answer.error_code, f"group {self.group_id!r}")

        return self._cluster.ask_coordinator(
            self.group_id, request, check=check, timeout_ms=max(timeout_ms, _SLACK_MS), lane=_LANE
        )


class _MemberIdRequired(Exception):
    """The coordinator answered with a member id; the request has to be sent again with this id (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.member_id = member_id
