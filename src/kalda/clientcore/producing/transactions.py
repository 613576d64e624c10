"""A transactional producer: sequence numbers under the epochs of a `TransactionManager`, and its requests sent.

`Transactions` numbers batches as `Idempotence` does, with the manager's producer id and epoch, and lets only those
batches go whose partition is part of the transaction. A gap in a sequence is not repaired: the transaction has to be
aborted, and the next one has a new epoch.

`TransactionDriver` sends the manager's requests over the producer's connections, one at a time. The application's calls
of the manager come from other threads: `lock` is held around each call of it.

Before an abort is sent, the requests in flight have ended: a late batch must not be appended behind the marker.

When the producer is closed, an open transaction is aborted behind its last batch: readers of committed records would
have to wait for its timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.metadata import Broker
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.producing.accumulator import Accumulator
from kalda.clientcore.producing.idempotence import Idempotence
from kalda.clientcore.producing.producer_batch import ProducerBatch
from kalda.clientcore.producing.transaction_manager import (
    MAX_PRODUCE_BEFORE_V2,
    GroupMember,
    PreparedTxnState,
    TransactionManager,
    TransactionRequest,
    TransactionState,
)
from kalda.protocol.messages.groups import FindCoordinatorRequest

log = logging.getLogger(__name__)
_FEATURE = "transaction.version"


class Transactions(Idempotence):
    """The sequence numbers of a transactional producer."""

    is_transactional = True

    def __init__(self, manager: TransactionManager) -> None:
        super().__init__()
        self.manager = manager

    @property
    def needs_request(self) -> bool:
        """Never: the manager gets the producer id."""
        return False

    @property
    def is_completing(self) -> bool:
        """Whether a transaction is being ended."""
        return self.manager.state in (TransactionState.COMMITTING, TransactionState.ABORTING)

    @property
    def max_produce_version(self) -> int | None:
        """Before version 2 of transactions, a Produce must not add its partitions."""
        return None if self.manager.is_v2 else MAX_PRODUCE_BEFORE_V2

    def admit(self, partition: TopicPartition) -> None:
        """A record is about to be appended: its partition is part of the transaction. Raises `ApiError` where there is
        none."""
        self.manager.add_partition(partition)

    def run(self) -> None:
        """Take over the manager's producer id and epoch; a gap that cannot be closed fails the transaction."""
        self.producer_id, self.epoch = self.manager.producer_id, self.manager.producer_epoch
        for partition in list(self._unresolved):
            sequence = self._sequences[partition]
            if not sequence.in_flight:
                if not self._is_next(sequence, sequence.next):
                    why = f"{partition}: it is not known whether the last batches were written"
                    self.manager.on_batch_failed(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, why)
                del self._unresolved[partition]

    def number(self, first: ProducerBatch) -> bool:
        """Give the first batch of a partition's queue its sequence number, unless it has one. False: it may not be
        sent now."""
        return self.manager.is_writable(first.topic_partition) and super().number(first)

    def may_retry(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether an error of the sequence may be mended by sending the batch again."""
        partition = batch.topic_partition
        sequence = self._sequences.get(partition)
        if sequence is None:
            return False
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset < 0 or batch.sequence_was_reset:
                return True
            if sequence.last_acked_offset < log_start_offset:
                # The partition's records of this producer were deleted, and with them what the broker knew of it.
                self._begin_anew(partition)
                return True
            return False
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_next = self._is_next(sequence, batch.base_sequence)
            return partition not in self._unresolved and (batch.sequence_was_reset or not is_next)
        return False

    def on_failed(self, batch: ProducerBatch, code: ErrorCode, was_surely_refused: bool) -> None:
        """The batch has failed for good."""
        sequence = self._sequences.get(batch.topic_partition)
        if sequence is not None and batch.has_sequence:
            self._remove(sequence, batch)


class TransactionDriver:
    """Sends the requests of one manager."""

    def __init__(
        self,
        transactions: Transactions,
        accumulator: Accumulator,
        requests: Requests,
        lock: AbstractContextManager[Any],
        max_block_ms: int,
    ) -> None:
        """So long does the end of the producer wait for that of its transaction."""
        self.transactions = transactions
        self.manager = transactions.manager
        self._accumulator = accumulator
        self._requests = requests
        self._connections = requests.connections
        self._lock = lock
        self._pending: TransactionRequest | None = None
        """The manager's request that is not sent yet: its node is not connected."""
        self._now_ms = 0
        self._max_block_ms = max_block_ms
        self._give_up_ms: int | None = None
        """The producer is closed, and waits for the end of its transaction, no longer than until then."""
        requests.connections.on_features = self._on_features

    # -- what the application calls, on its threads

    def initialize(self, keep_prepared_txn: bool = False) -> None:
        """Begin to get a producer id. Raises `ApiError`."""
        with self._lock:
            self.manager.initialize(keep_prepared_txn)

    def prepare(self) -> PreparedTxnState:
        """Let nothing more into the transaction, whose records are acknowledged. Raises `ApiError`."""
        with self._lock:
            return self.manager.prepare()

    def is_prepared_as(self, prepared: PreparedTxnState | str) -> bool:
        """Whether the prepared transaction is this one. Raises `ApiError` where none is prepared: one that is open must
        not be ended for the name of another."""
        with self._lock:
            if not self.manager.prepared.has_transaction:
                state = self.manager.state.value
                raise ApiError(ErrorCode.INVALID_TXN_STATE, f"cannot complete: nothing is prepared, it is {state}")
            return str(self.manager.prepared) == str(prepared)

    def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        with self._lock:
            self.manager.begin()

    def send_offsets(self, offsets: Mapping[Any, Any], group: object) -> None:
        """Commit offsets as a part of the transaction. `offsets` are by (topic, partition), each a number, or a value
        with an `offset`, and `metadata` where a text is committed with it; `group` is the consumer's group metadata, or
        the group's name. Raises `ApiError`."""
        plain = {TopicPartition(*partition): getattr(at, "offset", at) for partition, at in offsets.items()}
        texts = {TopicPartition(*each): text for each, at in offsets.items() if (text := getattr(at, "metadata", ""))}
        if isinstance(group, str):
            name, member = group, GroupMember()
        else:
            name = str(getattr(group, "group_id"))  # noqa: B009 - of any type that has it
            member = GroupMember(
                getattr(group, "generation_id", -1),
                getattr(group, "member_id", ""),
                getattr(group, "group_instance_id", None) or getattr(group, "instance_id", None),
            )
        with self._lock:
            self.manager.send_offsets(name, plain, member, texts)

    def begin_commit(self) -> None:
        """Commit, when all batches have been acknowledged. Raises `ApiError`."""
        with self._lock:
            self.manager.begin_commit()
        self._accumulator.close_open()

    def begin_abort(self) -> None:
        """Abort; batches that have not been sent are dropped. Raises `ApiError`."""
        with self._lock:
            if self._may_be_written(self._accumulator.incomplete):
                why = "the transaction was aborted before the outcome of its batches was known"
                self.manager.on_batch_failed(ErrorCode.NETWORK_EXCEPTION, why)
            self.manager.begin_abort()
        self._accumulator.close_open()

    @staticmethod
    def _may_be_written(batches: Iterable[ProducerBatch]) -> bool:
        return any(batch.has_sequence for batch in batches)

    @property
    def is_initialized(self) -> bool:
        """Whether `initialize` was called."""
        return self.manager.state is not TransactionState.UNINITIALIZED

    @property
    def may_abort(self) -> bool:
        """Whether there is a transaction that can be aborted: not one whose commit is under way."""
        return self.manager.state in (
            TransactionState.IN_TRANSACTION,
            TransactionState.ABORTABLE_ERROR,
            TransactionState.ABORTING,
        )

    def is_idle(self) -> bool:
        """Whether the application's last call is complete, or has failed."""
        with self._lock:
            return self.manager.is_idle and self._pending is None

    def check(self) -> None:
        """Raises the transaction's error."""
        with self._lock:
            self.manager.check()

    def check_open(self) -> None:
        """Raises `ApiError` where no transaction is open that takes records."""
        with self._lock:
            self.manager.check_open()

    def on_send_failed(self, error: BaseException) -> None:
        """A record got into no batch: the transaction, where one is open, can only be aborted."""
        with self._lock:
            if isinstance(error, ApiError):
                self.manager.on_send_failed(error.code, error.message)
            else:
                self.manager.on_send_failed(ErrorCode.TRANSACTION_ABORTABLE, str(error) or type(error).__name__)
        self._accumulator.close_open()

    # -- on the I/O thread

    def on_batch_failed(self, batch: ProducerBatch, error: ApiError) -> None:
        """A batch has failed for good: the transaction can only be aborted."""
        with self._lock:
            self.manager.on_batch_failed(error.code, error.message)
        self._accumulator.close_open()

    @property
    def error_to_fail_queued(self) -> ApiError | None:
        """Why batches that are not in flight cannot be sent any more."""
        manager = self.manager
        if manager.state is TransactionState.ABORTING:
            return ApiError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted")
        return manager.error

    def run(self, now_ms: int, has_in_flight: bool) -> None:
        """Send the manager's next request, where there is one and its node is connected."""
        self._now_ms = now_ms
        manager = self.manager
        if self._accumulator.is_closed and not self._accumulator.incomplete and manager.has_transaction:
            self._end_at_close(now_ms)
        if self._pending is None:
            if manager.state is TransactionState.ABORTING and has_in_flight:
                return
            with self._lock:
                self._pending = manager.next_request(now_ms, has_batches=bool(self._accumulator.incomplete))
        pending = self._pending
        if pending is None:
            return
        node_id = pending.node_id
        if node_id is None:
            node_id = self._connections.least_loaded(now_ms)
            if node_id is None:
                return
        elif not self._connections.is_ready(node_id, now_ms):
            if not self._connections.is_reachable(node_id, now_ms):
                self._pending = None
                why = f"the coordinator, node {node_id}, cannot be reached"
                with self._lock:
                    manager.on_failure(ErrorCode.NETWORK_EXCEPTION, why, now_ms, was_sent=False)
            return
        self._pending = None
        self._connections.send(
            node_id,
            pending.request,
            now_ms,
            lambda response, error: self._on_done(pending, response, error),
            version=pending.version,
            max_version=pending.max_version,
        )

    def _end_at_close(self, now_ms: int) -> None:
        """Abort the transaction, unless it is being ended."""
        if self._give_up_ms is None:
            self._give_up_ms = now_ms + self._max_block_ms
        if self.manager.state in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR):
            log.info("the open transaction of %r is aborted: the producer is closed", self.manager.transactional_id)
            with self._lock:
                self.manager.begin_abort()

    def has_ended(self, now_ms: int) -> bool:
        """Whether no transaction is left to end, or no time for it."""
        return not self.manager.has_transaction or (self._give_up_ms is not None and now_ms >= self._give_up_ms)

    def on_end(self) -> None:
        """The producer ends."""
        if self._give_up_ms is not None and self.manager.has_transaction:
            log.warning(
                "the transaction of %r was not ended before the producer: its coordinator aborts it after its timeout",
                self.manager.transactional_id,
            )

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due, if nothing happens before."""
        due_ms = self._request_at_ms(now_ms)
        if self._give_up_ms is None or self._give_up_ms <= now_ms:
            return due_ms
        return self._give_up_ms if due_ms is None else min(due_ms, self._give_up_ms)

    def _request_at_ms(self, now_ms: int) -> int | None:
        pending = self._pending
        if pending is not None:
            if pending.node_id is None:
                return self._requests.any_node_at_ms(now_ms, now_ms)
            return self._connections.ready_at_ms(pending.node_id, now_ms)
        retry_at_ms = self.manager.retry_at_ms
        return retry_at_ms if retry_at_ms > now_ms else None

    def _on_done(self, sent: TransactionRequest, response: Any, error: ApiError | None) -> None:
        if error is not None:
            self._fail(error.code, error.message)
            return
        if isinstance(sent.request, FindCoordinatorRequest) and not response.error_code:
            node = Broker(response.node_id, response.host, response.port, None)
            metadata = self._requests.metadata
            if node.node_id not in metadata.brokers:
                metadata.brokers = {**metadata.brokers, node.node_id: node}
                self._connections.set_nodes(metadata.brokers, self._now_ms)
        with self._lock:
            self.manager.on_response(response, self._now_ms)

    def _fail(self, code: ErrorCode, message: str) -> None:
        with self._lock:
            self.manager.on_failure(code, message, self._now_ms)

    def _on_features(self, epoch: int, features: Mapping[str, int]) -> None:
        with self._lock:
            self.manager.on_features(epoch, features.get(_FEATURE, 0))
