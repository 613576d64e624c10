"""Clients of transactions, which record what they attempt and see as a history of `kalda.verify`.

A client works until `stop`, or until its incarnation ends: it is fenced, or the outcome of its transaction is unknown.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.transaction_errors import AbortableTransactionError, FatalTransactionError
from kalda.client.core.transaction_manager import GroupMember
from kalda.client.core.transactions_seen import aborted_batches
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)
from kalda.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from kalda.records.batch import check_crc, iter_batches
from kalda.records.builder import read_records
from kalda.sim.client import SimClient
from kalda.sim.transactions import SimTransactions, until_answered
from kalda.verify.history import (
    Append,
    Consumed,
    FinalLog,
    History,
    Outcome,
    Read,
    Sample,
    Seen,
    Transaction,
)

_FETCH_VERSION = 12
_LIST_VERSION = 7
_OFFSET_FETCH_VERSION = 7
_CONSUMER = -1
"""The replica id of a client; a replica would get the log end offset."""
_ABORTS = 0.2
_QUITS = 0.1
"""The share of a loop's commits whose answer it does not wait for: it ends, and its successor takes over."""
_PATIENCE_S = 60.0
"""How long a read is retried, in virtual time: longer than any fault lasts."""


class Worker:
    """One incarnation of a client with a transactional id."""

    def __init__(
        self, client: SimClient, history: History, name: str, incarnation: int, transaction_timeout_ms: int
    ) -> None:
        self.client = client
        self.name = name
        self.incarnation = incarnation
        self.is_ready = False
        """Its InitProducerId has been answered: a successor fences it."""
        self.has_ended = False
        self._history = history
        self._number = 0
        self._stopping = False
        self.producer = SimTransactions(client, name, transaction_timeout_ms)
        self.task = client.spawn(self._run())

    def stop(self) -> None:
        """Begin no more transactions."""
        self._stopping = True

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def now_us(self) -> int:
        return int(self.client.world.now_s * 1_000_000)

    async def _run(self) -> None:
        try:
            await self.producer.init()
            self.is_ready = True
            while not self._has_finished():
                await self.step()
                await asyncio.sleep(self.client.rng.choice((0, 0.01, 0.1, 0.3)))
        except FatalTransactionError as error:
            self.client.world.trace(self.client.name, f"ends: {error}")
        except ApiError as error:
            self.client.world.trace(self.client.name, f"gives up: {error}")
        self.has_ended = True

    def _has_finished(self) -> bool:
        return self._stopping

    async def step(self) -> None:
        """One transaction. Raises `ApiError` where this incarnation has to end."""
        raise NotImplementedError

    def next_transaction(self) -> Transaction:
        number, self._number = self._number, self._number + 1
        return Transaction(self.name, self.incarnation, number, Outcome.UNKNOWN, self.now_us, None, None, ())

    async def transact(
        self,
        transaction: Transaction,
        group: str = "",
        ends: dict[TopicPartition, int] | None = None,
        member: GroupMember | None = None,
    ) -> Transaction:
        """Run a transaction to its end, and record it. `ends`: offsets of the group that belong to it, and `member`
        the one that has read the input. Raises `ApiError`."""
        self._history.add(transaction)
        producer, commits = self.producer, self.client.rng.random() >= _ABORTS
        await producer.begin()
        try:
            transaction = replace(transaction, appends=await self._write(transaction.appends))
            if ends:
                await producer.send_offsets(group, ends, member)
            if commits:
                transaction = replace(transaction, commit_sent_us=self.now_us)
                self._history.add(transaction)
                if ends and self.client.rng.random() < _QUITS:
                    producer.commit_without_answer()
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "it does not wait for the answer to its commit")
                await until_answered(producer.commit)
                return self._ended(transaction, Outcome.COMMITTED)
        except AbortableTransactionError as error:
            self.client.world.trace(self.client.name, f"has to abort: {error}")
        await until_answered(producer.abort)
        return self._ended(transaction, Outcome.ABORTED)

    async def _write(self, appends: tuple[Append, ...]) -> tuple[Append, ...]:
        values: dict[TopicPartition, list[str]] = {}
        for append in appends:
            values.setdefault(append.partition, []).append(append.value)
        following = dict(await self.producer.write(values))
        found = []
        for append in appends:
            offset = following[append.partition]
            if offset >= 0:
                following[append.partition] = offset + 1
            found.append(append._replace(offset=offset if offset >= 0 else None))
        return tuple(found)

    def _ended(self, transaction: Transaction, outcome: Outcome) -> Transaction:
        ended = replace(transaction, outcome=outcome, ended_us=self.now_us)
        self._history.add(ended)
        self.client.world.trace(self.client.name, f"{transaction.name} is {outcome.value}")
        return ended


