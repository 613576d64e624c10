"""The blocking producer: thread-safe, with one I/O thread.

`send` encodes the record into its partition's open batch and returns. It waits at two places, for no more than
`max.block.ms` in all: until the topic's partitions are known, and until there is room in `buffer.memory`. A record that
cannot be sent for a reason that the cluster or the limits give gets a future that has failed; a record that is
malformed (not serializable), or that may not be sent now (the producer is closed, or is transactional without an open
transaction), raises. After either, an open transaction can only be aborted.

Callbacks run on the thread that does the I/O at that moment: the producer's, or one that waits for a record or in
`flush`. They are called in the order of the records of a partition, once each. There, `flush` raises, `close` returns
at once, `result` of a record that is not done raises, and a `send` that would have to wait fails instead.

A forked child cannot use its parent's producer: it raises. At the interpreter's end, producers that were not closed are
given a few seconds to send what they have; what is left is reported in the log.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda import __version__
from kalda.base.allocation import new_tuple
from kalda.base.configs.producer import PRODUCER, producer_config
from kalda.base.errors import ApiError, CallTimeout, WrongState
from kalda.client.producer.delivery import DeliveryFuture, TableFuture, callback_for, deliver, rejected, wait_until_done
from kalda.client.producer.producer_calls import ProducerCalls, ProducerDriven
from kalda.client.transport.channels import monotonic_ms
from kalda.client.transport.config_files import read_config
from kalda.client.transport.faces import BlockingFace
from kalda.client.transport.shared_io import SharedIo
from kalda.clientcore.connections.metadata import Partition
from kalda.clientcore.producer import ProducerCore
from kalda.clientcore.producing.accumulator import TopicState
from kalda.clientcore.producing.outbound_record import Headers, OnDelivery, Outgoing, Prepared, ProducerRecord
from kalda.clientcore.producing.producer_batch import FinalState, ProducerBatch, unwritten
from kalda.clientcore.producing.producer_errors import ProducerClosed, is_of_state, made_by_parent
from kalda.clientcore.producing.row_batches import Columns, Rows, append_next, next_sticky, parts_of
from kalda.records import appending

if TYPE_CHECKING:
    from typing import Unpack

    from kalda.client.keywords import ProducerKeywords
    from kalda.clientcore.producing.transaction_manager import PreparedTxnState
    from kalda.clientcore.producing.transactions import TransactionDriver

log = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 5.0
_GRACE_S = 0.002
_numbers = itertools.count(1)
_open: weakref.WeakSet[_Driven] = weakref.WeakSet()


class _Driven(ProducerDriven):
    """What the I/O thread runs, and what threads of callers wait for."""

    def __init__(self, core: ProducerCore, outgoing: Outgoing) -> None:
        super().__init__(core, outgoing)
        self.changed = threading.Condition()
        """Notified where the metadata has changed, and at the end."""
        self.thread: SharedIo
        self.appenders: dict[str, appending.TopicAppender] = {}
        """The topics to which `send` appends without a detour; empty where every record needs one."""
        self.is_abandoned = False
        """The producer was dropped without `close`."""
        self.unacknowledged = 0
        """Records that failed because the producer ended."""
        self.waits_for_transaction: int = 0
        """Threads that wait for a request of a transaction."""

    def run(self, now_ms: int) -> None:
        if self.is_abandoned and not self.is_ending:
            self._begin_closing()
        super().run(now_ms)

    def on_end(self, error: ApiError | None) -> None:
        self.core.at(monotonic_ms())
        self.appenders.clear()
        self.unacknowledged = sum(batch.count for batch in list(self.core.accumulator.incomplete))
        super().on_end(error)

    def on_fork(self) -> None:
        super().on_fork()
        self.appenders.clear()
        _open.discard(self)

    def _deliver(self, batch: ProducerBatch) -> None:
        deliver(batch, self.outgoing)

    def _wake(self, is_news: bool) -> None:
        with self.changed:
            self.changed.notify_all()

    def close(self, timeout: float | None) -> None:
        """Take no more records; end the thread when all is acknowledged, or after `timeout` seconds."""
        self._begin_closing()
        if self.thread.is_current or (timeout is not None and timeout <= 0):
            self.is_forced = True
        self.thread.wake()
        if self.thread.is_current:
            return
        try:
            self.thread.join(timeout)
        finally:
            if self.thread.is_alive():
                self.is_forced = True
                self.thread.wake()
                self.thread.join()
        _open.discard(self)

    def _begin_closing(self) -> None:
        self.appenders.clear()
        self.core.accumulator.close()
        self.is_ending = True


class Producer(ProducerCalls, BlockingFace):
    """Sends records to topics.

    ```python
    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        producer.send("orders", value=b"42", key=b"k").result()
    ```
    """

    _driven: _Driven

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`."""
        settings = producer_config(read_config(PRODUCER, config), keywords)
        self._config = settings
        self._outgoing = Outgoing(settings)
        client_id = settings.client_id or f"producer-{next(_numbers)}"
        core = ProducerCore(
            settings,
            client_id=client_id,
            software_version=__version__,
            random=self._host.random,
            ticket_type=DeliveryFuture,
            lock=threading.Lock(),
            now_ms=monotonic_ms(),
        )
        core.push_metrics(self._host.wall_ms)
        self._core = core
        self._driven = driven = _Driven(core, self._outgoing)
        self._appenders = driven.appenders
        driven.thread = self._thread = SharedIo(f"kafka-producer-network-thread | {client_id}", driven, _GRACE_S)
        core.accumulator.io = self._thread
        self._thread.start()
        _open.add(driven)
        self._finalizer = weakref.finalize(self, _abandon, driven)
        self._finalizer.atexit = False

    # -- sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> DeliveryFuture:
        """Send a record; returns the future of its `RecordMetadata`.

        `on_delivery(metadata, error)` is called once, on the producer's thread or on one that waits for a record.
        `error` is None where the record was written; else `metadata` has its topic, its partition, or -1 where none was
        chosen, and offset -1. Without a partition, the key chooses it, or without a key the sticky partitioner. A
        record without a value is a tombstone.
        """
        if not headers:
            appender = self._appenders.get(topic)
            if appender is not None:
                future = appender.append(value, key, partition, timestamp_ms, on_delivery, time.time())
                if future is not None:
                    return future  # type: ignore[no-any-return]
        record = new_tuple(ProducerRecord, (topic, value, key, partition, timestamp_ms, headers))
        return self._send(record, on_delivery)

    def _send(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> DeliveryFuture:
        """A record that no open batch takes as it is."""
        outgoing = self._outgoing
        if outgoing.interceptors:
            record = outgoing.intercept(record)
        try:
            self._check_open()
            self._check_transaction()
            began_s = time.monotonic()
            partitions = self._wait_for_topic(record.topic, record.partition, began_s)
            prepared = outgoing.prepare(record)
            if record.partition is None:
                partition = outgoing.partition(record, prepared, partitions)
                if partition is not None:
                    record = record._replace(partition=partition)
            return self._append(record, prepared, callback_for(outgoing, on_delivery), began_s)
        except BaseException as error:
            self._on_failed_send(error, record)
            if not isinstance(error, ApiError) or is_of_state(error):
                raise
            if on_delivery is not None:
                on_delivery(unwritten(record.topic, record.partition), error)
            return rejected(error)

    def _append(
        self, record: ProducerRecord, prepared: Prepared, callback: OnDelivery | None, began_s: float
    ) -> DeliveryFuture:
        accumulator = self._core.accumulator
        topic = accumulator.topic(record.topic)
        if record.topic not in self._appenders and self._may_append_directly():
            self._appenders[record.topic] = topic.appender
        timestamp_ms = int(time.time() * 1000) if record.timestamp_ms is None else record.timestamp_ms
        future = DeliveryFuture(None, 0, 0, callback)
        buffer = None
        while True:
            now_ms = monotonic_ms()  # what was waited for the topic is no part of `delivery.timeout.ms`
            if accumulator.append(topic, record.partition, timestamp_ms, prepared, future, now_ms, buffer):
                break
            buffer = self._wait_for_buffer(accumulator.buffer_size(prepared.size_bytes), began_s)
        # Only the first record of a batch makes anything due earlier: one that no longer fits begins the next batch.
        if future.index == 0 and self._thread.sleeps_until_ms:
            batch: ProducerBatch = future.batch
            queue = topic.queues[batch.topic_partition.partition]
            if len(queue.batches) > 1 or batch.is_full:
                self._thread.wake_by(now_ms)
            else:
                self._thread.wake_by(now_ms + self._config.linger_ms)
        return future

    def _may_append_directly(self) -> bool:
        """Whether `send` may put records of a known topic into open batches itself."""
        return self._outgoing.is_plain and appending.COMPILED and not self._driven.is_ending

    def send_batch(
        self,
        topic: str,
        table: Any,
        key: str | None = None,
        value: str | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
        partition: int | None = None,
        partition_by: str | None = None,
    ) -> TableFuture:
        """Send the rows of a `pyarrow.Table` or `RecordBatch`, without a Python object for a row.

        `key`, `value`, `timestamp` and `headers` name columns (binary or string, milliseconds or a timestamp, a list of
        structs of key and value); without a name, the column of that name is used where there is one. All rows go to
        `partition`, or each to the one that the bytes of the column `partition_by`, or of the key, choose. Serializers,
        interceptors and a custom partitioner do not see them. Waits as `send` does, for each batch. Raises `ApiError`
        and `KeyError`; rows before may have been sent then, and a transaction can only be aborted.
        """
        try:
            return self._send_rows(topic, table, Columns(key, value, timestamp, headers), partition, partition_by)
        except BaseException as error:
            self._on_failed_send(error)
            raise

    def _send_rows(
        self, topic: str, table: Any, columns: Columns, partition: int | None, partition_by: str | None
    ) -> TableFuture:
        self._check_open()
        self._check_transaction()
        count = len(self._wait_for_topic(topic, partition, time.monotonic()))
        accumulator = self._core.accumulator
        state = accumulator.topic(topic)
        sent: list[ProducerBatch] = []
        now_ms = int(time.time() * 1000)
        sticky = next_sticky(accumulator, state)
        for part, chosen in parts_of(table, columns, partition, partition_by, count, sticky):
            rows = Rows(part, chosen, now_ms, self._config)
            while rows.is_left:
                sent.append(self._append_rows(rows, state))
                self._thread.wake_by(0)
        return TableFuture(sent, self._thread)

    def _append_rows(self, rows: Rows, topic: TopicState) -> ProducerBatch:
        """Send the next batch of a table's rows."""
        accumulator, size = self._core.accumulator, rows.buffer_bytes()
        with accumulator.lock:
            buffer = self._core.pool.take(size)
        if buffer is None:
            buffer = self._wait_for_buffer(size, time.monotonic())
        return append_next(rows, buffer, accumulator, topic, monotonic_ms())

    # -- waiting

    def _wait_for_topic(self, topic: str, partition: int | None, began_s: float) -> tuple[Partition, ...]:
        """The topic's partitions, when they are known and have the one that is asked for."""
        metadata = self._core.metadata
        partitions = self._want(topic, partition, int(began_s * 1000))
        if partitions and (partition is None or 0 <= partition < len(partitions)):
            return partitions
        began_ns = time.perf_counter_ns()
        deadline_s = began_s + self._config.max_block_ms / 1000
        driven, seen_version = self._driven, -1
        self._thread.begin_waiting()
        try:
            with driven.changed:
                while True:
                    self._check_open()
                    partitions = self._partitions_with(topic, partition)
                    if partitions:
                        return partitions
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0 or self._thread.is_current:
                        raise self._no_topic(topic, partition)
                    if metadata.version != seen_version:  # not where another thread's wait has ended this one's
                        seen_version = metadata.version
                        self._request_topic(topic)
                        self._thread.wake()
                    driven.changed.wait(left_s)
        finally:
            self._thread.end_waiting()
            self._core.metrics.metadata_wait_ns.value += time.perf_counter_ns() - began_ns

    def _wait_for_buffer(self, size: int, began_s: float) -> bytearray:
        """A buffer for a new batch, in turn."""
        deadline_s = began_s + self._config.max_block_ms / 1000
        core = self._core
        given = threading.Event()
        with core.accumulator.lock:
            waiter = core.pool.wait(size, given.set)
        self._thread.begin_waiting()
        self._thread.wake()
        began_ns = time.perf_counter_ns()
        try:
            if not self._thread.is_current:
                while waiter.buffer is None and not self._driven.is_ended:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        break
                    given.wait(min(left_s, 1.0))
            self._check_open()
            buffer, waiter.buffer = waiter.buffer, None
        finally:
            self._thread.end_waiting()
            core.metrics.wait_time_ns.value += time.perf_counter_ns() - began_ns
            with core.accumulator.lock:
                core.pool.cancel(waiter)
        if buffer is None:
            raise self._exhausted(size)
        return buffer

    def _now_ns(self) -> int:
        return time.perf_counter_ns()

    def _changed(self) -> None:
        self._check_open()
        self._thread.wake()

    def _check_open(self) -> None:
        if self._thread.was_forked:
            raise made_by_parent()
        if self._driven.is_ending:
            super()._check_open()

    # -- transactions

    def init_transactions(self, timeout: float | None = None, *, keep_prepared_txn: bool = False) -> None:
        """Get a producer id for `transactional.id`, and fence earlier producers that have it. Raises `CallTimeout`
        after `timeout` seconds (default: `max.block.ms`), and `ApiError` where this user has no right to the id; may be
        called again after either. Raises `FatalTransactionError`. With `keep_prepared_txn`, a transaction that an
        earlier producer has prepared is not aborted, but left to `complete_transaction` (KIP-939); brokers of Apache
        Kafka 4.3.1 answer that with UNSUPPORTED_VERSION."""
        transactions = self._transactions()
        transactions.initialize(keep_prepared_txn)
        with self._timed(self._core.metrics.init_ns):
            self._wait_for_transaction(transactions, timeout, "initialized")

    def begin_transaction(self) -> None:
        """Begin a transaction: the records that are sent from now on are in it."""
        with self._timed(self._core.metrics.begin_ns):
            self._transactions().begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: object, timeout: float | None = None
    ) -> None:
        """Commit a consumer group's offsets as a part of the transaction: by (topic, partition), the next offset to
        read. `group_metadata` is that of the consumer, or the group's name."""
        transactions = self._transactions()
        transactions.send_offsets(offsets, group_metadata)
        with self._timed(self._core.metrics.send_offsets_ns):
            self._wait_for_transaction(transactions, timeout, "given the offsets")

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Wait until all of the transaction's records are acknowledged, and commit it. Raises
        `AbortableTransactionError` where it can only be aborted, and `CallTimeout`, after which it may be called
        again."""
        transactions = self._transactions()
        transactions.begin_commit()
        with self._timed(self._core.metrics.commit_ns):
            self._wait_for_transaction(transactions, timeout, "committed")

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until all of the transaction's records and offsets are written, and let nothing more into it: the first
        phase of a two-phase commit (KIP-939). Returns what an external coordinator has to keep. `commit_transaction`,
        `abort_transaction` or `complete_transaction` ends it. Raises as `commit_transaction`, and `ApiError` where
        `transaction.two.phase.commit.enable` is false."""
        transactions = self._transactions()
        with self._timed(self._core.metrics.prepare_ns):
            self.flush(timeout)
            self._wait_for_transaction(transactions, timeout, "prepared")
            return transactions.prepare()

    def complete_transaction(self, prepared: PreparedTxnState | str, timeout: float | None = None) -> None:
        """Commit the prepared transaction where it is this one, of which the external coordinator may have kept the
        text; else abort it. Raises `ApiError` where none is prepared."""
        if self._transactions().is_prepared_as(prepared):
            self.commit_transaction(timeout)
        else:
            self.abort_transaction(timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction. Records that were not sent yet fail."""
        transactions = self._transactions()
        transactions.begin_abort()
        with self._timed(self._core.metrics.abort_ns):
            self._wait_for_transaction(transactions, timeout, "aborted")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is committed at the end of the block, and aborted where that raises. The first one also
        initializes the producer. Where the commit is interrupted, or takes too long, `commit_transaction` may be called
        again. Where the transaction cannot be aborted, a note of the block's exception says so; but where that was one
        of the transaction and the abort's is fatal, as `ProducerFencedError`, the latter is raised."""
        transactions = self._transactions()
        if not transactions.is_initialized:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException as error:
            if transactions.may_abort and not self._driven.is_ended:
                try:
                    self.abort_transaction()
                except (ApiError, TimeoutError, ProducerClosed) as failure:
                    self._on_failed_abort(error, failure)
            raise

    def _transactions(self) -> TransactionDriver:
        self._check_open()
        transactions = self._transaction_driver()
        if self._thread.is_current:
            raise WrongState("transactions cannot be begun or ended in a callback")
        return transactions

    def _wait_for_transaction(self, transactions: TransactionDriver, timeout: float | None, what: str) -> None:
        deadline_s = time.monotonic() + (self._config.max_block_ms / 1000 if timeout is None else timeout)
        driven = self._driven
        self._thread.begin_waiting()
        with driven.changed:
            driven.waits_for_transaction += 1
            try:
                self._thread.wake()
                while not transactions.is_idle():
                    self._check_open()
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        raise CallTimeout(f"the transaction was not {what} in time")
                    driven.changed.wait(left_s)
            finally:
                driven.waits_for_transaction -= 1
                self._thread.end_waiting()
        transactions.check()

    # -- the end

    def flush(self, timeout: float | None = None) -> None:
        """Send all that `send` was called with before, and wait until it is acknowledged, or has failed. Raises
        `CallTimeout` after `timeout` seconds. Cannot be called from a callback."""
        if self._thread.is_current:
            raise WrongState("flush cannot be called from a callback: it would wait for itself")
        if self._thread.was_forked:
            raise made_by_parent()
        accumulator = self._core.accumulator
        deadline_s = None if timeout is None else time.monotonic() + timeout
        began_ns = time.perf_counter_ns()
        with accumulator.lock:
            accumulator.flushes += 1
            waiting = list(accumulator.incomplete)
        try:
            if accumulator.queued:
                self._thread.wake()
            while waiting:
                batch = waiting.pop()
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                if not wait_until_done(batch, left_s):
                    raise CallTimeout(f"records were not acknowledged within {timeout} s")
                if batch.final_state is FinalState.SPLIT:
                    waiting += [part for _, part in batch.parts]
        finally:
            with accumulator.lock:
                accumulator.flushes -= 1
            self._core.metrics.flush_time_ns.value += time.perf_counter_ns() - began_ns

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort a transaction that is open then, and end. After `timeout` seconds, records that are
        not acknowledged fail; without a timeout, each is acknowledged or fails within `delivery.timeout.ms`, and the
        abort has `max.block.ms`. With 0, and from a callback, it does not wait, and leaves a transaction to its
        timeout. May be called again."""
        self._finalizer.detach()
        if not self._thread.was_forked:
            self._driven.close(timeout)

    def partitions_for(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions. Raises `ApiError`, and `MetadataTimeout` after `max.block.ms`."""
        self._check_open()
        return self._wait_for_topic(topic, None, time.monotonic())

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _abandon(driven: _Driven) -> None:
    """The producer was dropped without `close`: its thread sends what is left, and ends. The garbage collector calls
    this at any moment and on any thread, which may hold a lock of the producer: none is taken here."""
    driven.is_abandoned = True
    if not driven.thread.was_forked:
        driven.thread.wake()


def _close_all() -> None:
    """The interpreter ends."""
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    for driven in list(_open):
        driven.close(max(0.0, deadline_s - time.monotonic()) if driven.core.has_work else 0.0)
        if driven.unacknowledged:
            lost = driven.unacknowledged
            what = "1 record was" if lost == 1 else f"{lost} records were"
            log.warning("%s not acknowledged at the interpreter's end: close the producer before", what)


atexit.register(_close_all)
