"""Clients of transactions, which record what they attempt and see as a history of `kalda.verify`.

A client works until `stop`, or until its incarnation ends: it is fenced, or the outcome of its transaction is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.connections import OnDone
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError, FatalTransactionError
from kalda.clientcore.producing.transaction_manager import TransactionManager
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.protocol.messages.transactions import EndTxnRequest
from kalda.protocol.notation import Request
from kalda.sim.client import SimAdmin, SimClient, SimConsumer, SimProducer
from kalda.verify.history import (
    Append,
    Consumed,
    FinalLog,
    History,
    OffsetSample,
    Outcome,
    Read,
    Seen,
    Transaction,
)

# A producer of transactions in the simulator: Kalda's own, on a machine of the simulated network.
#
# Answers to EndTxn are lost on purpose, so that the request is repeated; and a second copy of an EndTxn may arrive
# long after the first was answered. Such a late copy is sent for transactions of version 2 only: version 1 has no
# defence against it, since the next transaction has the same epoch.

_GIVE_UP_S = 12.0
"""How long a call is retried, in virtual time."""
_LOST_ANSWERS = 0.1
_DOUBLED_REQUESTS = 0.15
_DOUBLED_AFTER_S = (0.0, 3.0)
FEATURE = "transaction.version"

Sent = list[asyncio.Future[RecordMetadata]]


class SimTransactions:
    """A producer of one transactional id. The calls raise what the producer's raise, and REQUEST_TIMED_OUT."""

    def __init__(self, client: SimClient, transactional_id: str, timeout_ms: int) -> None:
        self._client = client
        self._rng = client.world.rng(f"{client.name}'s answers")
        self._producer = SimProducer(
            client,
            {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "delivery.timeout.ms": int(_GIVE_UP_S * 1000),
                "max.block.ms": int(_GIVE_UP_S * 1000),
                "linger.ms": client.rng.choice((0, 5)),
                "batch.size": client.rng.choice((100, 16_384)),
            },
            self._tap,
        )
        self._late: set[asyncio.Task[Any]] = set()
        """Doubled requests on their way."""
        self._keeps_end = False
        """The next EndTxn is not sent by the producer: a copy of it is, some time later."""
        self._end_was_kept: asyncio.Future[None] | None = None

    async def init(self) -> None:
        """Get a producer id. Raises `ApiError`."""
        await self._timed(self._producer.init_transactions())

    async def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        await self._producer.begin_transaction()

    async def send(self, records: Mapping[TopicPartition, list[str]]) -> dict[TopicPartition, Sent]:
        """Send records, without waiting for their outcomes."""
        return {
            partition: [
                await self._producer.send(partition.topic, value.encode(), partition=partition.partition)
                for value in values
            ]
            for partition, values in records.items()
        }

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: object) -> None:
        """Commit a group's offsets within the transaction. Raises `ApiError`."""
        await self._timed(self._producer.send_offsets_to_transaction(offsets, group))

    async def commit(self) -> None:
        """Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not."""
        await self._timed(self._producer.commit_transaction())

    async def commit_without_answer(self) -> None:
        """Send the request to commit, some time later, and do nothing more. Raises `ApiError` where the transaction
        has to be aborted instead."""
        self._keeps_end, self._end_was_kept = True, asyncio.get_running_loop().create_future()
        committing = asyncio.ensure_future(self.commit())
        await asyncio.wait((committing, self._end_was_kept), return_when=asyncio.FIRST_COMPLETED)
        self._keeps_end = False
        if committing.done():
            committing.result()
        committing.cancel()

    async def abort(self) -> None:
        """Raises `ApiError`."""
        await self._timed(self._producer.abort_transaction())

    async def close(self) -> None:
        """End the producer; its last transaction is not ended."""
        await self._producer.close(0)

    @staticmethod
    async def _timed(call: Awaitable[None]) -> None:
        try:
            await call
        except TimeoutError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None

    # EndTxn.

    def _tap(self, node_id: int, request: Request, on_done: OnDone) -> OnDone | None:
        if not isinstance(request, EndTxnRequest):
            return on_done
        if self._keeps_end:
            self._double(node_id, request)
            assert self._end_was_kept is not None
            if not self._end_was_kept.done():
                self._end_was_kept.set_result(None)
            return None
        if self._manager.is_v2 and self._rng.random() < _DOUBLED_REQUESTS:
            self._double(node_id, request)
        return self._losing(on_done) if self._rng.random() < _LOST_ANSWERS else on_done

    def _losing(self, on_done: OnDone) -> OnDone:
        def lost(_response: Any, _error: ApiError | None) -> None:
            self._client.world.trace(self._client.name, "loses the answer to an EndTxn")
            on_done(None, ApiError(ErrorCode.NETWORK_EXCEPTION, "the answer is lost"))

        return lost

    @property
    def _manager(self) -> TransactionManager:
        transactions = self._producer.core.transactions
        assert transactions is not None, "the producer has a transactional id"
        return transactions.manager

    def _double(self, node_id: int, request: EndTxnRequest) -> None:
        """Send a second copy of a request after a while."""
        after_s = self._rng.uniform(*_DOUBLED_AFTER_S)
        address = self._producer.core.metadata.brokers[node_id].address
        version = None if self._manager.is_v2 else _LAST_END_BEFORE_V2

        async def again() -> None:
            await asyncio.sleep(after_s)
            self._client.world.trace(self._client.name, "an EndTxn arrives a second time")
            try:
                await self._client.ask((address.host, address.port), request, version)
            except ApiError:
                return

        task = self._client.spawn(again())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