class Writer(Worker):
    """Writes some records to some of `partitions` in each transaction."""

    def __init__(self, *arguments: Any, partitions: list[TopicPartition]) -> None:
        self._partitions = partitions
        super().__init__(*arguments)

    async def step(self) -> None:
        rng, transaction = self.client.rng, self.next_transaction()
        targets = rng.sample(self._partitions, rng.randint(1, min(3, len(self._partitions))))
        appends = tuple(
            Append(rng.choice(targets), f"{transaction.name}#{index}") for index in range(rng.randint(1, 4))
        )
        await self.transact(replace(transaction, appends=appends))


class Loop(Worker):
    """Consume-transform-produce of `inputs`, each into its partition of `outputs`."""

    def __init__(self, *arguments: Any, group: str, outputs: dict[TopicPartition, TopicPartition]) -> None:
        self._group = group
        self._outputs = outputs
        self._committed: dict[TopicPartition, int] | None = None
        self.positions: dict[TopicPartition, int] = {}
        super().__init__(*arguments)

    def _has_finished(self) -> bool:
        """It goes on after `stop`, until the scenario finds no input left."""
        return False

    async def step(self) -> None:
        if self._committed is None:
            self._committed = await committed_offsets(self.client, self._group, list(self._outputs))
            self.positions = dict(self._committed)
        partition = self.client.rng.choice(list(self._outputs))
        begun_us, start = self.now_us, self.positions[partition]
        records, end = await fetch(self.client, partition, start, read_committed=True)
        self.positions[partition] = end
        transaction = self.next_transaction()
        read = Read(self.name, partition, start, end, begun_us, self.now_us, records, transaction.name)
        self._history.add(read)
        if not records:
            return
        output = self._outputs[partition]
        appends = tuple(Append(output, f"{transaction.name}<{r.value}", None, r.value) for r in records)
        consumed = (Consumed(self._group, partition, self._committed[partition], end),)
        ended = await self.transact(
            replace(transaction, appends=appends, consumed=consumed), self._group, {partition: end}
        )
        if ended.outcome is Outcome.COMMITTED:
            self._committed[partition] = end
        else:
            self._committed = None


class Observer:
    """A read_committed consumer of all partitions, which samples last stable offsets too."""

    def __init__(self, client: SimClient, history: History, partitions: list[TopicPartition]) -> None:
        self._client = client
        self._history = history
        self._positions = dict.fromkeys(partitions, 0)
        self._stopping = False
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._stopping = True
        await self.task

    async def _run(self) -> None:
        while not self._stopping:
            for partition in self._positions:
                try:
                    await self._read(partition)
                    await self.sample(partition)
                except ApiError:
                    self._client.forget_leaders()
                    await self._client.pause()
            await asyncio.sleep(0.1)

    async def _read(self, partition: TopicPartition) -> None:
        begun_us, start = self._now_us, self._positions[partition]
        records, end = await fetch(self._client, partition, start, read_committed=True, attempts_s=0)
        self._positions[partition] = end
        self._history.add(Read(self._client.name, partition, start, end, begun_us, self._now_us, records))

    async def sample(self, partition: TopicPartition) -> Sample:
        """Record the last stable offset and the high watermark. Raises `ApiError`."""
        at_us = self._now_us
        stable = await latest_offset(self._client, partition, read_committed=True)
        end = await latest_offset(self._client, partition, read_committed=False)
        sample = Sample(partition, stable, end, at_us)
        self._history.add(sample)
        return sample

    @property
    def _now_us(self) -> int:
        return int(self._client.world.now_s * 1_000_000)


