"""Consumers, who read what is committed from the beginning on, each record of it once.

A consumer may name its rack; then leaders send it on to a replica there (KIP-392), which it asks until that fails, or
for a while. Where a replica that follows does not have what is wanted, the leader is asked instead, as by Kafka's
clients. Whoever answers, no record is at or above the high watermark in the same answer.

Records at the beginning may have been deleted since: then it is gone on with what there is.
"""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import read_records
from kalda.sim.client import SimClient
from kalda.sim.history import History

_FETCH_VERSION = 12
_LIST_VERSION = 7
_LOYALTY_S = (0.2, 5)
"""How long a reader stays with a replica; Kafka's clients until their metadata is old."""

Records = list[tuple[int, bytes]]
"""Values by offset."""


class Reader:
    """Reads partitions for one client."""

    def __init__(self, client: SimClient, history: History, rack: str = "") -> None:
        self._client = client
        self._history = history
        self._rack = rack
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        """A replica that the leader has named, and until when it is asked."""

    async def read(self, partition: TopicPartition, position: int, max_wait_ms: int) -> tuple[Records, int]:
        """Committed records from `position` on, and where to read on. Raises `ApiError`."""
        try:
            records = await self._fetch(partition, position, max_wait_ms)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            # What was deleted is passed over. Another leader may not have deleted so much yet.
            beginning = await self._beginning(partition)
            if not self._history.may_begin_at(partition, max(beginning, 1)):
                raise
            return [], max(position, beginning)
        return records, records[-1][0] + 1 if records else position

    async def _fetch(self, partition: TopicPartition, position: int, max_wait_ms: int) -> Records:
        """One attempt, or two."""
        preferred = self._replica(partition)
        if preferred is not None:
            try:
                return await self._fetch_from(preferred, partition, position, max_wait_ms)
            except CorruptRecord:
                raise
            except ApiError:
                self._preferred.pop(partition, None)
        return await self._fetch_from(None, partition, position, max_wait_ms)

    async def _beginning(self, partition: TopicPartition) -> int:
        wanted = ListOffsetsPartition(partition_index=partition.partition, timestamp=OffsetSpec.EARLIEST)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])])
        answer = await self._client.ask_leader(partition, request, _LIST_VERSION)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise ApiError(ErrorCode(found.error_code))
        offset: int = found.offset
        return offset

    def may_fail(self, partition: TopicPartition, error: ApiError) -> bool:
        """Whether reading on may be refused so for a while."""
        return error.code.retriable and (not isinstance(error, CorruptRecord) or partition in self._history.damaged)

    def _replica(self, partition: TopicPartition) -> tuple[str, int] | None:
        found = self._preferred.get(partition)
        if found is None:
            return None
        broker = self._client.metadata.brokers.get(found[0])
        if broker is None:
            self._client.forget_leaders()  # and so learn of it: the leader would name it for ever
        elif found[1] >= self._client.world.now_s:
            return broker.host, broker.port
        del self._preferred[partition]
        return None

    async def _fetch_from(
        self, address: tuple[str, int] | None, partition: TopicPartition, position: int, max_wait_ms: int
    ) -> Records:
        """With the leader's epoch: a broker that leads no more, and may have lost what it had, must not say where the
        log ends."""
        client = self._client
        leader = await client.find_leader(partition)
        request = _fetch(partition, position, max_wait_ms, client.leader_epoch(partition), self._rack)
        answer = await client.ask(leader if address is None else address, request, _FETCH_VERSION)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        if not answer.responses:
            return []
        data = answer.responses[0].partitions[0]
        if data.error_code:
            raise ApiError(ErrorCode(data.error_code), f"at {position}")
        if data.preferred_read_replica >= 0:
            until_s = client.world.now_s + client.rng.uniform(*_LOYALTY_S)
            self._preferred[partition] = data.preferred_read_replica, until_s
            client.world.tell(client.name, f"is to read {partition} from node-{data.preferred_read_replica}")
        records = records_of(data.records, position)
        if records and records[-1][0] >= data.high_watermark:
            who = (leader if address is None else address)[0]
            client.world.violated(
                f"{client.name} is given {records[-1][0]} of {partition} by {who}, "
                f"whose high watermark is {data.high_watermark}"
            )
        if address is not None and records:
            self._history.from_followers += len(records)
        return records


class Consumer:
    """Reads some partitions from the beginning on until `finish`."""

    def __init__(self, client: SimClient, history: History, partitions: list[TopicPartition], rack: str = "") -> None:
        self._client = client
        self._history = history
        self._reader = Reader(client, history, rack)
        self._positions = dict.fromkeys(partitions, 0)
        self._finishing = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        while not self._finishing:
            for partition in self._positions:
                try:
                    await self._read(partition)
                except ApiError as error:
                    if not self._reader.may_fail(partition, error):
                        self._client.world.violated(f"{self._client.name} cannot read {partition}: {error}")
                        return
                    self._client.forget_leaders()
                    await self._client.pause()

    async def _read(self, partition: TopicPartition, max_wait_ms: int = 300) -> None:
        """Read on. Raises `ApiError`."""
        records, position = await self._reader.read(partition, self._positions[partition], max_wait_ms)
        self._history.read(self._client.name, partition, records)
        self._positions[partition] = position


def _fetch(partition: TopicPartition, position: int, max_wait_ms: int, epoch: int, rack: str) -> FetchRequest:
    wanted = FetchRequestFetchPartition(
        partition=partition.partition, fetch_offset=position, partition_max_bytes=1 << 16, current_leader_epoch=epoch
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchRequestFetchTopic(topic=partition.topic, partitions=[wanted])],
    )


def records_of(buffer: Any, start: int = 0) -> Records:
    """Those from `start` on, every batch's checksum checked. Raises `CorruptRecord`."""
    found: Records = []
    for position, header in iter_batches(memoryview(buffer or b"")):
        check_crc(memoryview(buffer), position, header)
        found += [(r.offset, r.value or b"") for r in read_records(buffer, position) if r.offset >= start]
    return found