_LAST_END_BEFORE_V2 = 4


async def until_answered(end: Callable[[], Awaitable[None]]) -> None:
    """Await `end()`, again where it had no answer in time. Raises `ApiError`."""
    for attempt in range(3):
        try:
            await end()
        except AbortableTransactionError:
            raise
        except ApiError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or attempt == 2:
                raise
        else:
            return


_ABORTS = 0.2
_QUITS = 0.1
"""The share of a loop's commits whose answer it does not wait for: it ends, and its successor takes over."""
_ENDS_AT_ONCE = 0.3
"""The share of transactions that are ended before the outcomes of their records are known."""
_PATIENCE_S = 60.0
"""How long a read is retried, in virtual time: longer than any fault lasts."""
_POLL_S = 0.3
_SAMPLE_S = 2.0


class Worker(ABC):
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
            while not self._stopping:
                await self.step()
                await asyncio.sleep(self.client.rng.choice((0, 0.01, 0.1, 0.3)))
        except FatalTransactionError as error:
            self.client.world.trace(self.client.name, f"ends: {error}")
        except ApiError as error:
            self.client.world.trace(self.client.name, f"gives up: {error}")
        await self._close()
        self.has_ended = True

    async def _close(self) -> None:
        await self.producer.close()

    @abstractmethod
    async def step(self) -> None:
        """One transaction. Raises `ApiError` where this incarnation has to end."""

    def next_transaction(self) -> Transaction:
        number, self._number = self._number, self._number + 1
        return Transaction(self.name, self.incarnation, number, Outcome.UNKNOWN, self.now_us, None, None, ())

    async def transact(
        self, transaction: Transaction, group: object = None, ends: dict[TopicPartition, int] | None = None
    ) -> Transaction:
        """Run a transaction to its end, and record it. Raises `ApiError`."""
        self._history.add(transaction)
        producer, rng = self.producer, self.client.rng
        commits, waits = rng.random() >= _ABORTS, rng.random() >= _ENDS_AT_ONCE
        sent: dict[TopicPartition, Sent] = {}
        await producer.begin()
        try:
            sent = await self._send(transaction.appends)
            if waits:
                transaction = replace(transaction, appends=await self._offsets(transaction.appends, sent))
            if ends:
                await producer.send_offsets(ends, group)
            if commits:
                transaction = replace(transaction, commit_sent_us=self.now_us)
                self._history.add(transaction)
                if ends and rng.random() < _QUITS:
                    await producer.commit_without_answer()
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "it does not wait for the answer to its commit")
                await until_answered(producer.commit)
                transaction = replace(transaction, appends=await self._offsets(transaction.appends, sent))
                return self._ended(transaction, Outcome.COMMITTED)
        except AbortableTransactionError as error:
            self.client.world.trace(self.client.name, f"has to abort: {error}")
        await until_answered(producer.abort)
        return self._ended(transaction, Outcome.ABORTED)

    async def _send(self, appends: tuple[Append, ...]) -> dict[TopicPartition, Sent]:
        values: dict[TopicPartition, list[str]] = {}
        for append in appends:
            values.setdefault(append.partition, []).append(append.value)
        return await self.producer.send(values)

    async def _offsets(self, appends: tuple[Append, ...], sent: dict[TopicPartition, Sent]) -> tuple[Append, ...]:
        """The acknowledged offsets. Raises `ApiError` where a record has failed."""
        waiting = {partition: iter(deliveries) for partition, deliveries in sent.items()}
        try:
            found = [await next(waiting[append.partition]) for append in appends]
        except AbortableTransactionError:
            raise
        except ApiError as error:
            raise AbortableTransactionError(error.code, error.message) from error
        return tuple(
            append._replace(offset=metadata.offset if metadata.offset >= 0 else None)
            for append, metadata in zip(appends, found, strict=True)
        )

    def _ended(self, transaction: Transaction, outcome: Outcome) -> Transaction:
        ended = replace(transaction, outcome=outcome, ended_us=self.now_us)
        self._history.add(ended)
        self.client.world.trace(self.client.name, f"{transaction.name} is {outcome.value}")
        return ended


