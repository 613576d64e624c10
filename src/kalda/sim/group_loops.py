"""Consume-transform-produce by members of a group (KIP-447): each member has a transactional id of its own.

So no transactional id fences a member that the group has removed while its transaction is open. What does is the
generation in its TxnOffsetCommit. Members join, leave, and are paused for longer than their session lasts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.commits import GroupMetadata
from kalda.sim.membership import REJOIN, Membership
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
        self._membership = Membership(client, group, counts, _SESSION_MS, _REBALANCE_MS)
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

    def _has_finished(self) -> bool:
        """It goes on after `stop`, until the scenario finds no input left."""
        return False

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
