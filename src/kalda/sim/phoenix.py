"""A topic that is deleted and made again under its name, over and over, while it is written and read by its id.

Each life of it is a topic of its own: nothing of the life before is ever seen in it, neither records nor offsets nor
the beginning that somebody deleted records up to, whatever its replicas found on their disks when they came back.
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
from kalda.sim.deletions import delete_records
from kalda.sim.history import Deleted
from kalda.sim.machine import EPOCH_MS
from kalda.sim.readers import Records, records_of

NAME = "phoenix"
_PARTITIONS = 2
_BY_ID = 13
"""The first version of Produce, and of Fetch, that names topics by their ids."""
_TIMEOUT_MS = 3_000


@dataclass(slots=True)
class Written:
    """One partition in one life."""

    attempted: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    """Offsets by number."""
    seen: dict[int, bytes] = field(default_factory=dict)
    deleted: Deleted = field(default_factory=Deleted)


class Phoenix(Operator):
    """Makes it, writes to it, reads it, deletes from it, deletes it."""

    def __init__(self, client: SimClient, replicas: int, configs: dict[str, str], pause_s: float = 0.8) -> None:
        self._replicas = replicas
        self._configs = configs
        self._lives: dict[Uuid, list[Written]] = {}
        self._ended: set[Uuid] = set()
        self._now: Uuid | None = None
        self._late = 0
        """DeleteRecords names topics: one whose answer did not come may befall a later life, up to here."""
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
                await self._learn()

    # Its lives.

    async def _create(self) -> None:
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in self._configs.items()]
        topic = CreatableTopic(
            name=NAME, num_partitions=_PARTITIONS, replication_factor=self._replicas, configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        await self._insist(request, 7, lambda a: a.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)
        await self._learn()

    async def _learn(self) -> None:
        """Which life it is in, as some node knows."""
        try:
            await self._client.refresh()
        except ApiError:
            return
        topic = self._client.metadata.topics.get(NAME)
        self._now = None if topic is None or topic.error_code or topic.topic_id in self._ended else topic.topic_id
        if self._now is not None and self._now not in self._lives:
            self._lives[self._now] = [Written() for _ in range(_PARTITIONS)]
            self._client.world.tell(self._client.name, f"has life {len(self._lives)}, {uuid_to_text(self._now)}")

    async def _delete(self, life: Uuid) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=life)], timeout_ms=_TIMEOUT_MS)
        gone = ErrorCode.UNKNOWN_TOPIC_ID
        self._ended.add(life)
        await self._insist(request, 6, lambda a: a.responses[0].error_code, gone)
        self._client.world.tell(self._client.name, f"ends the life {uuid_to_text(life)}")
        self._now = None

    # Its records.

    async def _write(self, life: Uuid, index: int, written: Written) -> None:
        """Once: each record is there one time or none."""
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
        position = written.deleted.promised
        wanted = FetchRequestFetchPartition(partition=index, fetch_offset=position, partition_max_bytes=1 << 16)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[FetchRequestFetchTopic(topic_id=life, partitions=[wanted])],
        )
        answer = await self._client.ask_leader(TopicPartition(NAME, index), request, _BY_ID)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        data = answer.responses[0].partitions[0]
        if data.error_code:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not max(written.deleted.asked, self._late):
                self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(life)} does not begin at 0")
            raise ApiError(ErrorCode(data.error_code))
        for offset, value in records_of(data.records, position):
            known = written.seen.setdefault(offset, value)
            if known != value or not value.startswith(uuid_to_text(life).encode()):
                self._client.world.violated(f"{value!r} is read at {offset} of {NAME}-{index}, {uuid_to_text(life)}")

    async def _shorten(self, index: int, written: Written) -> None:
        offset = self._rng.choice(list(written.acked.values())) + 1
        if offset > written.deleted.promised:
            written.deleted.asked = max(written.deleted.asked, offset)
            if await delete_records(self._client, TopicPartition(NAME, index), offset):
                written.deleted.promised = max(written.deleted.promised, offset)
            else:
                self._late = max(self._late, offset)

    # In the end.

    def judge(self, image: MetadataImage, read: Callable[[TopicPartition], tuple[int, Records]]) -> None:
        """Hold its last life against what was promised in that."""
        topic = image.topics.by_name.get(NAME)
        if topic is not None and topic.id in self._lives:
            for index, written in enumerate(self._lives[topic.id]):
                written.deleted.asked = max(written.deleted.asked, self._late)
                for why in _faults(written, index, topic.id, *read(TopicPartition(NAME, index))):
                    self._client.world.violated(f"{NAME}-{index} of {uuid_to_text(topic.id)}: {why}")


def _faults(written: Written, index: int, life: Uuid, start: int, records: Records) -> Iterator[str]:
    log = dict(records)
    places = {value: offset for offset, value in records}
    if len(places) < len(log):
        yield "a record is there twice"
    if start > written.deleted.asked:
        yield f"it begins at {start}, and was asked to begin at {written.deleted}"
    for offset, value in written.seen.items():
        if offset >= start and log.get(offset) != value:
            yield f"{value!r} was read at {offset}, and there is {log.get(offset)!r}"
    for number, offset in written.acked.items():
        if offset >= start and log.get(offset) != _value(life, index, number):
            yield f"record {number} was acknowledged at {offset}, and there is {log.get(offset)!r}"
    for value in set(places) - {_value(life, index, number) for number in range(written.attempted)}:
        yield f"nobody wrote {value!r}"


def _value(life: Uuid, index: int, number: int) -> bytes:
    return f"{uuid_to_text(life)}:{index}:{number}".encode() + b"." * (700 if number % 4 == 0 else 0)