class TransactionWriter(Worker):
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


class TransactionLoop(Worker):
    """Consume-transform-produce of `source` into `output`."""

    def __init__(self, *arguments: Any, group: str, source: TopicPartition, output: TopicPartition) -> None:
        self._source = source
        self._output = output
        self._group = group
        self._committed: int | None = None
        """None: it has to be read from the group's coordinator."""
        self._consumer = stable_consumer(arguments[0], group)
        self._consumer.assign([source])
        super().__init__(*arguments)

    async def _close(self) -> None:
        await self._consumer.close(0)
        await super()._close()

    async def step(self) -> None:
        source, consumer = self._source, self._consumer
        if self._committed is None:
            self._committed = (await committed_offsets(consumer, [source]))[source]
            consumer.seek(source, self._committed)
        begun_us, start = self.now_us, consumer.positions()[source].offset
        records = await read(consumer)
        end = consumer.positions()[source].offset
        transaction = self.next_transaction()
        self._history.add(Read(self.name, source, start, end, begun_us, self.now_us, records, transaction.name))
        if not records:
            return
        appends = tuple(Append(self._output, f"{transaction.name}<{r.value}", None, r.value) for r in records)
        consumed = (Consumed(self._group, source, self._committed, end),)
        ended = await self.transact(
            replace(transaction, appends=appends, consumed=consumed), consumer.group_metadata(), {source: end}
        )
        self._committed = end if ended.outcome is Outcome.COMMITTED else None


