"""A whole producer without threads, sockets and clocks: its machines, put together.

The shell calls `run` when `deadline_ms` has come and after every event, carries out what `connections.take_actions`
returns, and calls the callbacks of `take_finished`. Connections' events go to `connections`, with `now_ms` set by `at`.

The caller's thread uses `metadata.want` and `accumulator.append` only; all else runs on the I/O thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kalda.base.configs.producer import ProducerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.client_core import ClientCore
from kalda.clientcore.connections.client_metrics import metric_config
from kalda.clientcore.connections.errors import Random
from kalda.clientcore.producing.accumulator import Accumulator
from kalda.clientcore.producing.idempotence import Idempotence
from kalda.clientcore.producing.producer_batch import BufferPool, FinalState, ProducerBatch
from kalda.clientcore.producing.producer_metrics import ProducerMetrics
from kalda.clientcore.producing.row_batches import table_batch_bytes
from kalda.clientcore.producing.sender import Sender
from kalda.records.appending import Ticket
from kalda.records.batch import NO_PRODUCER_ID

if TYPE_CHECKING:
    from kalda.clientcore.producing.transactions import TransactionDriver


class ProducerCore(ClientCore):
    """The machines of one producer."""

    config: ProducerConfig
    metrics: ProducerMetrics

    def __init__(
        self,
        config: ProducerConfig,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        ticket_type: type[Ticket],
        lock: AbstractContextManager[Any],
        now_ms: int,
    ) -> None:
        super().__init__(
            config,
            ProducerMetrics(client_id, metric_config(config.values), version=software_version, lock=lock),
            client_id=client_id,
            software_version=software_version,
            random=random,
            now_ms=now_ms,
            max_in_flight=config.max_in_flight,
            max_idle_ms=config.metadata_max_idle_ms,
            creates_topics=True,
            labels={"transactional_id": config.transactional_id},
        )
        retry = self._retry
        self.pool = BufferPool(config.buffer_memory, config.batch_size, table_batch_bytes(config))
        self.accumulator = Accumulator(config, retry, self.pool, self.metadata, ticket_type, lock)
        self.idempotence = Idempotence() if config.enable_idempotence else None
        self.transactions: TransactionDriver | None = None
        if config.transactional_id is not None:
            # Imported where it is needed: without transactions it would cost the first record its time.
            from kalda.clientcore.producing.transaction_manager import TransactionManager
            from kalda.clientcore.producing.transactions import TransactionDriver, Transactions

            manager = TransactionManager(
                config.transactional_id, config.transaction_timeout_ms, retry, is_two_phase=config.two_phase_commit
            )
            self.idempotence = numbering = Transactions(manager)
            self.transactions = TransactionDriver(numbering, self.accumulator, self.requests, lock, config.max_block_ms)
        self.accumulator.numbering = self.idempotence
        self.sender = Sender(config, self.metadata, self.accumulator, self.connections, self.idempotence, self.metrics)
        self.sender._now_ms = self.now_ms
        if self.transactions is not None:
            self.sender.on_failure = self.transactions.on_batch_failed
        self._made_at_ms = now_ms
        self.metrics.watch(
            self.pool,
            lambda: self.connections.in_flight,
            lambda: self.metadata.updated_at_ms or self._made_at_ms,
        )
        self._seen_version = -1
        """The metadata's version at the last `run`."""
        self._id_failures = 0
        self._id_retry_at_ms = 0

    def now_ms(self) -> int:
        """The time of the event that is being processed."""
        return self.requests.now_ms

    # -- turns

    def run(self, now_ms: int) -> None:
        """Do all that can be done now."""
        self.requests.now_ms = now_ms
        self.requests.run()
        if self._seen_version != self.metadata.version:
            self._seen_version = self.metadata.version
            self.accumulator.on_metadata()
        idempotence = self.idempotence
        if idempotence is not None:
            idempotence.run()
            if idempotence.producer_id == NO_PRODUCER_ID:
                self._get_producer_id(idempotence, now_ms)
        if self.transactions is not None:
            error = self.transactions.error_to_fail_queued
            if error is not None:
                self.sender.fail_queued(error, FinalState.ABORTED)
        self.sender.run(now_ms)
        if self.transactions is not None:
            self.transactions.run(now_ms, self.sender.has_in_flight)
        self._run_own_metrics()

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due, if nothing happens before."""
        times = [
            self.sender.deadline_ms(now_ms),
            self.connections.deadline_ms(now_ms),
            self._request_at_ms(now_ms),
            self._own_metrics_due_ms,
        ]
        if self._seen_version != self.metadata.version:
            return now_ms
        if self.transactions is not None:
            times.append(self.transactions.deadline_ms(now_ms))
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def take_finished(self) -> list[ProducerBatch]:
        """Batches that are done, in order."""
        return self.sender.take_finished()

    @property
    def has_work(self) -> bool:
        """Whether a record is not done, or a transaction not ended."""
        transactions = self.transactions
        return bool(self.accumulator.incomplete or (transactions is not None and transactions.manager.has_transaction))

    def has_ended(self, now_ms: int) -> bool:
        """Whether everything is sent, and the transaction ended, the last metrics included: the connections may be
        closed."""
        return (
            self.sender.is_idle
            and (self.transactions is None or self.transactions.has_ended(now_ms))
            and self.metrics_have_ended(now_ms)
        )

    def end(self, error: ApiError | None, now_ms: int) -> None:
        """Take no more records, fail what is left, and close the connections. `error`: why the I/O has failed."""
        self.accumulator.close()
        why = "the producer was closed before the record was acknowledged" if error is None else error.message
        self.sender.abort(why)
        if self.transactions is not None:
            self.transactions.on_end()
        self.connections.close(now_ms)

    # -- requests to any broker

    def _request_at_ms(self, now_ms: int) -> int | None:
        """When a request to any broker may be sent: for metadata or a producer id."""
        due_ms = self.metadata.next_request_at_ms(now_ms)
        if self.idempotence is not None and self.idempotence.needs_request and self.accumulator.incomplete:
            id_ms = max(now_ms, self._id_retry_at_ms)
            due_ms = id_ms if due_ms is None else min(due_ms, id_ms)
        return self.requests.any_node_at_ms(due_ms, now_ms)

    def _get_producer_id(self, idempotence: Idempotence, now_ms: int) -> None:
        refusal = idempotence.take_refusal()
        if refusal is not None:
            self.sender.fail_queued(refusal)
        if not idempotence.needs_request or now_ms < self._id_retry_at_ms or not self.accumulator.incomplete:
            return
        node_id = self.requests.any_node()
        if node_id is None:
            return
        request = idempotence.next_request()
        assert request is not None, "a producer id is needed"

        def on_done(response: Any, error: ApiError | None) -> None:
            if error is not None and error.code is ErrorCode.UNSUPPORTED_VERSION:
                idempotence.fatal_error = error
            if idempotence.on_producer_id(response):
                self._id_failures = 0
            else:
                self._id_failures += 1
                self._id_retry_at_ms = self.requests.retry_at_ms(self._id_failures)

        self.requests.send(node_id, request, on_done)
