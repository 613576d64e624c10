"""Producers and administrators, which work through all faults until `finish`.

A producer sends a round of batches to one partition, and repeats those that were not acknowledged, in order, until all
are. So the log must have an idempotent producer's records once and in order; of another producer, it must have every
acknowledged record.

A producer snapshot, whose format is Kafka's, has only the last batch of each producer. A broker that restarts from one
does not recognize earlier batches, so where brokers restart, a producer has one batch in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kalda.protocol.messages.transactions import InitProducerIdRequest
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch
from kalda.sim.client import SimClient
from kalda.sim.history import History, value_of
from kalda.sim.machine import EPOCH_MS

_PRODUCE_VERSION = 11
_MAX_ROUND = 4
_MAX_RECORDS = 3


class Producer:
    """Writes to some partitions, one round after another, until `finish`."""

    def __init__(
        self, client: SimClient, history: History, partitions: list[TopicPartition], *, idempotent: bool, in_flight: int
    ) -> None:
        """`in_flight` is the most batches in flight of an idempotent producer; others have one."""
        self._client = client
        self._history = history
        self._partitions = partitions
        self._idempotent = idempotent
        self._in_flight = in_flight
        self._producer = (-1, -1)
        self._sequences = dict.fromkeys(partitions, 0)
        self._finishing = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        """Write no more records, and wait until those written are acknowledged."""
        self._finishing = True
        await self.task

    async def _run(self) -> None:
        client = self._client
        if self._idempotent:
            self._producer = await client.until(self._init_producer_id)
        while not self._finishing:
            partition = client.rng.choice(self._partitions)
            await self._round(partition)
            await asyncio.sleep(client.rng.choice((0, 0.01, 0.1, 0.4)))

    async def _init_producer_id(self) -> tuple[int, int]:
        answer = await self._client.ask_any(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4
        )
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        return answer.producer_id, answer.producer_epoch

    async def _round(self, partition: TopicPartition) -> None:
        client = self._client
        written = self._history.of(client.name, partition, self._idempotent)
        waiting: list[tuple[list[int], bytes]] = []
        for _ in range(client.rng.randint(1, _MAX_ROUND)):
            numbers = list(range(written.attempted, written.attempted + client.rng.randint(1, _MAX_RECORDS)))
            written.attempted += len(numbers)
            waiting.append((numbers, self._batch(partition, numbers)))
        while waiting:
            sent = waiting[: self._in_flight]
            answers = await self._send_all(partition, [batch for _, batch in sent])
            left: list[tuple[list[int], bytes]] = []
            for (numbers, batch), (code, offset, message) in zip(sent, answers, strict=True):
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    base = -1 if code or offset < 0 else offset
                    client.world.trace(client.name, f"acked {numbers[0]}..{numbers[-1]} in {partition} at {offset}")
                    written.acked.update((n, base + at if base >= 0 else -1) for at, n in enumerate(numbers))
                    continue
                if not code.retriable and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    client.world.violated(f"{client.name} is refused {numbers} of {partition}: {code.name} {message}")
                    return
                # OUT_OF_ORDER_SEQUENCE_NUMBER follows from the failure of an earlier batch, or comes from a former
                # leader that is not fenced yet. If it never ends, records were lost, and `finish` does not complete.
                left.append((numbers, batch))
            waiting = left + waiting[len(sent) :]
            if left:
                client.forget_leaders()
                await client.pause()

    def _batch(self, partition: TopicPartition, numbers: list[int]) -> bytes:
        producer_id, producer_epoch = self._producer
        sequence = self._sequences[partition] if self._idempotent else -1
        self._sequences[partition] += len(numbers)
        now_ms = EPOCH_MS + int(self._client.world.now_s * 1000)
        return bytes(
            build_batch(
                [(now_ms, None, value_of(self._client.name, partition, number), ()) for number in numbers],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
            )
        )

    async def _send_all(self, partition: TopicPartition, batches: list[bytes]) -> list[tuple[ErrorCode, int, str]]:
        """Send the batches: of an idempotent producer all at once and in order, of others one after another."""
        requests = [self._request(partition, batch) for batch in batches]
        if self._idempotent:
            outcomes = await self._client.ask_leader_all(partition, requests, _PRODUCE_VERSION)
        else:
            outcomes = [(await self._client.ask_leader_all(partition, [r], _PRODUCE_VERSION))[0] for r in requests]
        return [_outcome(each) for each in outcomes]

    def _request(self, partition: TopicPartition, batch: bytes) -> Request:
        data = PartitionProduceData(index=partition.partition, records=batch)
        return ProduceRequest(
            acks=-1,
            timeout_ms=2_000,
            topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
        )


def _outcome(outcome: Any) -> tuple[ErrorCode, int, str]:
    if isinstance(outcome, ApiError):
        return (outcome.code if outcome.code.retriable else ErrorCode.NETWORK_EXCEPTION), -1, ""
    assert not isinstance(outcome, BaseException), repr(outcome)
    result = outcome.responses[0].partition_responses[0]
    return ErrorCode(result.error_code), result.base_offset, result.error_message or ""


class Administrator:
    """Creates topics; with `churning` also some without clients, of which it deletes some again."""

    def __init__(self, client: SimClient, replicas: int, *, churning: bool = True) -> None:
        self._client = client
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
            answer = await self._client.ask_any(CreateTopicsRequest(topics=[topic], timeout_ms=3_000), 7)
            _check(answer.topics[0], done_before=ErrorCode.TOPIC_ALREADY_EXISTS)

        await self._client.until(attempt)
        if not keep:
            self.topics[name] = True
        self._client.world.trace(self._client.name, f"created {name}")

    async def delete(self, name: str) -> None:
        """Delete a topic, with as many attempts as it takes."""

        async def attempt() -> None:
            answer = await self._client.ask_any(DeleteTopicsRequest(topic_names=[name], timeout_ms=3_000), 5)
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
