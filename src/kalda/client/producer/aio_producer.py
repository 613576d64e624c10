"""The asyncio producer: its core runs on the loop of its user, without a thread.

`await send(...)` waits for room and for the topic's metadata, for no more than `max.block.ms` in all, and returns an
`asyncio.Future` of the record's metadata. Used by the tasks of one loop. Callbacks are called by the loop, in the order
of the records of a partition.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda import __version__
from kalda.base.configs.producer import PRODUCER, producer_config
from kalda.base.errors import ApiError, CallTimeout
from kalda.client.producer.delivery import leaves
from kalda.client.producer.producer_calls import ProducerCalls, ProducerDriven
from kalda.client.transport.aio_face import AioFace, IoLoop
from kalda.client.transport.config_files import read_config
from kalda.clientcore.connections.metadata import Partition
from kalda.clientcore.producer import ProducerCore
from kalda.clientcore.producing.outbound_record import Headers, OnDelivery, Outgoing, Prepared, ProducerRecord
from kalda.clientcore.producing.producer_batch import FinalState, ProducerBatch, RecordMetadata, WrittenBatch, unwritten
from kalda.clientcore.producing.producer_errors import ProducerClosed, is_of_state
from kalda.clientcore.producing.row_batches import Columns, Rows, append_next, next_sticky, parts_of
from kalda.records.appending import Ticket, TopicAppender

if TYPE_CHECKING:
    from typing import Unpack

    from kalda.client.keywords import ProducerKeywords
    from kalda.clientcore.producing.transaction_manager import PreparedTxnState
    from kalda.clientcore.producing.transactions import TransactionDriver

Delivery = asyncio.Future[RecordMetadata]
_numbers = itertools.count(1)


class _Driven(ProducerDriven):
    """What the loop runs, and what tasks wait for."""

    def __init__(self, core: ProducerCore, outgoing: Outgoing) -> None:
        super().__init__(core, outgoing)
        self.waiting: set[asyncio.Future[None]] = set()
        """Tasks that wait for metadata."""
        self.waits_for_transaction: set[asyncio.Future[None]] = set()
        """Tasks that wait for a request of a transaction."""

    def _deliver(self, batch: ProducerBatch) -> None:
        _deliver(batch, self.outgoing)

    def _wake(self, is_news: bool) -> None:
        # A task that waits for metadata takes a turn when it is woken: were it woken by each turn, turns would not end.
        if is_news:
            _wake(self.waiting)
        _wake(self.waits_for_transaction)


class Producer(ProducerCalls, AioFace):
    """Sends records to topics.

    ```python
    async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        delivery = await producer.send("orders", value=b"42", key=b"k")
        metadata = await delivery
    ```
    """

    _driven: _Driven
    _what = "producer"

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`. The loop is that of the first `send`, or of `async with`."""
        self._config = producer_config(read_config(PRODUCER, config), keywords)
        self._outgoing = Outgoing(self._config)
        self._core = ProducerCore(
            self._config,
            client_id=self._config.client_id or f"producer-aio-{next(_numbers)}",
            software_version=__version__,
            random=self._host.random,
            ticket_type=Ticket,
            lock=nullcontext(),
            now_ms=self._host.monotonic_ms(),
        )
        self._core.push_metrics(self._host.wall_ms)
        self._driven = _Driven(self._core, self._outgoing)
        self._wall_s, self._monotonic_ms = self._host.wall_s, self._host.monotonic_ms
        self._appenders: dict[str, TopicAppender] = {}
        """The topics to which `send` appends without a detour; empty where every record needs one."""

    # -- sending

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send a record; waits for room, and returns the future of its `RecordMetadata`. Arguments as those of the
        blocking producer."""
        appender = self._appenders.get(topic)
        if appender is not None and not headers and on_delivery is None:
            assert self._loop is not None, "there is an appender: the loop is known"
            delivery: Delivery = self._loop.create_future()
            if appender.append(value, key, partition, timestamp_ms, delivery, self._wall_s()) is not None:
                return delivery
        return await self._send(ProducerRecord(topic, value, key, partition, timestamp_ms, headers), on_delivery)

    async def _send(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> Delivery:
        record = self._outgoing.intercept(record)
        delivery: Delivery = asyncio.get_running_loop().create_future()
        ticket = Ticket()
        ticket.callback = delivery
        if on_delivery is not None:
            delivery.add_done_callback(lambda done: _report(done, on_delivery, record, ticket))
        try:
            self._check_open()
            self._check_transaction()
            io, deadline_ms = self._started(), self._monotonic_ms() + self._config.max_block_ms
            partitions = await self._wait_for_topic(record.topic, record.partition, deadline_ms)
            prepared = self._outgoing.prepare(record)
            record = record._replace(partition=self._outgoing.partition(record, prepared, partitions))
            await self._append(io, record, prepared, ticket, deadline_ms)
        except BaseException as error:
            self._on_failed_send(error, record)
            if not isinstance(error, ApiError) or is_of_state(error):
                raise
            _fail(delivery, error)
        return delivery

    async def _append(
        self, io: IoLoop, record: ProducerRecord, prepared: Prepared, ticket: Ticket, deadline_ms: int
    ) -> None:
        accumulator = self._core.accumulator
        topic = accumulator.topic(record.topic)
        if self._outgoing.is_plain:
            self._appenders[record.topic] = topic.appender
        timestamp_ms = int(self._wall_s() * 1000) if record.timestamp_ms is None else record.timestamp_ms
        buffer: bytearray | None = None
        while True:
            now_ms = self._monotonic_ms()
            if accumulator.append(topic, record.partition, timestamp_ms, prepared, ticket, now_ms, buffer):
                break
            buffer = await self._wait_for_buffer(io, accumulator.buffer_size(prepared.size_bytes), deadline_ms)
        batch: ProducerBatch = ticket.batch
        if ticket.index == 0:
            queue = topic.queues[batch.topic_partition.partition]
            if len(queue.batches) > 1 or batch.is_full or self._config.linger_ms == 0:
                io.wake()
            else:
                io.wake_by(now_ms + self._config.linger_ms)
            await asyncio.sleep(0)  # a task that only sends must not keep the loop from sending

    async def send_batch(
        self,
        topic: str,
        table: Any,
        key: str | None = None,
        value: str | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
        partition: int | None = None,
        partition_by: str | None = None,
    ) -> asyncio.Future[list[WrittenBatch]]:
        """Send the rows of a `pyarrow.Table` or `RecordBatch`: as the blocking producer's. Waits for room, and returns
        the future of where the rows are."""
        try:
            return await self._send_rows(topic, table, Columns(key, value, timestamp, headers), partition, partition_by)
        except BaseException as error:
            self._on_failed_send(error)
            raise

    async def _send_rows(
        self, topic: str, table: Any, columns: Columns, partition: int | None, partition_by: str | None
    ) -> asyncio.Future[list[WrittenBatch]]:
        self._check_open()
        self._check_transaction()
        io = self._started()
        deadline_ms = self._monotonic_ms() + self._config.max_block_ms
        count = len(await self._wait_for_topic(topic, partition, deadline_ms))
        accumulator = self._core.accumulator
        state = accumulator.topic(topic)
        sent: list[ProducerBatch] = []
        now_ms = int(self._wall_s() * 1000)
        sticky = next_sticky(accumulator, state)
        for part, chosen in parts_of(table, columns, partition, partition_by, count, sticky):
            rows = Rows(part, chosen, now_ms, self._config)
            while rows.is_left:
                size = rows.buffer_bytes()
                buffer = self._core.pool.take(size)
                if buffer is None:
                    until_ms = self._monotonic_ms() + self._config.max_block_ms
                    buffer = await self._wait_for_buffer(io, size, until_ms)
                sent.append(append_next(rows, buffer, accumulator, state, self._monotonic_ms()))
                io.wake()
                await asyncio.sleep(0)
        return asyncio.ensure_future(_written(sent))

    # -- waiting

    async def _wait_for_topic(self, topic: str, partition: int | None, deadline_ms: int) -> tuple[Partition, ...]:
        io = self._started()
        self._want(topic, partition, self._monotonic_ms())
        while True:
            partitions = self._partitions_with(topic, partition)
            if partitions:
                return partitions
            self._check_open()
            self._request_topic(topic)
            io.wake()
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._driven.waiting.add(waiting)
            try:
                with self._timed(self._core.metrics.metadata_wait_ns):
                    async with asyncio.timeout(max(0.0, (deadline_ms - self._monotonic_ms()) / 1000)):
                        await waiting
            except TimeoutError:
                raise self._no_topic(topic, partition) from None
            finally:
                self._driven.waiting.discard(waiting)

    async def _wait_for_buffer(self, io: IoLoop, size: int, deadline_ms: int) -> bytearray:
        core = self._core
        given = asyncio.Event()
        waiter = core.pool.wait(size, given.set)
        io.wake()
        try:
            with self._timed(core.metrics.wait_time_ns):
                async with asyncio.timeout(max(0.0, (deadline_ms - self._monotonic_ms()) / 1000)):
                    await given.wait()
            buffer, waiter.buffer = waiter.buffer, None
            assert buffer is not None, "the pool sets the buffer before it wakes its waiter"
            return buffer
        except TimeoutError:
            raise self._exhausted(size) from None
        finally:
            core.pool.cancel(waiter)

    def _now_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)

    # -- transactions

    async def init_transactions(self, timeout: float | None = None, *, keep_prepared_txn: bool = False) -> None:
        """As the blocking producer's."""
        transactions = self._transactions()
        transactions.initialize(keep_prepared_txn)
        with self._timed(self._core.metrics.init_ns):
            await self._wait_for_transaction(transactions, timeout, "initialized")

    async def begin_transaction(self) -> None:
        """As the blocking producer's."""
        with self._timed(self._core.metrics.begin_ns):
            self._transactions().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: object, timeout: float | None = None
    ) -> None:
        """As the blocking producer's."""
        transactions = self._transactions()
        transactions.send_offsets(offsets, group_metadata)
        with self._timed(self._core.metrics.send_offsets_ns):
            await self._wait_for_transaction(transactions, timeout, "given the offsets")

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """As the blocking producer's."""
        transactions = self._transactions()
        transactions.begin_commit()
        with self._timed(self._core.metrics.commit_ns):
            await self._wait_for_transaction(transactions, timeout, "committed")

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until all of the transaction's records and offsets are written, and let nothing more into it: the first
        phase of a two-phase commit (KIP-939). Returns what an external coordinator has to keep. `commit_transaction`,
        `abort_transaction` or `complete_transaction` ends it. Raises as `commit_transaction`, and `ApiError` where
        `transaction.two.phase.commit.enable` is false."""
        transactions = self._transactions()
        with self._timed(self._core.metrics.prepare_ns):
            await self.flush(timeout)
            await self._wait_for_transaction(transactions, timeout, "prepared")
            return transactions.prepare()

    async def complete_transaction(self, prepared: PreparedTxnState | str, timeout: float | None = None) -> None:
        """Commit the prepared transaction where it is this one, of which the external coordinator may have kept the
        text; else abort it. Raises `ApiError` where none is prepared."""
        if self._transactions().is_prepared_as(prepared):
            await self.commit_transaction(timeout)
        else:
            await self.abort_transaction(timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """As the blocking producer's."""
        transactions = self._transactions()
        transactions.begin_abort()
        with self._timed(self._core.metrics.abort_ns):
            await self._wait_for_transaction(transactions, timeout, "aborted")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that is committed at the end of the block, and aborted where that raises. Where the commit is
        cancelled, or takes too long, `commit_transaction` may be called again. Where the transaction cannot be aborted,
        a note of the block's exception says so; but where that was one of the transaction and the abort's is fatal, as
        `ProducerFencedError`, the latter is raised."""
        transactions = self._transactions()
        if not transactions.is_initialized:
            await self.init_transactions()
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            if transactions.may_abort and not self._driven.is_ending:
                try:
                    await self.abort_transaction()
                except (ApiError, TimeoutError, ProducerClosed) as failure:
                    self._on_failed_abort(error, failure)
            raise

    def _transactions(self) -> TransactionDriver:
        self._check_open()
        return self._transaction_driver()

    async def _wait_for_transaction(self, transactions: TransactionDriver, timeout: float | None, what: str) -> None:
        io = self._started()
        io.wake()
        try:
            async with asyncio.timeout(self._config.max_block_ms / 1000 if timeout is None else timeout):
                while not transactions.is_idle():
                    self._check_open()
                    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._driven.waits_for_transaction.add(waiting)
                    try:
                        await waiting
                    finally:
                        self._driven.waits_for_transaction.discard(waiting)
        except TimeoutError:
            raise CallTimeout(f"the transaction was not {what} in time") from None
        transactions.check()

    # -- the end

    async def flush(self, timeout: float | None = None) -> None:
        """Send all that `send` was called with before, and wait until it is acknowledged, or has failed. Raises
        `CallTimeout` after `timeout` seconds."""
        io = self._started()
        accumulator = self._core.accumulator
        waiting = list(accumulator.incomplete)
        accumulator.flushes += 1
        io.wake()
        try:
            with self._timed(self._core.metrics.flush_time_ns):
                async with asyncio.timeout(timeout):
                    await _until_done(waiting)
        except TimeoutError:
            raise CallTimeout(f"records were not acknowledged within {timeout} s") from None
        finally:
            accumulator.flushes -= 1

    async def close(self, timeout: float | None = None) -> None:
        """As the blocking producer's."""
        self._driven.is_ending = True
        self._appenders.clear()
        self._core.accumulator.close()
        if self._io is None:
            self._outgoing.close()
            return
        self._driven.is_forced |= timeout is not None and timeout <= 0
        self._io.wake()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._io.ended)
        except TimeoutError:
            pass
        finally:
            if not self._io.ended.done():
                self._driven.is_forced = True
                self._io.wake()
        if not self._io.ended.done():
            await self._io.ended

    async def partitions_for(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions. Raises `ApiError`, and `MetadataTimeout` after `max.block.ms`."""
        self._check_open()
        return await self._wait_for_topic(topic, None, self._monotonic_ms() + self._config.max_block_ms)

    async def __aenter__(self) -> Producer:
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


async def _until_done(waiting: list[ProducerBatch]) -> None:
    while waiting:
        batch = waiting.pop()
        if not batch.is_done:
            if batch.waiter is None:
                batch.waiter = asyncio.Event()
            await batch.waiter.wait()
        if batch.final_state is FinalState.SPLIT:
            waiting += [part for _, part in batch.parts]


async def _written(batches: list[ProducerBatch]) -> list[WrittenBatch]:
    """Where rows are, when all of them are acknowledged."""
    while waiting := [batch for batch in leaves(batches) if not batch.is_done]:
        if waiting[0].waiter is None:
            waiting[0].waiter = asyncio.Event()
        await waiting[0].waiter.wait()
    done = list(leaves(batches))
    for batch in done:
        if batch.error is not None:
            raise batch.error
    return [batch.written() for batch in done]


def _deliver(batch: ProducerBatch, outgoing: Outgoing) -> None:
    """A batch has its final state: set the futures of its records, in their order."""
    tickets, batch.tickets = batch.tickets, None
    if batch.final_state is not FinalState.SPLIT:
        for ticket in tickets or ():
            delivery, ticket.callback = ticket.callback, None
            metadata, error = batch.outcome_of(ticket)
            if outgoing.interceptors:
                outgoing.acknowledge(metadata, error)
            if delivery.done():
                continue  # cancelled by its task; the record is where it is
            if error is not None:
                _fail(delivery, error)
            else:
                delivery.set_result(metadata)
    batch.is_done = True
    if batch.waiter is not None:
        batch.waiter.set()


def _fail(delivery: Delivery, error: Exception) -> None:
    delivery.set_exception(error)
    delivery.exception()  # a future that is not awaited is no fault of the program: do not log it


def _report(done: Delivery, on_delivery: OnDelivery, record: ProducerRecord, ticket: Ticket) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if isinstance(error, Exception):
        batch: ProducerBatch | None = ticket.batch
        partition = record.partition if batch is None else batch.topic_partition.partition
        on_delivery(unwritten(record.topic, partition), error)
    else:
        on_delivery(done.result(), None)