async def fetch(
    client: SimClient, partition: TopicPartition, start: int, *, read_committed: bool, attempts_s: float = _PATIENCE_S
) -> tuple[tuple[Seen, ...], int]:
    """Records from `start` on, and the next position. Retries for `attempts_s`. Raises `ApiError`."""

    async def attempt() -> Any:
        await client.find_leader(partition)
        entry = FetchRequestFetchPartition(
            partition=partition.partition,
            fetch_offset=start,
            partition_max_bytes=1 << 12,
            current_leader_epoch=client.leader_epoch(partition),
        )
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=-1,
            isolation_level=int(read_committed),
            topics=[FetchRequestFetchTopic(topic=partition.topic, partitions=[entry])],
        )
        answer = await client.ask_leader(partition, request, _FETCH_VERSION)
        data = answer.responses[0].partitions[0]
        if data.error_code:
            raise ApiError(ErrorCode(data.error_code), f"{partition} at {start}")
        return data

    data = await client.until(attempt, attempts_s)
    buffer = memoryview(data.records or b"")
    aborted = ((each.producer_id, each.first_offset) for each in data.aborted_transactions or ())
    dropped = aborted_batches(buffer, aborted) if read_committed else frozenset()
    records: list[Seen] = []
    end = start
    for position, header in iter_batches(buffer):
        check_crc(buffer, position, header)
        end = max(end, header.next_offset)
        if not header.is_control and header.base_offset not in dropped:
            records += [
                Seen(record.offset, (record.value or b"").decode())
                for record in read_records(buffer, position)
                if record.offset >= start
            ]
    return tuple(records), end


async def latest_offset(client: SimClient, partition: TopicPartition, *, read_committed: bool) -> int:
    """The high watermark, or with `read_committed` the last stable offset. Raises `ApiError`."""
    await client.find_leader(partition)
    entry = ListOffsetsPartition(
        partition_index=partition.partition,
        timestamp=OffsetSpec.LATEST,
        current_leader_epoch=client.leader_epoch(partition),
    )
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=int(read_committed),
        topics=[ListOffsetsTopic(name=partition.topic, partitions=[entry])],
    )
    found = (await client.ask_leader(partition, request, _LIST_VERSION)).topics[0].partitions[0]
    if found.error_code:
        raise ApiError(ErrorCode(found.error_code), str(partition))
    offset: int = found.offset
    return offset


async def committed_offsets(
    client: SimClient, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """The group's offsets, 0 where there is none, when no transaction with offsets is open. Raises `ApiError`."""
    topics: dict[str, OffsetFetchRequestTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, OffsetFetchRequestTopic(name=name, partition_indexes=[])).partition_indexes.append(
            index
        )
    request = OffsetFetchRequest(group_id=group, topics=list(topics.values()), require_stable=True)

    async def attempt() -> dict[TopicPartition, int]:
        answer = await client.ask_coordinator(group, request, _OFFSET_FETCH_VERSION)
        codes = [answer.error_code, *(p.error_code for topic in answer.topics for p in topic.partitions)]
        for code in filter(None, codes):
            raise ApiError(ErrorCode(code), f"group {group}")
        return {
            TopicPartition(topic.name, p.partition_index): max(0, p.committed_offset)
            for topic in answer.topics
            for p in topic.partitions
        }

    found: dict[TopicPartition, int] = await client.until(attempt, _PATIENCE_S)
    return found


async def final_log(client: SimClient, partition: TopicPartition) -> FinalLog:
    """A partition as it is in the end. Raises `ApiError`."""
    stable = await client.until(lambda: latest_offset(client, partition, read_committed=True), _PATIENCE_S)
    end = await client.until(lambda: latest_offset(client, partition, read_committed=False), _PATIENCE_S)
    both = []
    for read_committed, limit in ((False, end), (True, stable)):
        records: list[Seen] = []
        position = 0
        while position < limit:
            found, position = await fetch(client, partition, position, read_committed=read_committed)
            records += found
        both.append(tuple(records))
    return FinalLog(partition, 0, end, stable, *both)
