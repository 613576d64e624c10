"""Consumers: they read all committed records from the beginning on, each once.

A consumer may send its rack; then the leader names a preferred replica there (KIP-392), from which the consumer fetches
for a time, or until a failure. Where a follower fails, the leader is used instead, as by Kafka's clients. No response
has a record at or above its own high watermark, whichever replica it is from.

Where records at the beginning were deleted, reading continues at the log start offset.
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
_PREFERRED_S = (0.2, 5)
"""How long a reader uses a preferred replica; Kafka's clients until their metadata expires."""

Records = list[tuple[int, bytes]]
"""Offsets and values."""


class Reader:
    """Reads partitions for one client."""

    def __init__(self, client: SimClient, history: History, rack: str = "") -> None:
        self._client = client
        self._history = history
        self._rack = rack
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        """The preferred replica that the leader has named, and the time until which it is used."""

    async def read(self, partition: TopicPartition, position: int, max_wait_ms: int) -> tuple[Records, int]:
        """Committed records from `position` on, and the next position. Raises `ApiError`."""
        try:
            records = await self._fetch(partition, position, max_wait_ms)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            # Skip deleted records. A later leader may have a lower log start offset.
            start_offset = await self._log_start_offset(partition)
            if not self._history.may_begin_at(partition, max(start_offset, 1)):
                raise
            return [], max(position, start_offset)
        return records, records[-1][0] + 1 if records else position

    async def _fetch(self, partition: TopicPartition, position: int, max_wait_ms: int) -> Records:
        """One attempt; with a preferred replica that fails, a second one at the leader."""
        preferred = self._replica(partition)
        if preferred is not None:
            try:
                return await self._fetch_from(preferred, partition, position, max_wait_ms)
            except CorruptRecord:
                raise
            except ApiError:
                self._preferred.pop(partition, None)
        return await self._fetch_from(None, partition, position, max_wait_ms)

    async def _log_start_offset(self, partition: TopicPartition) -> int:
        entry = ListOffsetsPartition(partition_index=partition.partition, timestamp=OffsetSpec.EARLIEST)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=partition.topic, partitions=[entry])])
        answer = await self._client.ask_leader(partition, request, _LIST_VERSION)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise ApiError(ErrorCode(found.error_code))
        offset: int = found.offset
        return offset

    def may_fail(self, partition: TopicPartition, error: ApiError) -> bool:
        """Whether a read may fail with this error for a time."""
        return error.code.retriable and (not isinstance(error, CorruptRecord) or partition in self._history.damaged)

    def _replica(self, partition: TopicPartition) -> tuple[str, int] | None:
        found = self._preferred.get(partition)
        if found is None:
            return None
        broker = self._client.metadata.brokers.get(found[0])
        if broker is None:
            self._client.forget_leaders()  # new metadata has the broker; else the leader would name it again and again
        elif found[1] >= self._client.world.now_s:
            return broker.host, broker.port
        del self._preferred[partition]
        return None

    async def _fetch_from(
        self, address: tuple[str, int] | None, partition: TopicPartition, position: int, max_wait_ms: int
    ) -> Records:
        """Fetch with the leader epoch, so that a former leader, which may have lost records, refuses instead of
        answering with its own end of the log."""
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
            until_s = client.world.now_s + client.rng.uniform(*_PREFERRED_S)
            self._preferred[partition] = data.preferred_read_replica, until_s
            client.world.trace(client.name, f"reads {partition} from node-{data.preferred_read_replica} from now on")
        records = records_of(data.records, position)
        if records and records[-1][0] >= data.high_watermark:
            broker = (leader if address is None else address)[0]
            client.world.violated(
                f"{client.name} gets offset {records[-1][0]} of {partition} from {broker}, "
                f"whose high watermark is {data.high_watermark}"
            )
        if address is not None and records:
            self._history.from_followers += len(records)
        return records


class Consumer:
    """Reads some partitions from the beginning on, until `finish`."""

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
        """Read the next records of a partition. Raises `ApiError`."""
        records, position = await self._reader.read(partition, self._positions[partition], max_wait_ms)
        self._history.read(self._client.name, partition, records)
        self._positions[partition] = position


def _fetch(partition: TopicPartition, position: int, max_wait_ms: int, epoch: int, rack: str) -> FetchRequest:
    entry = FetchRequestFetchPartition(
        partition=partition.partition, fetch_offset=position, partition_max_bytes=1 << 16, current_leader_epoch=epoch
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchRequestFetchTopic(topic=partition.topic, partitions=[entry])],
    )


def records_of(buffer: Any, start: int = 0) -> Records:
    """The records from `start` on; the checksum of every batch is checked. Raises `CorruptRecord`."""
    found: Records = []
    for position, header in iter_batches(memoryview(buffer or b"")):
        check_crc(memoryview(buffer), position, header)
        found += [(r.offset, r.value or b"") for r in read_records(buffer, position) if r.offset >= start]
    return found
