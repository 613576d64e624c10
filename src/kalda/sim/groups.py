"""Members of consumer groups: they share partitions, read from the committed offsets on, commit, leave and join again.

A member is Kalda's own consumer; the members of a group have one assignor. They use the classic protocol, that of
KIP-848, or each of them at times the one and at times the other; then the group changes its kind while it consumes.

The guarantees of a group: a committed offset never decreases, for any member that fetches it; so a commit of a member
of an earlier generation changes nothing. And no record is skipped: every record below the committed offset was read by
some member. What `ownership` promises holds for members of the consumer protocol.

A commit without a response may still be carried out, even after later ones of the same generation, since commits have
no sequence number. So after a request to commit whose outcome is unknown, a member makes no other commit; it leaves the
group and joins it as another member.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.consumer_calls import Offset, Partition
from kalda.clientcore.connections.connections import OnDone
from kalda.clientcore.consuming.commits import committed_errors, read_committed
from kalda.protocol.messages.groups import ConsumerGroupHeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kalda.protocol.notation import Request
from kalda.sim.client import SimClient
from kalda.sim.history import RunHistory
from kalda.sim.ownership import Ownership
from kalda.sim.workload import CheckedReader

SESSION_MS = 3_000
HEARTBEAT_MS = 500
_POLL_INTERVALS_MS = (2_500, 60_000)
_POLL_S = 0.5
_COMMIT_S = 4.0
_CLOSE_S = 5.0


class SimGroup:
    """What a group has read and committed."""

    def __init__(
        self, name: str, partitions: list[TopicPartition], rng: Random, protocols: tuple[str, ...] = ("classic",)
    ) -> None:
        """`protocols`: those of which a member has one each time it joins."""
        self.name = name
        self.protocols = protocols
        self.ownership: Ownership | None = None
        """Set where members use the consumer protocol."""
        self.assignor = rng.choice(("range", "roundrobin", "sticky", "cooperative-sticky"))
        self.topics = sorted({topic for topic, _ in partitions})
        self.read: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self.committed = dict.fromkeys(partitions, 0)
        """The highest offset whose commit was acknowledged, or that a member has fetched."""
        self.attempted = dict.fromkeys(partitions, 0)
        """The highest offset of which a commit was attempted."""
        self.ends: dict[TopicPartition, int] | None = None
        """The log end offsets, set when nothing is written any more: the members read up to these, and end."""

    @property
    def done(self) -> bool:
        """Every record was read, and the ends of all logs are committed."""
        return self.ends is not None and all(self.committed[each] >= end for each, end in self.ends.items())

    def config(self, rng: Random) -> dict[str, object]:
        """The configuration of a member."""
        common: dict[str, object] = {"group.id": self.name, "max.poll.interval.ms": rng.choice(_POLL_INTERVALS_MS)}
        if "consumer" in self.protocols and (len(self.protocols) == 1 or rng.random() < 0.5):
            return common | {"group.protocol": "consumer", "group.remote.assignor": rng.choice(("uniform", "range"))}
        return common | {
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }


class SimMember:
    """One member's process. At times it leaves, or drops its member id, and joins as a new member."""

    def __init__(self, client: SimClient, history: RunHistory, group: SimGroup, rack: str = "") -> None:
        self._client = client
        self._history = history
        self._group = group
        self._rack = rack
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        while not self._group.done:
            membership = _Membership(self._client, self._history, self._group, self._rack)
            await membership.run()
            await self._client.pause()


