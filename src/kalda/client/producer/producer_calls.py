"""What the blocking producer and that of asyncio have in common: what they run, and their calls that do not wait."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kalda.base.configs.producer import ProducerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import is_topic_name
from kalda.base.sensors import Counter
from kalda.client.transport.driven import Driven
from kalda.client.transport.faces import ClientFace
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.metadata import Partition
from kalda.clientcore.producer import ProducerCore
from kalda.clientcore.producing.outbound_record import Outgoing, ProducerRecord
from kalda.clientcore.producing.producer_batch import ProducerBatch, unwritten
from kalda.clientcore.producing.producer_errors import (
    AbortableTransactionError,
    BufferExhausted,
    FatalTransactionError,
    MetadataTimeout,
    ProducerClosed,
    is_of_state,
)

if TYPE_CHECKING:
    from kalda.clientcore.producing.transactions import TransactionDriver


class ProducerDriven(Driven):
    """What both producers run, and what their calls wait for."""

    core: ProducerCore
    waits_for_transaction: object
    """True where a call waits for a request of a transaction."""

    def __init__(self, core: ProducerCore, outgoing: Outgoing) -> None:
        super().__init__(core)
        self.outgoing = outgoing
        self.is_forced = False
        """Do not wait for what is not acknowledged."""
        self._seen_version = -1

    def run(self, now_ms: int) -> None:
        if not self.is_forced:
            self.core.run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        return self.core.deadline_ms(now_ms)

    def finish(self) -> None:
        core = self.core
        if core.sender.finished:
            for batch in core.take_finished():
                self._deliver(batch)
        version = core.metadata.version
        is_news = version != self._seen_version or core.refused is not None
        if is_news or self.waits_for_transaction:
            self._seen_version = version
            self._wake(is_news)

    def is_over(self) -> bool:
        return self.is_forced or (self.is_ending and self.core.has_ended(self.core.now_ms()))

    def on_end(self, error: ApiError | None) -> None:
        self.failure = error
        self.is_ending = True
        self.core.end(error, self.core.now_ms())
        self.is_ended = True
        self._wake(True)
        self.finish()
        self.outgoing.close()

    @abstractmethod
    def _deliver(self, batch: ProducerBatch) -> None:
        """The batch has its final state: call what waits for its records."""

    @abstractmethod
    def _wake(self, is_news: bool) -> None:
        """Let those go on that wait for a transaction, or, where there `is_news` of the cluster, for a topic."""


class ProducerCalls(ClientFace):
    """What both producers can do without waiting."""

    _driven: ProducerDriven
    _core: ProducerCore
    _config: ProducerConfig
    _outgoing: Outgoing

    @property
    def _default_timeout_ms(self) -> int:
        return self._config.max_block_ms

    @abstractmethod
    def _now_ns(self) -> int:
        """The clock of the metrics that are in nanoseconds."""

    def _check_open(self) -> None:
        """Raises `ProducerClosed` where no call is possible any more."""
        driven = self._driven
        if driven.failure is not None:
            raise ProducerClosed(f"the producer cannot be used any more: {driven.failure.message}")
        if driven.is_ending:
            raise ProducerClosed("the producer is closed")

    @contextmanager
    def _timed(self, spent_ns: Counter) -> Iterator[None]:
        """Count what the block takes."""
        began_ns = self._now_ns()
        try:
            yield
        finally:
            spent_ns.value += self._now_ns() - began_ns

    # -- while a call waits

    def _want(self, topic: str, partition: int | None, now_ms: int) -> tuple[Partition, ...]:
        """The topic is used now. Its partitions; empty where they are unknown. Raises `TypeError`, and `ApiError` for a
        name that no topic can have: a request with it could perhaps not be encoded."""
        if partition is not None and not hasattr(partition, "__index__"):  # `isinstance` of a protocol takes 4 µs
            raise TypeError(f"partition {partition!r}: an int is expected")
        metadata = self._core.metadata
        known = metadata.topics.get(topic)
        if known is None:
            if not isinstance(topic, str):
                raise TypeError(f"{topic!r} is not the name of a topic: a str is expected")
            if not is_topic_name(topic):
                raise refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic!r}")
        metadata.want(topic, now_ms)
        return () if known is None else known.partitions

    def _partitions_with(self, topic: str, partition: int | None) -> tuple[Partition, ...]:
        """The topic's partitions, where they are known and have the one that is asked for; else none. Raises the error
        that no waiting mends."""
        partitions = self._core.metadata.partitions_of(topic)
        if partitions and (partition is None or 0 <= partition < len(partitions)):
            return partitions
        if partition is not None and partition < 0:
            raise ValueError(f"partition {partition}: a partition is not negative")
        refusal = self._core.refused or self._core.metadata.refusal_of(topic)
        if refusal is not None:
            raise refusal
        return ()

    def _request_topic(self, topic: str) -> None:
        """The metadata lacks the topic, or the partition: request it again."""
        metadata = self._core.metadata
        if metadata.partitions_of(topic) or topic in metadata.topics:
            metadata.request_update()

    def _no_topic(self, topic: str, partition: int | None) -> MetadataTimeout:
        """`max.block.ms` have passed without the topic."""
        after = f"{self._config.max_block_ms} ms"
        count = len(self._core.metadata.partitions_of(topic))
        if count and partition is not None:
            why = f"partition {partition} of topic {topic}, which has {count}, did not appear within {after}"
            return MetadataTimeout(why)
        failure = self._core.connections.last_failure
        why = f"no broker was reachable: {failure}" if failure else "it may not exist"
        return MetadataTimeout(f"topic {topic} is not in the metadata after {after}: {why}")

    def _exhausted(self, size: int) -> BufferExhausted:
        """`max.block.ms` have passed without room for so many bytes."""
        self._core.metrics.exhausted.value += 1
        return BufferExhausted(
            f"{size} bytes were not free in buffer.memory={self._core.pool.total_bytes} within max.block.ms="
            f"{self._config.max_block_ms}"
        )

    # -- transactions

    def _check_transaction(self) -> None:
        """Raises `ApiError` where the producer is transactional, and no transaction is open that takes records."""
        if self._core.transactions is not None:
            self._core.transactions.check_open()

    def _on_failed_send(self, error: BaseException, record: ProducerRecord | None = None) -> None:
        """A record, or a table, got into no batch. The transaction in which it was sent can only be aborted;
        interceptors see the record's error."""
        if isinstance(error, Exception) and not (isinstance(error, ApiError) and is_of_state(error)):
            self._core.metrics.errors.value += 1
        if self._core.transactions is not None:
            self._core.transactions.on_send_failed(error)
        if record is not None and self._outgoing.interceptors and isinstance(error, Exception):
            self._outgoing.acknowledge(unwritten(record.topic, record.partition), error)

    def _transaction_driver(self) -> TransactionDriver:
        """Raises `ApiError` where the producer has no transactions."""
        if self._core.transactions is None:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                "the producer has no transactional.id: set it, to a name that stays the same after a restart",
            )
        return self._core.transactions

    @staticmethod
    def _on_failed_abort(error: BaseException, failure: Exception) -> None:
        """The transaction of a block that has raised `error` could not be aborted. Raises the `failure` where that is
        fatal and the error was one of the transaction; else a note of the error says it."""
        if isinstance(error, AbortableTransactionError) and isinstance(failure, FatalTransactionError):
            raise failure from error
        error.add_note(f"The transaction was not aborted: {failure}")
