"""Producers and administrators, which work through all faults until `finish`.

A producer is Kalda's own. It sends rounds of records to single partitions, without waiting for those before, up to a
bound; its batches are small, so that several are in flight. The log must have an idempotent producer's records once
and in order; of another producer, it must have every acknowledged record. A producer's record fails only where its
`delivery.timeout.ms` is short; else every record is acknowledged once the faults are over.

A producer snapshot, whose format is Kafka's, has only the last batch of each producer. A broker that restarts from one
does not recognize earlier batches, so where brokers restart, a producer has one batch in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.producer_batch import RecordMetadata
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kalda.sim.client import SimClient
from kalda.sim.client_io import SimAdmin, SimProducer
from kalda.sim.history import History, Written, value_of

_MAX_ROUND = 12
_MAX_UNFINISHED = 40
"""Records without an outcome, at which a producer waits."""
_PATIENT_MS = 900_000
"""Longer than any run."""
_IMPATIENT_MS = 6_000


class Producer:
    """Writes to some partitions, one round after another, until `finish`."""

    def __init__(
        self, client: SimClient, history: History, partitions: list[TopicPartition], *, idempotent: bool, in_flight: int
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

    def _recording(self, written: Written, partition: TopicPartition, number: int) -> Any:
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
