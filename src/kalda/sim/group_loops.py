"""Consume-transform-produce by members of a group (KIP-447): each member has a transactional id of its own.

So no transactional id fences a member that the group has removed while its transaction is open. What does is the
generation in its TxnOffsetCommit. Members join, leave, and are paused for longer than their session lasts. They are
classic members; the one that leads the group assigns the partitions by range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kalda.assignors.consumer_protocol import read_assignment, write_assignment, write_subscription
from kalda.assignors.stateless import Subscriber, assign_range
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.positions import GroupMetadata
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
from kalda.sim.transaction_clients import Worker, committed_offsets, read_at, stable_consumer
from kalda.verify.history import Append, Consumed, Outcome, Read

_SESSION_MS = 1_000
"""Shorter than the transactions' timeout: a member is removed while its transaction is open."""
_REBALANCE_MS = 1_500
_HEARTBEAT_S = 0.3
_LEAVES = 0.04
"""The share of steps after which a member leaves the group, and joins again as a new one."""


class GroupLoop(Worker):
    """A member that processes whichever inputs the group assigns to it, each into its partition of `outputs`."""

    def __init__(self, *arguments: Any, group: str, outputs: dict[TopicPartition, TopicPartition]) -> None:
        client = arguments[0]
        self._group = group
        self._outputs = outputs
        counts = {topic: sum(each.topic == topic for each in outputs) for topic, _ in outputs}
        self._membership = LoopMembership(client, group, counts, _SESSION_MS, _REBALANCE_MS)
        self._consumer = stable_consumer(client, group)
        """Reads what the membership assigns; it is no member itself."""
        self._is_member = False
        self._next_heartbeat_s = 0.0
        self._committed: dict[TopicPartition, int] | None = None
        """The group's offsets of the assigned partitions; None: to be fetched."""
        self._positions: dict[TopicPartition, int] = {}
        self._transacts = False
        """Whether a transaction is under way: an error then ends this incarnation."""
        super().__init__(*arguments)

    async def _close(self) -> None:
        await self._consumer.close(0)
        await super()._close()

    async def step(self) -> None:
        try:
            await self._step()
        except ApiError as error:
            if self._transacts or not (error.code in REJOIN or error.code.retriable):
                raise
            self.client.world.trace(self.client.name, f"joins again: {error}")
            self._is_member = False
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._membership.member_id = ""
            self.client.forget_leaders()
            await self.client.pause()

    async def _step(self) -> None:
        membership, world = self._membership, self.client.world
        if not self._is_member:
            await membership.join()
            self._is_member, self._committed = True, None
            self._next_heartbeat_s = world.now_s + _HEARTBEAT_S
            mine = ", ".join(map(str, membership.assigned)) or "no partition"
            world.trace(self.client.name, f"has {mine} in generation {membership.generation}")
        await self._heartbeat()
        if not membership.assigned:
            return
        if self._committed is None:
            self._committed = await committed_offsets(self._consumer, membership.assigned)
            self._positions = dict(self._committed)
        await self._process(self.client.rng.choice(membership.assigned), self._committed)
        if self.client.rng.random() < _LEAVES and not self.is_stopping:
            self._is_member = False
            await membership.leave()

    async def _heartbeat(self) -> None:
        if self.client.world.now_s < self._next_heartbeat_s:
            return
        code = await self._membership.heartbeat()
        if code:
            raise ApiError(code)
        self._next_heartbeat_s = self.client.world.now_s + _HEARTBEAT_S

    async def _process(self, partition: TopicPartition, committed: dict[TopicPartition, int]) -> None:
        """One transaction, where there is input."""
        begun_us, start = self.now_us, self._positions[partition]
        records, end = await read_at(self._consumer, partition, start)
        self._positions[partition] = end
        transaction = self.next_transaction()
        self._history.add(
            Read(self.client.name, partition, start, end, begun_us, self.now_us, records, transaction.name)
        )
        if not records:
            return
        output, membership = self._outputs[partition], self._membership
        appends = tuple(Append(output, f"{transaction.name}<{r.value}", None, r.value) for r in records)
        consumed = (Consumed(self._group, partition, committed[partition], end),)
        member = GroupMetadata(self._group, membership.generation, membership.member_id)
        transaction = replace(transaction, appends=appends, consumed=consumed)
        self._transacts = True
        ended = await self.transact(transaction, member, {partition: end})
        self._transacts = False
        if ended.outcome is Outcome.COMMITTED:
            committed[partition] = end
        else:
            self._committed = None
            self._next_heartbeat_s = 0.0  # it may have been removed from the group


REJOIN = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID))
"""After these a member joins again."""


class LoopMembership:
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