class StableOffsetObserver:
    """A read_committed consumer of all partitions, which samples last stable offsets too."""

    def __init__(self, client: SimClient, history: History, partitions: list[TopicPartition]) -> None:
        self._client = client
        self._history = history
        self._partitions = partitions
        self._stopping = False
        self._stable = stable_consumer(client)
        self._admin = SimAdmin(client)
        self.task = client.spawn(self._run())

    async def finish(self) -> None:
        self._stopping = True
        await self.task

    async def _run(self) -> None:
        self._stable.assign(self._partitions)
        for partition in self._partitions:
            self._stable.seek(partition, 0)
        while not self._stopping:
            await self._read()
            for partition in self._partitions:
                with contextlib.suppress(ApiError):
                    await self.sample(partition)
            await asyncio.sleep(0.1)

    async def _read(self) -> None:
        begun_us, starts = self._now_us, self._stable.positions()
        records = await self._stable.poll(_POLL_S)
        for partition, end in self._stable.positions().items():
            found = tuple(
                Seen(r.offset, (r.value or b"").decode()) for r in records if (r.topic, r.partition) == partition
            )
            read = Read(
                self._client.name, partition, starts[partition].offset, end.offset, begun_us, self._now_us, found
            )
            self._history.add(read)

    async def sample(self, partition: TopicPartition) -> OffsetSample:
        """Record the last stable offset and the high watermark. Raises `ApiError`.

        Both are asked by one client: of two, the second could ask a leader that was paused, and does not know yet that
        the first client's leader has succeeded it."""
        at_us = self._now_us
        stable = await self._latest(partition, read_committed=True)
        end = await self._latest(partition, read_committed=False)
        sample = OffsetSample(partition, stable, end, at_us)
        self._history.add(sample)
        return sample

    async def _latest(self, partition: TopicPartition, *, read_committed: bool) -> int:
        found = await self._admin.list_offsets(
            {partition: OffsetSpec.LATEST}, read_committed=read_committed, timeout=_SAMPLE_S
        )
        return found.value(partition).offset

    @property
    def _now_us(self) -> int:
        return int(self._client.world.now_s * 1_000_000)


def stable_consumer(client: SimClient, group: str | None = None) -> SimConsumer:
    """A read_committed consumer that takes few records at once."""
    return SimConsumer(
        client,
        {
            "isolation.level": "read_committed",
            "auto.offset.reset": "none",
            "enable.auto.commit": False,
            "fetch.max.wait.ms": 200,
            "max.partition.fetch.bytes": 1 << 12,
            "max.poll.records": client.rng.choice((7, 100)),
            "metadata.max.age.ms": 5_000,
            **({} if group is None else {"group.id": group}),
        },
    )


async def read(consumer: SimConsumer) -> tuple[Seen, ...]:
    """The next records of the only partition of a consumer; none where none came. Raises `ApiError`."""
    return tuple(Seen(record.offset, (record.value or b"").decode()) for record in await consumer.poll(_POLL_S))


async def read_at(consumer: SimConsumer, partition: TopicPartition, start: int) -> tuple[tuple[Seen, ...], int]:
    """Records of one partition from `start` on, and the next position. Raises `ApiError`."""
    consumer.assign([partition])
    position = consumer.positions().get(partition)
    if position is None or position.offset != start:
        consumer.seek(partition, start)
    records = await read(consumer)
    return records, consumer.positions()[partition].offset


async def committed_offsets(consumer: SimConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The group's offsets, 0 where there is none, when no transaction with offsets is open. Raises `ApiError`."""
    found = await consumer.committed(*partitions, timeout=_PATIENCE_S)
    return {each: 0 if (position := found[each]) is None else position.offset for each in partitions}


async def latest_offset(client: SimClient, partition: TopicPartition, *, read_committed: bool) -> int:
    """The high watermark, or with `read_committed` the last stable offset. Raises `ApiError`."""
    consumer = SimConsumer(client, {"isolation.level": "read_committed" if read_committed else "read_uncommitted"})
    try:
        return (await consumer.end_offsets(partition, timeout=_PATIENCE_S))[partition]
    finally:
        await consumer.close()


async def final_log(client: SimClient, partition: TopicPartition) -> FinalLog:
    """A partition as it is in the end. Raises `ApiError`."""
    stable = await latest_offset(client, partition, read_committed=True)
    end = await latest_offset(client, partition, read_committed=False)
    both = []
    for isolation, limit in (("read_uncommitted", end), ("read_committed", stable)):
        consumer = SimConsumer(client, {"isolation.level": isolation, "auto.offset.reset": "none"})
        consumer.assign([partition])
        consumer.seek(partition, 0)
        records: list[Seen] = []
        while consumer.positions()[partition].offset < limit:
            records += await read(consumer)
        await consumer.close()
        both.append(tuple(records))
    return FinalLog(partition, 0, end, stable, *both)
