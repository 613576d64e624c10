"""Consumers: they read all committed records from the beginning on, each once.

A consumer is Kalda's own. It may send its rack; then the leader names a preferred replica there (KIP-392), from which
the consumer fetches for a time, or until a failure. Where a follower fails, the leader is used instead. No response
has a record at or above its own high watermark, whichever replica it is from.

Where records at the beginning were deleted, reading continues at the log start offset. So `auto.offset.reset` is none,
and each gap is compared with the deletions: a consumer that jumped to an offset by itself would hide a loss.
"""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.connections import OnDone
from kalda.client.core.consumer_errors import NoOffset, OffsetOutOfRange
from kalda.client.core.requests import FETCH_BASE
from kalda.protocol.messages.fetch import FetchRequest
from kalda.protocol.notation import Request
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import read_records
from kalda.sim.client import SimClient
from kalda.sim.client_io import SimConsumer
from kalda.sim.history import History

_PREFERRED_MS = (1_000, 6_000)
"""How long a consumer uses a preferred replica, as long as its metadata is valid; 300 s by default."""
_MAX_WAIT_MS = 500
_CORRUPT = frozenset((ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR))

Records = list[tuple[int, bytes]]
"""Offsets and values."""


class Reader:
    """A consumer of partitions, and the checks of what it reads."""

    def __init__(self, client: SimClient, history: History, rack: str, config: dict[str, object] | None = None) -> None:
        self._client = client
        self._history = history
        self.consumer = SimConsumer(
            client,
            {
                "auto.offset.reset": "none",
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                "client.rack": rack,
                "fetch.max.wait.ms": _MAX_WAIT_MS,
                "fetch.min.bytes": client.rng.choice((1, 2_000)),
                "max.partition.fetch.bytes": 1 << 16,
                "metadata.max.age.ms": client.rng.randint(*_PREFERRED_MS),
                **(config or {}),
            },
            self._tap,
        )

    async def poll(self, timeout_s: float) -> dict[TopicPartition, Records]:
        """The next records by partition. An error that must not be is a violation."""
        try:
            records = await self.consumer.poll(timeout_s)
        except OffsetOutOfRange as error:
            for partition, position in error.positions.items():
                await self._skip_deleted(partition, position)
            return {}
        except NoOffset as error:
            for partition in error.partitions:
                if partition in self.consumer.assignment():
                    self.consumer.seek(partition, 0)
            return {}
        except ApiError as error:
            if not self._may_fail(error):
                self._client.world.violated(f"{self._client.name} cannot read: {error!r}")
            await self._client.pause()
            return {}
        found: dict[TopicPartition, Records] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            found.setdefault(partition, []).append((record.offset, record.value or b""))
        for partition, read in found.items():
            self._history.read(self._client.name, partition, read)
        return found

    async def _skip_deleted(self, partition: TopicPartition, position: int) -> None:
        """Continue at the log start offset. A later leader may have a lower one."""
        try:
            start_offset = (await self.consumer.beginning_offsets(partition))[partition]
        except ApiError as error:
            if not error.code.retriable:
                self._client.world.violated(f"{self._client.name} gets no beginning of {partition}: {error!r}")
            return
        if not self._history.may_begin_at(partition, max(start_offset, 1)):
            self._client.world.violated(
                f"{self._client.name} is refused offset {position} of {partition}, which begins at {start_offset}"
            )
        if partition in self.consumer.assignment():
            self.consumer.seek(partition, max(position, start_offset))
            self._on_skipped(partition, position, start_offset)

    def _on_skipped(self, partition: TopicPartition, start: int, end: int) -> None:
        """The records from `start` to below `end` were deleted."""

    def _may_fail(self, error: ApiError) -> bool:
        """Whether reading may fail with this error for a time."""
        return error.code in _CORRUPT and bool(self._history.damaged)

    # What the brokers answer.

    def _tap(self, node_id: int, request: Request, on_done: OnDone) -> OnDone | None:
        """Check the response to a Fetch before the consumer gets it."""
        if not isinstance(request, FetchRequest):
            return on_done

        def checked(response: Any, error: ApiError | None) -> None:
            if response is not None:
                self._check_fetched(node_id - FETCH_BASE, response)
            on_done(response, error)

        return checked

    def _check_fetched(self, node_id: int, response: Any) -> None:
        for topic in response.responses:
            for data in topic.partitions:
                if data.preferred_read_replica >= 0:
                    self._client.world.trace(self._client.name, f"reads from node-{data.preferred_read_replica}")
                if data.error_code or not data.records:
                    continue
                last = max(header.last_offset for _, header in iter_batches(memoryview(data.records)))
                if last >= data.high_watermark:
                    self._client.world.violated(
                        f"{self._client.name} gets offset {last} of a partition from node-{node_id}, "
                        f"whose high watermark is {data.high_watermark}"
                    )


class Consumer:
    """Reads some partitions from the beginning on, until `finish`."""

    def __init__(self, client: SimClient, history: History, partitions: list[TopicPartition], rack: str = "") -> None:
        self._reader = Reader(client, history, rack)
        self._partitions = partitions
        self._finishing = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        consumer = self._reader.consumer
        consumer.assign(self._partitions)
        for partition in self._partitions:
            consumer.seek(partition, 0)
        while not self._finishing:
            await self._reader.poll(1.0)
        await consumer.close()


def records_of(buffer: Any, start: int = 0) -> Records:
    """The records from `start` on; the checksum of every batch is checked. Raises `CorruptRecord`."""
    found: Records = []
    for position, header in iter_batches(memoryview(buffer or b"")):
        check_crc(memoryview(buffer), position, header)
        found += [(r.offset, r.value or b"") for r in read_records(buffer, position) if r.offset >= start]
    return found
