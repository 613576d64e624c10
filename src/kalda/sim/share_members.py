"""Members of share groups (KIP-932): they acquire records, acknowledge them one way or another, or not at all.

A member sends the requests of the protocol itself: heartbeats to the coordinator, fetches and acknowledgements to the
leaders, each leader in a share session. It accepts most records, rejects and releases some, and forgets others until
their lock ends. At times it leaves, or ends without a word, and joins as another member.

What a group promises:

- a record whose acknowledgement was answered, accepted or rejected, is never delivered again, whoever leads its
  partition then: no fetch that is sent after that answer brings it;
- where a partition is led, no member gets a record that another member still has, and none is delivered more often than
  `share.delivery.count.limit` allows (`Deliveries`);
- once a leader has read the state, nothing counts that a former leader writes from then on (`Deliveries`);
- no record is lost: in the end each was accepted by a member, or has a dead letter (KIP-1191).

An acknowledgement without an answer may have been carried out or not; a record that is accepted this way counts as
processed, and may be delivered again. One that comes after another member has accepted the record is answered as if it
counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partialmethod
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, random_uuid, uuid_to_text
from kalda.base.scheduling import Pending
from kalda.base.share_states import AcknowledgeType, SharePartitionKey
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
    ShareGroupHeartbeatRequest,
)
from kalda.protocol.notation import Request
from kalda.records.builder import Record
from kalda.replication.share.share_partition import Acquired, SharePartition
from kalda.sim.client import SimClient

LETTERS = "dlq.simulated"
"""The dead letter topic of all groups."""
DELIVERY_LIMIT = 3
LOCK_MS = 2_000
_HEARTBEAT_VERSION = 1
_SHARE_VERSION = 2
_ALTER_VERSION = 1
_HEARTBEAT_S = 0.4
_WAIT_MS = 300
_SET = 0
_CHOICES = (
    (0.70, AcknowledgeType.ACCEPT),
    (0.80, AcknowledgeType.RELEASE),
    (0.88, AcknowledgeType.REJECT),
    (1.00, None),
)
"""What a member does with acquired records, by the upper end of its share; None: nothing, until the lock ends."""
_ANEW = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND))
Offsets = dict[TopicPartition, set[int]]


class Deliveries:
    """Watches what each share partition of the nodes hands out and writes, in this context."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._counts: WeakKeyDictionary[SharePartition, dict[int, int]] = WeakKeyDictionary()
        """The latest delivery count by offset, of each share partition since it was read."""
        self._leader_epochs: dict[SharePartitionKey, int] = {}
        """Of the latest leader that has read the state."""
        self._watched: list[tuple[str, Any]] = []
        self.count = 0

    def __enter__(self) -> Deliveries:
        deliveries = self

        def acquire(watched: Any, share: SharePartition, *arguments: Any, **options: Any) -> list[Acquired]:
            found: list[Acquired] = watched(share, *arguments, **options)
            deliveries.on_acquired(share, found)
            return found

        def begin(watched: Any, share: SharePartition, *arguments: Any) -> None:
            watched(share, *arguments)
            latest = deliveries._leader_epochs
            latest[share.key] = max(share.leader_epoch, latest.get(share.key, share.leader_epoch))

        def write(watched: Any, share: SharePartition, *arguments: Any) -> Pending[None]:
            is_former = deliveries._leader_epochs.get(share.key, share.leader_epoch) > share.leader_epoch
            written: Pending[None] = watched(share, *arguments)
            if is_former:
                written.then(lambda _, error: deliveries.on_written_by_former(share, error))
            return written

        for watch in (acquire, begin, write):
            name = watch.__name__ if watch is acquire else f"_{watch.__name__}"
            self._watched.append((name, getattr(SharePartition, name)))
            setattr(SharePartition, name, partialmethod(_called, watch, getattr(SharePartition, name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, watched in self._watched:
            setattr(SharePartition, name, watched)

    def on_written_by_former(self, share: SharePartition, error: ApiError | None) -> None:
        """A write has ended that was begun after a later leader had read the state."""
        if error is None:
            self._violated(f"{share.name}: the leader of epoch {share.leader_epoch} writes after a later one has read")

    def on_acquired(self, share: SharePartition, found: list[Acquired]) -> None:
        """A delivery of a record counts up; one of a record that a member has would not."""
        counts = self._counts.setdefault(share, {})
        for first, last, count in found:
            self.count += last - first + 1
            if count > DELIVERY_LIMIT:
                self._violated(f"{share.name}: the records {first} to {last} are delivered for the {count}th time")
            for offset in range(first, last + 1):
                if counts.get(offset, 0) >= count:
                    self._violated(f"{share.name}: record {offset} is delivered for the {count}th time again")
                counts[offset] = count


def _called(share: SharePartition, watch: Any, watched: Any, *arguments: Any, **options: Any) -> Any:
    return watch(watched, share, *arguments, **options)


class SimShareGroup:
    """What a share group has got and acknowledged."""

    def __init__(self, name: str, partitions: list[TopicPartition], violated: Callable[[str], None]) -> None:
        self.name = name
        self.topics = sorted({topic for topic, _ in partitions})
        self.accepted: Offsets = {partition: set() for partition in partitions}
        """Records of which an acceptance was tried, whatever became of it."""
        self.done = False
        self.is_ending = False
        """Nothing is written any more: the members accept all they get."""
        self._violated = violated
        self._number = 0
        self._final: dict[tuple[TopicPartition, int], int] = {}
        """Records whose acknowledgement was answered, with the number of the latest request sent before that."""

    async def configure(self, client: SimClient) -> None:
        """Begin at the beginning, and write dead letters."""
        configs = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true" if client.rng.random() < 0.5 else "false",
        }
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=ConfigResourceType.GROUP,
            resource_name=self.name,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=_SET, value=value)
                for key, value in configs.items()
            ],
        )

        async def alter() -> None:
            answer = await client.ask_any(IncrementalAlterConfigsRequest(resources=[resource]), _ALTER_VERSION)
            for each in answer.responses:
                if each.error_code:
                    raise ApiError(ErrorCode(each.error_code), each.error_message or "")

        await client.until(alter)

    def next_number(self) -> int:
        """The number of a request that is being sent."""
        self._number += 1
        return self._number

    def on_delivered(self, number: int, partition: TopicPartition, acquired: Acquired) -> None:
        """A fetch with this number has brought records."""
        for offset in range(acquired.first_offset, acquired.last_offset + 1):
            final = self._final.get((partition, offset))
            if final is not None and number > final:
                self._violated(f"{self.name}: record {offset} of {partition} is delivered after its acknowledgement")

    def on_acknowledged(self, partition: TopicPartition, first: int, last: int, kind: AcknowledgeType) -> None:
        """The answer says that these records were acknowledged."""
        if kind is AcknowledgeType.RELEASE:
            return
        for offset in range(first, last + 1):
            self._final.setdefault((partition, offset), self._number)

    def missing(
        self, ends: dict[TopicPartition, int], letters: set[tuple[str, TopicPartition, int]]
    ) -> list[tuple[TopicPartition, int]]:
        """Records that were neither accepted nor have a dead letter."""
        return [
            (partition, offset)
            for partition, end in ends.items()
            for offset in range(end)
            if offset not in self.accepted[partition] and (self.name, partition, offset) not in letters
        ]


