"""A topic that is deleted and created again under its name, again and again, while it is written and read by its id.

Each of these topics (called a life here) is independent: no record, no offset and no log start offset of an earlier
life is ever seen in it, whatever the disks of its replicas had when their brokers restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid, uuid_to_text
from kalda.metadata.image import MetadataImage
from kalda.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kalda.records.builder import build_batch
from kalda.sim.admin import Operator
from kalda.sim.client import SimClient
from kalda.sim.history import Deleted
from kalda.sim.machine import EPOCH_MS
from kalda.sim.workload import Records, records_of

NAME = "phoenix"
_PARTITIONS = 2
_BY_ID = 13
"""The first version of Produce, and of Fetch, that names topics by their ids."""
_TIMEOUT_MS = 3_000


@dataclass(slots=True)
class Written:
    """The history of one partition in one life."""

    attempted: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    """Offsets by number."""
    seen: dict[int, bytes] = field(default_factory=dict)
    deleted: Deleted = field(default_factory=Deleted)


class Phoenix(Operator):
    """Creates the topic, writes to it, reads from it, deletes records, deletes the topic."""

    def __init__(self, client: SimClient, replicas: int, configs: dict[str, str], pause_s: float = 0.8) -> None:
        self._replicas = replicas
        self._configs = configs
        self._lives: dict[Uuid, list[Written]] = {}
        """The history of each life, by topic id and partition."""
        self._ended: set[Uuid] = set()
        """Lives whose deletion was requested."""
        self._now: Uuid | None = None
        """The current life's topic id."""
        self._late = 0
        """The highest offset of a DeleteRecords without a response. It has the topic's name and no id, so it may be
        carried out in a later life."""
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        if self._now is None:
            await self._create()
            return
        roll, index = self._rng.random(), self._rng.randrange(_PARTITIONS)
        written = self._lives[self._now][index]
        try:
            if roll < 0.12:
                await self._delete(self._now)
            elif roll < 0.25 and written.acked:
                await self._shorten(index, written)
            elif roll < 0.75:
                await self._write(self._now, index, written)
            else:
                await self._read(self._now, index, written)
        except ApiError as error:
            self._client.forget_leaders()
            if error.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                await self._find_life()

    # Creation and deletion.

    async def _create(self) -> None:
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in self._configs.items()]
        topic = CreatableTopic(
            name=NAME, num_partitions=_PARTITIONS, replication_factor=self._replicas, configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._repeat_until_done(request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)
        await self._find_life()

    async def _find_life(self) -> None:
        """Set `_now` from the metadata of a random node."""
        try:
            await self._client.refresh()
        except ApiError:
            return
        topic = self._client.metadata.topics.get(NAME)
        self._now = None if topic is None or topic.error_code or topic.topic_id in self._ended else topic.topic_id
        if self._now is not None and self._now not in self._lives:
            self._lives[self._now] = [Written() for _ in range(_PARTITIONS)]
            self._client.world.trace(self._client.name, f"has life {len(self._lives)}, {uuid_to_text(self._now)}")

    async def _delete(self, life: Uuid) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=life)], timeout_ms=_TIMEOUT_MS)
        self._ended.add(life)
        await self._repeat_until_done(request, 6, lambda a: a.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_ID)
        self._client.world.trace(self._client.name, f"ends the life {uuid_to_text(life)}")
        self._now = None

    # Records.

    async def _write(self, life: Uuid, index: int, written: Written) -> None:
        """Send records without retries, so that each is written at most once."""
        numbers = range(written.attempted, written.attempted + self._rng.randint(1, 5))
        written.attempted = numbers.stop
        records = [(EPOCH_MS + number, None, _value(life, index, number), ()) for number in numbers]
        data = PartitionProduceData(index=index, records=build_batch(records))
        request = ProduceRequest(
            acks=-1, timeout_ms=2_000, topic_data=[TopicProduceData(topic_id=life, partition_data=[data])]
        )
        answer = await self._client.ask_leader(TopicPartition(NAME, index), request, _BY_ID)
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            raise ApiError(ErrorCode(result.error_code))
        written.acked.update((number, result.base_offset + at) for at, number in enumerate(numbers))

    async def _read(self, life: Uuid, index: int, written: Written) -> None:
        position = written.deleted.acknowledged
        entry = FetchRequestFetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 16)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchRequestFetchTopic(topic_id=life, partitions=[entry])],
        )
        answer = await self._client.ask_leader(TopicPartition(NAME, index), request, _BY_ID)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        data = answer.responses[0].partitions[0]
        if data.error_code:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not max(written.deleted.requested, self._late):
                self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(life)} does not begin at 0")
            raise ApiError(ErrorCode(data.error_code))
        for offset, value in records_of(data.records, position):
            earlier = written.seen.setdefault(offset, value)
            if earlier != value or not value.startswith(uuid_to_text(life).encode()):
                self._client.world.violated(f"{value!r} is read at {offset} of {NAME}-{index}, {uuid_to_text(life)}")

    async def _shorten(self, index: int, written: Written) -> None:
        offset = self._rng.choice(list(written.acked.values())) + 1
        if offset > written.deleted.acknowledged:
            written.deleted.requested = max(written.deleted.requested, offset)
            if await self.delete_records(TopicPartition(NAME, index), offset):
                written.deleted.acknowledged = max(written.deleted.acknowledged, offset)
            else:
                self._late = max(self._late, offset)

    # At the end.

    def judge(self, image: MetadataImage, read: Callable[[TopicPartition], tuple[int, Records]]) -> None:
        """Compare the records of the last life with its history."""
        topic = image.topics.by_name.get(NAME)
        if topic is not None and topic.id in self._lives:
            for index, written in enumerate(self._lives[topic.id]):
                written.deleted.requested = max(written.deleted.requested, self._late)
                for violation in _violations(written, index, topic.id, *read(TopicPartition(NAME, index))):
                    self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(topic.id)}: {violation}")


def _violations(written: Written, index: int, life: Uuid, start: int, records: Records) -> Iterator[str]:
    log = dict(records)
    places = {value: offset for offset, value in records}
    if len(places) < len(log):
        yield "a record was written twice"
    if start > written.deleted.requested:
        yield f"it begins at {start}, but deletions were requested up to {written.deleted.requested}"
    for offset, value in written.seen.items():
        if offset >= start and log.get(offset) != value:
            yield f"{value!r} was read at {offset}, and now {log.get(offset)!r} is there"
    for number, offset in written.acked.items():
        if offset >= start and log.get(offset) != _value(life, index, number):
            yield f"record {number} was acknowledged at {offset}, and now {log.get(offset)!r} is there"
    for value in set(places) - {_value(life, index, number) for number in range(written.attempted)}:
        yield f"{value!r} was not written in this life"


def _value(life: Uuid, index: int, number: int) -> bytes:
    return f"{uuid_to_text(life)}:{index}:{number}".encode() + b"." * (700 if number % 4 == 0 else 0)
