"""Members of consumer groups: they share partitions, read from the committed offsets on, commit, leave and join again.

The guarantees of a group: a committed offset never decreases, for any member that fetches it; so a commit of a member
of an earlier generation changes nothing. And no record is skipped: every record below the committed offset was read by
some member.

A commit without a response may still be carried out, even after later ones of the same generation, since commits have
no sequence number. So after a commit whose outcome is unknown, a member makes no other before it is in a new
generation; it joins again with a changed subscription to cause one.
"""

from __future__ import annotations

import asyncio
import contextlib

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kalda.sim.client import SimClient
from kalda.sim.history import History
from kalda.sim.membership import REJOIN, Membership, check
from kalda.sim.readers import Reader

_SESSION_MS = 3_000
_REBALANCE_MS = 2_500
_HEARTBEAT_S = 0.5
_MAX_WAIT_MS = 100


class Group:
    """What a group has read and committed."""

    def __init__(self, name: str, partitions: list[TopicPartition]) -> None:
        self.name = name
        self.topics = sorted({topic for topic, _ in partitions})
        self.counts = {name: sum(topic == name for topic, _ in partitions) for name in self.topics}
        self.read: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self.committed = dict.fromkeys(partitions, 0)
        """The highest offset whose commit was acknowledged, or that a member has fetched."""
        self.attempted = dict.fromkeys(partitions, 0)
        """The highest offset of which a commit was attempted."""
        self.generations = 0
        self.ends: dict[TopicPartition, int] | None = None
        """The log end offsets, set when nothing is written any more: the members read up to these, and end."""

    @property
    def done(self) -> bool:
        """Every record was read, and the ends of all logs are committed."""
        return self.ends is not None and all(self.committed[each] >= end for each, end in self.ends.items())


class Member:
    """One member's process. At times it leaves, or drops its member id, and joins as a new member."""

    def __init__(self, client: SimClient, history: History, group: Group, rack: str = "") -> None:
        self._client = client
        self._reader = Reader(client, history, rack)
        self._world = client.world
        self._history = history
        self._group = group
        self._membership = Membership(client, group.name, group.counts, _SESSION_MS, _REBALANCE_MS)
        self._positions: dict[TopicPartition, int] = {}
        self._uncommitted: set[TopicPartition] = set()
        self._next_heartbeat_s = 0.0
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        client, group = self._client, self._group
        while not group.done:
            try:
                await self._join()
                await self._serve()
            except ApiError as error:
                if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    self._membership.member_id = ""
                if error.code not in REJOIN and not error.code.retriable:
                    self._world.violated(f"{client.name} of {group.name}: {error}")
                    return
                client.forget_leaders()
                await client.pause()
        with contextlib.suppress(ApiError):  # then its session times out
            await self._membership.leave()

    # Rebalances.

    async def _join(self) -> None:
        membership = self._membership
        await membership.join()
        self._group.generations = max(self._group.generations, membership.generation)
        self._uncommitted.clear()
        self._next_heartbeat_s = self._world.now_s + _HEARTBEAT_S
        assigned = ", ".join(map(str, membership.assigned))
        self._world.trace(self._client.name, f"has {assigned or 'no partition'} in generation {membership.generation}")

    # Reading and committing.

    async def _serve(self) -> None:
        """Read and commit until the group rebalances, or until a random time at which the member ends."""
        rng = self._client.rng
        await self._fetch_committed()
        leave_at_s = self._world.now_s + rng.choice((1, 5, 20)) * rng.random()
        while not self._group.done:
            for partition in self._membership.assigned:
                await self._read(partition)
                await self._heartbeat()
            if not self._membership.assigned:
                await asyncio.sleep(_HEARTBEAT_S)
                await self._heartbeat()
            if rng.random() < 0.3 or self._group.ends is not None:
                await self._commit()
            if self._world.now_s > leave_at_s and self._group.ends is None:
                if rng.random() < 0.5:
                    await self._commit()
                    await self._membership.leave()
                self._membership.member_id = ""
                await asyncio.sleep(rng.random())
                return

    async def _fetch_committed(self) -> None:
        """Fetch the committed offsets. They must include every commit that was acknowledged before the request."""
        if not self._membership.assigned:
            return
        group = self._group
        floor = {partition: group.committed[partition] for partition in self._membership.assigned}
        topics = [
            OffsetFetchRequestTopics(name=name, partition_indexes=i) for name, i in _by_topic(self._membership.assigned)
        ]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group.name, topics=topics)], require_stable=True
        )
        [answer] = (await self._membership.ask(request, 8)).groups
        check(answer.error_code)
        for topic in answer.topics:
            for found in topic.partitions:
                check(found.error_code)
                partition = TopicPartition(topic.name, found.partition_index)
                offset = max(0, found.committed_offset)
                if offset < floor[partition]:
                    self._world.violated(
                        f"{group.name} had committed {floor[partition]} of {partition}, and now has {offset}"
                    )
                if offset > group.attempted[partition]:
                    self._world.violated(f"no member of {group.name} committed {offset} of {partition}")
                self._positions[partition] = offset
                group.committed[partition] = max(group.committed[partition], offset)

    async def _read(self, partition: TopicPartition) -> None:
        try:
            records, position = await self._reader.read(partition, self._positions[partition], _MAX_WAIT_MS)
        except ApiError as error:
            if not self._reader.may_fail(partition, error):
                self._world.violated(f"{self._client.name} cannot read {partition}: {error}")
            self._client.forget_leaders()
            await self._client.pause()
            return
        self._history.read(self._client.name, partition, records)
        if records:
            self._group.read[partition].update(offset for offset, _ in records)
        if position != self._positions[partition]:
            if not records:  # these offsets were deleted; a later leader may still have their records
                self._group.read[partition].update(range(self._positions[partition], position))
            self._positions[partition] = position
            self._uncommitted.add(partition)

    async def _heartbeat(self) -> None:
        if self._world.now_s < self._next_heartbeat_s:
            return
        code = await self._membership.heartbeat()
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            await self._commit()
        check(code)
        self._next_heartbeat_s = self._world.now_s + _HEARTBEAT_S

    async def _commit(self) -> None:
        """Commit what was read. Raises `ApiError` where the outcome is unknown; then the member has to join again."""
        if not self._uncommitted:
            return
        group = self._group
        offsets = {partition: self._positions[partition] for partition in sorted(self._uncommitted)}
        for partition, offset in offsets.items():
            group.attempted[partition] = max(group.attempted[partition], offset)
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[TopicPartition(name, index)]
                    )
                    for index in indexes
                ],
            )
            for name, indexes in _by_topic(list(offsets))
        ]
        answer = await self._membership.ask(
            OffsetCommitRequest(
                group_id=group.name,
                generation_id_or_member_epoch=self._membership.generation,
                member_id=self._membership.member_id,
                topics=topics,
            ),
            9,
        )
        for topic in answer.topics:
            for each in topic.partitions:
                check(each.error_code)
        for partition, offset in offsets.items():
            group.committed[partition] = max(group.committed[partition], offset)
        self._uncommitted.clear()
        self._world.trace(self._client.name, f"committed {', '.join(f'{t}-{i} {o}' for (t, i), o in offsets.items())}")


def judge(group: Group, partition: TopicPartition, log: dict[int, bytes]) -> str:
    """How the group has violated its guarantees for a partition with these final records; empty where it has not."""
    skipped = [offset for offset in log if offset < group.committed[partition] and offset not in group.read[partition]]
    return f"{group.name} never read {sorted(skipped)[:5]} of {partition}, but committed beyond" if skipped else ""


def _by_topic(partitions: list[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return list(topics.items())