def letters_of(records: Iterable[Record]) -> set[tuple[str, TopicPartition, int]]:
    """Group, partition and offset of which dead letters are."""
    found = set()
    for record in records:
        headers = {name.removeprefix("__dlq.errors."): (text or b"").decode() for name, text in record.headers}
        partition = TopicPartition(headers["topic"], int(headers["partition"]))
        found.add((headers["group"], partition, int(headers["offset"])))
    return found


class SimShareMember:
    """One member's process."""

    def __init__(self, client: SimClient, group: SimShareGroup) -> None:
        self._client = client
        self._group = group
        self.task = client.spawn(self._run())

    async def _run(self) -> None:
        while not self._group.done:
            await _Membership(self._client, self._group).run()
            await self._client.pause()


_Acknowledged = tuple[TopicPartition, int, int, AcknowledgeType]


class _Session:
    """The share session with one leader."""

    __slots__ = ("epoch", "named", "waiting")

    def __init__(self) -> None:
        self.epoch = 0
        self.named: set[TopicPartition] = set()
        self.waiting: list[_Acknowledged] = []
        """What is acknowledged by the next fetch."""

    def next_epoch(self) -> int:
        """The epoch of the request that is being sent."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return epoch


class _Membership:
    """A member from its first heartbeat to its end."""

    def __init__(self, client: SimClient, group: SimShareGroup) -> None:
        self._client = client
        self._group = group
        self._rng = client.rng
        self._member_id = uuid_to_text(random_uuid(client.rng.randbytes))
        self._epoch = 0
        self._heartbeat_at_s = 0.0
        self._assigned: list[TopicPartition] = []
        self._sessions: dict[tuple[str, int], _Session] = {}

    async def run(self) -> None:
        """Join, and consume until a random time."""
        client, group, world = self._client, self._group, self._client.world
        leave_at_s = world.now_s + self._rng.choice((1, 5, 20)) * self._rng.random()
        while not group.done and (group.is_ending or world.now_s < leave_at_s):
            try:
                if world.now_s >= self._heartbeat_at_s:
                    await self._heartbeat()
                if self._assigned:
                    await self._fetch(self._rng.choice(self._assigned))
                else:
                    await client.pause()
            except ApiError as error:
                world.trace(client.name, f"{self._group.name}: {error}")
                if error.code in _ANEW:
                    return
                client.forget_leaders()
                await client.pause()
        if self._rng.random() < 0.5:
            self._epoch = -1
            with contextlib.suppress(ApiError):
                await self._heartbeat()

    async def _heartbeat(self) -> None:
        self._heartbeat_at_s = self._client.world.now_s + _HEARTBEAT_S
        request = ShareGroupHeartbeatRequest(
            group_id=self._group.name,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=self._group.topics if self._epoch == 0 else None,
        )
        answer = await self._client.ask_coordinator(self._group.name, request, _HEARTBEAT_VERSION)
        _check(answer)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            if not self._client.metadata.topics:
                await self._client.refresh()
            names = {topic.topic_id: name for name, topic in self._client.metadata.topics.items()}
            self._assigned = sorted(
                TopicPartition(names[each.topic_id], number)
                for each in answer.assignment.topic_partitions
                if each.topic_id in names
                for number in each.partitions
            )
            self._client.world.trace(self._client.name, f"gets {', '.join(map(str, self._assigned)) or 'no partition'}")

    # -- consuming

    async def _fetch(self, partition: TopicPartition) -> None:
        """One fetch from the leader of a partition, and what is done with what it brings."""
        address = await self._client.find_leader(partition)
        session = self._sessions.setdefault(address, _Session())
        session.named.add(partition)
        waiting, session.waiting = session.waiting, []
        number = self._group.next_number()
        epoch = session.next_epoch()
        request = ShareFetchRequest(
            group_id=self._group.name,
            member_id=self._member_id,
            share_session_epoch=epoch,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=self._rng.choice((1, 5, 100)),
            batch_size=self._rng.choice((1, 10)),
            share_acquire_mode=self._rng.choice((0, 1)),
            topics=self._topics(session.named, waiting if epoch else []),
        )
        answer = await self._ask(address, request)
        ids = self._names()
        acquired: list[tuple[TopicPartition, Acquired]] = []
        for topic in answer.responses:
            for data in topic.partitions:
                where = TopicPartition(ids.get(topic.topic_id, ""), data.partition_index)
                for kind_of in waiting if epoch else ():
                    if kind_of[0] == where and not data.acknowledge_error_code:
                        self._group.on_acknowledged(*kind_of)
                for each in data.acquired_records:
                    acquired.append((where, Acquired(each.first_offset, each.last_offset, each.delivery_count)))
                    self._group.on_delivered(number, *acquired[-1])
                if data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    self._client.forget_leaders()
                    session.named.discard(where)
        if acquired:
            await self._process(address, session, acquired)

    async def _process(
        self, address: tuple[str, int], session: _Session, acquired: list[tuple[TopicPartition, Acquired]]
    ) -> None:
        acknowledged: list[_Acknowledged] = []
        for partition, (first, last, _) in acquired:
            while first <= last:
                end = min(last, first + self._rng.randint(0, 9))
                kind = AcknowledgeType.ACCEPT if self._group.is_ending else self._choice()
                if kind is not None:
                    acknowledged.append((partition, first, end, kind))
                    if kind is AcknowledgeType.ACCEPT:
                        self._group.accepted[partition].update(range(first, end + 1))
                first = end + 1
        if self._rng.random() < 0.5 and not self._group.is_ending:
            session.waiting = acknowledged
            return
        if not acknowledged:
            return
        request = ShareAcknowledgeRequest(
            group_id=self._group.name,
            member_id=self._member_id,
            share_session_epoch=session.next_epoch(),
            topics=self._acknowledge_topics(acknowledged),
        )
        self._group.next_number()
        answer = await self._ask(address, request)
        ids = self._names()
        for topic in answer.responses:
            for data in topic.partitions:
                where = TopicPartition(ids.get(topic.topic_id, ""), data.partition_index)
                if not data.error_code:
                    for each in acknowledged:
                        if each[0] == where:
                            self._group.on_acknowledged(*each)

    def _choice(self) -> AcknowledgeType | None:
        roll = self._rng.random()
        return next(kind for share, kind in _CHOICES if roll < share)

    async def _ask(self, address: tuple[str, int], request: Request) -> Any:
        """A request in the session with a leader; after any failure the session begins anew."""
        try:
            answer = await self._client.ask(address, request, _SHARE_VERSION)
            _check(answer)
        except ApiError:
            self._sessions.pop(address, None)
            raise
        return answer

    def _names(self) -> dict[Uuid, str]:
        return {topic_id: name for name, topic_id in self._ids().items()}

    def _ids(self) -> dict[str, Uuid]:
        return {name: topic.topic_id for name, topic in self._client.metadata.topics.items()}

    def _topics(
        self, named: set[TopicPartition], acknowledged: list[_Acknowledged]
    ) -> list[ShareFetchRequestFetchTopic]:
        ids, topics = self._ids(), dict[str, ShareFetchRequestFetchTopic]()
        for topic, number in sorted(named | {each[0] for each in acknowledged}):
            if topic not in ids:
                continue
            found = topics.setdefault(topic, ShareFetchRequestFetchTopic(topic_id=ids[topic], partitions=[]))
            batches = [
                ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
                for where, first, last, kind in acknowledged
                if where == (topic, number)
            ]
            found.partitions.append(
                ShareFetchRequestFetchPartition(partition_index=number, acknowledgement_batches=batches)
            )
        return list(topics.values())

    def _acknowledge_topics(self, acknowledged: list[_Acknowledged]) -> list[AcknowledgeTopic]:
        ids, topics = self._ids(), dict[str, AcknowledgeTopic]()
        for topic, number in sorted({each[0] for each in acknowledged}):
            if topic not in ids:
                continue
            found = topics.setdefault(topic, AcknowledgeTopic(topic_id=ids[topic], partitions=[]))
            batches = [
                ShareAcknowledgeRequestAcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                )
                for where, first, last, kind in acknowledged
                if where == (topic, number)
            ]
            found.partitions.append(AcknowledgePartition(partition_index=number, acknowledgement_batches=batches))
        return list(topics.values())


def _check(answer: Any) -> None:
    """Raise an error of a whole answer."""
    if answer.error_code:
        raise ApiError(ErrorCode(answer.error_code), answer.error_message or "")