class _Membership(CheckedReader):
    """A member from its first join to its end."""

    def __init__(self, client: SimClient, history: RunHistory, group: SimGroup, rack: str) -> None:
        self._group = group
        self._may_commit = True
        """No request to commit of this member has an unknown outcome."""
        super().__init__(client, history, rack, group.config(client.rng))

    async def run(self) -> None:
        """Join, read and commit until a random time."""
        client, group, consumer = self._client, self._group, self.consumer
        rng, world = client.rng, client.world
        consumer.subscribe(group.topics, on_assigned=self._on_assigned)
        leave_at_s = world.now_s + rng.choice((1, 5, 20)) * rng.random()
        while not group.done and self._may_commit:
            for partition, records in (await self.poll(_POLL_S)).items():
                group.read[partition].update(offset for offset, _ in records)
            if rng.random() < 0.3 or group.ends is not None:
                await self._commit()
            if world.now_s > leave_at_s and group.ends is None:
                break
        leaves = rng.random() < 0.5
        if leaves and group.ends is None and self._may_commit:
            await self._commit()
        await consumer.close(timeout=_CLOSE_S, leave_group=None if leaves else False)

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._client.world.trace(self._client.name, f"gets {', '.join(map(str, partitions)) or 'no partition'}")

    def _on_skipped(self, partition: TopicPartition, start: int, end: int) -> None:
        self._group.read[partition].update(range(start, end))  # a later leader may still have their records

    async def _commit(self) -> None:
        """Commit what was read."""
        group = self._group
        offsets: dict[Partition, Offset] = {
            partition: position
            for partition, position in sorted(self.consumer.positions().items())
            if position.offset != group.committed[partition]
        }
        try:
            await self.consumer.commit(offsets, timeout=_COMMIT_S)
        except ApiError as error:
            self._client.world.trace(self._client.name, f"cannot commit: {error}")
        else:
            self._client.world.trace(self._client.name, f"committed {_text(offsets)}")

    # Requests of this member.

    def _tap(self, node_id: int, request: Request, on_done: OnDone) -> OnDone | None:
        if isinstance(request, OffsetCommitRequest):
            return self._watched_commit(request, on_done)
        if isinstance(request, OffsetFetchRequest):
            return self._watched_fetch(request, on_done)
        if isinstance(request, ConsumerGroupHeartbeatRequest) and self._group.ownership is not None:
            return self._group.ownership.watched(node_id, request, on_done)
        return super()._tap(node_id, request, on_done)

    def _watched_commit(self, request: OffsetCommitRequest, on_done: OnDone) -> OnDone:
        group = self._group
        offsets = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in request.topics
            for each in topic.partitions
        }
        for partition, offset in offsets.items():
            group.attempted[partition] = max(group.attempted[partition], offset)

        def committed(response: Any, error: ApiError | None) -> None:
            if response is None:
                self._may_commit = False
            else:
                refused = {partition for partition, _ in committed_errors(request, response)}
                for partition, offset in offsets.items():
                    if partition not in refused:
                        group.committed[partition] = max(group.committed[partition], offset)
            on_done(response, error)

        return committed

    def _watched_fetch(self, request: OffsetFetchRequest, on_done: OnDone) -> OnDone:
        """The committed offsets must include every commit that was acknowledged before the request."""
        group, world = self._group, self._client.world
        floor = dict(group.committed)

        def fetched(response: Any, error: ApiError | None) -> None:
            if response is not None and not response.error_code:
                found, failed = read_committed(response)
                for topic in request.topics or ():
                    for index in topic.partition_indexes:
                        partition = TopicPartition(topic.name, index)
                        if partition in failed:
                            continue
                        offset = found[partition].offset if partition in found else 0
                        if offset < floor[partition]:
                            world.violated(
                                f"{group.name} had committed {floor[partition]} of {partition}, and now has {offset}"
                            )
                        if offset > group.attempted[partition]:
                            world.violated(f"no member of {group.name} committed {offset} of {partition}")
                        group.committed[partition] = max(group.committed[partition], offset)
            on_done(response, error)

        return fetched


def _text(offsets: Mapping[Any, Any]) -> str:
    return ", ".join(f"{topic}-{index} {position.offset}" for (topic, index), position in offsets.items())


def judge(group: SimGroup, partition: TopicPartition, log: dict[int, bytes]) -> str:
    """How the group has violated its guarantees for a partition with these final records; empty where it has not."""
    skipped = [offset for offset in log if offset < group.committed[partition] and offset not in group.read[partition]]
    return f"{group.name} never read {sorted(skipped)[:5]} of {partition}, but committed beyond" if skipped else ""
