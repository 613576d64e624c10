"""Producers, administrators and consumers, which work through all faults until `finish`.

A producer is Kalda's own. It sends rounds of records to single partitions, without waiting for those before, up to a
bound; its batches are small, so that several are in flight. The log must have an idempotent producer's records once
and in order; of another producer, it must have every acknowledged record. A producer's record fails only where its
`delivery.timeout.ms` is short; else every record is acknowledged once the faults are over.

A producer snapshot, whose format is Kafka's, has only the last batch of each producer. A broker that restarts from one
does not recognize earlier batches, so where brokers restart, a producer has one batch in flight.

A consumer reads all committed records from the beginning on, each once. It is Kalda's own, too. It may send its rack;
then the leader names a preferred replica there (KIP-392), from which the consumer fetches for a time, or until a
failure. Where a follower fails, the leader is used instead. No response has a record at or above its own high
watermark, whichever replica it is from. Where records at the beginning were deleted, reading continues at the log start
offset. So `auto.offset.reset` is none, and each gap is compared with the deletions: a consumer that jumped to an offset
by itself would hide a loss.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.connections import OnDone
from kalda.clientcore.connections.requests import FETCH_BASE
from kalda.clientcore.consuming.consumer_errors import NoOffset, OffsetOutOfRange
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.protocol.messages.partitions import FetchRequest
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kalda.protocol.notation import Request
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import read_records
from kalda.sim.client import SimAdmin, SimClient, SimConsumer, SimProducer
from kalda.sim.history import RunHistory, WrittenRecords, value_of

_MAX_ROUND = 12
_MAX_UNFINISHED = 40
"""Records without an outcome, at which a producer waits."""
_PATIENT_MS = 900_000
"""Longer than any run."""
_IMPATIENT_MS = 6_000


class WorkloadProducer:
    """Writes to some partitions, one round after another, until `finish`."""

    def __init__(
        self,
        client: SimClient,
        history: RunHistory,
        partitions: list[TopicPartition],
        *,
        idempotent: bool,
        in_flight: int,
    ) -> None:
        """`in_flight` is the most requests in flight of an idempotent producer; others have one."""
        self._client = client
        self._history = history
        self._partitions = partitions
        self._idempotent = idempotent
        rng = client.rng
        self._is_patient = rng.random() < 0.8
        self._producer = SimProducer(
            client,
            {
                "acks": "all",
                "enable.idempotence": idempotent,
                "max.in.flight.requests.per.connection": in_flight if idempotent else 1,
                "linger.ms": rng.choice((0, 5, 50)),
                "batch.size": rng.choice((100, 300, 1_200)),
                "delivery.timeout.ms": _PATIENT_MS if self._is_patient else _IMPATIENT_MS,
                "max.block.ms": _PATIENT_MS,
                "compression.type": rng.choice(("none", "none", "lz4")),
            },
        )
        self._unfinished: set[asyncio.Future[RecordMetadata]] = set()
        self._finishing = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        """Write no more records, and wait until those written are acknowledged."""
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        rng = self._client.rng
        while not self._finishing:
            await self._round(rng.choice(self._partitions))
            await asyncio.sleep(rng.choice((0, 0.1, 0.4, 0.8)))
            while len(self._unfinished) > _MAX_UNFINISHED:
                await asyncio.wait(self._unfinished, return_when=asyncio.FIRST_COMPLETED)
        await self._producer.flush()
        await self._producer.close()

    async def _round(self, partition: TopicPartition) -> None:
        client = self._client
        written = self._history.of(client.name, partition, self._idempotent)
        for _ in range(client.rng.randint(1, _MAX_ROUND)):
            number, written.attempted = written.attempted, written.attempted + 1
            value = value_of(client.name, partition, number)
            delivery = await self._producer.send(partition.topic, value, partition=partition.partition)
            self._unfinished.add(delivery)
            delivery.add_done_callback(self._recording(written, partition, number))

    def _recording(self, written: WrittenRecords, partition: TopicPartition, number: int) -> Any:
        """What records the outcome of one record."""
        client = self._client

        def on_done(delivery: asyncio.Future[RecordMetadata]) -> None:
            self._unfinished.discard(delivery)
            error = delivery.exception()
            if error is None:
                written.acked[number] = offset = delivery.result().offset
                client.world.trace(client.name, f"acked {number} in {partition} at {offset}")
            elif self._is_patient or not (isinstance(error, ApiError) and error.code.retriable):
                client.world.violated(f"{client.name} is refused record {number} of {partition}: {error!r}")

        return on_done


class Administrator:
    """Creates topics; with `churning` also some without clients, of which it deletes some again."""

    def __init__(self, client: SimClient, replicas: int, *, churning: bool = True) -> None:
        self._client = client
        self._admin = SimAdmin(client)
        self._replicas = replicas
        self._finishing = False
        self.topics: dict[str, bool] = {}
        """Whether each topic must exist at the end."""
        self._churning = churning
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        if not self._churning:
            return
        rng = self._client.rng
        while not self._finishing:
            await asyncio.sleep(rng.uniform(0.5, 4))
            existing = [name for name, exists in self.topics.items() if exists]
            if existing and rng.random() < 0.4:
                name = rng.choice(existing)
                await self.delete(name)
            else:
                await self.create(f"churn-{len(self.topics)}", rng.randint(1, 3))

    async def create(
        self, name: str, partitions: int, configs: dict[str, str] | None = None, *, keep: bool = False
    ) -> None:
        """Create a topic, with as many attempts as it takes; with `keep` it is never deleted."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=self._replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )

        async def attempt() -> None:
            answer = await self._admin.ask_any(CreateTopicsRequest(topics=[topic], timeout_ms=3_000), 7)
            _check(answer.topics[0], done_before=ErrorCode.TOPIC_ALREADY_EXISTS)

        await self._client.until(attempt)
        if not keep:
            self.topics[name] = True
        self._client.world.trace(self._client.name, f"created {name}")

    async def delete(self, name: str) -> None:
        """Delete a topic, with as many attempts as it takes."""

        async def attempt() -> None:
            answer = await self._admin.ask_any(DeleteTopicsRequest(topic_names=[name], timeout_ms=3_000), 5)
            code = ErrorCode(answer.responses[0].error_code)
            if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise ApiError(code)

        await self._client.until(attempt)
        self.topics[name] = False
        self._client.world.trace(self._client.name, f"deleted {name}")


_NOT_NOW = frozenset((ErrorCode.INVALID_REPLICATION_FACTOR,))
"""Too few brokers are alive for the request."""


def _check(result: Any, done_before: ErrorCode) -> None:
    code = ErrorCode(result.error_code)
    if code in _NOT_NOW:
        raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, result.error_message or "")
    if code not in (ErrorCode.NONE, done_before):
        raise ApiError(code, result.error_message or "")


_PREFERRED_MS = (1_000, 6_000)
"""How long a consumer uses a preferred replica, as long as its metadata is valid; 300 s by default."""
_MAX_WAIT_MS = 500
_CORRUPT = frozenset((ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR))

Records = list[tuple[int, bytes]]
"""Offsets and values."""


class CheckedReader:
    """A consumer of partitions, and the checks of what it reads."""

    def __init__(
        self, client: SimClient, history: RunHistory, rack: str, config: dict[str, object] | None = None
    ) -> None:
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


class WorkloadConsumer:
    """Reads some partitions from the beginning on, until `finish`."""

    def __init__(
        self, client: SimClient, history: RunHistory, partitions: list[TopicPartition], rack: str = ""
    ) -> None:
        self._reader = CheckedReader(client, history, rack)
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
