"""A producer of transactions with the calls of a `Ledger`, over the blocking producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.commits import GroupMetadata
from kalda.client.core.transaction_errors import AbortableTransactionError, FatalTransactionError
from kalda.client.delivery import DeliveryFuture
from kalda.client.producer import Producer
from kalda.records.builder import NewRecord


class TransactionalProducer:
    """One transactional id. Calls that have no answer in time raise REQUEST_TIMED_OUT; `init`, `commit` and `abort` may
    be called again then, and continue."""

    def __init__(
        self,
        config: Mapping[str, object],
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        timeout_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self._producer = Producer(
            {
                **config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
                "request.timeout.ms": request_timeout_ms,
                "delivery.timeout.ms": timeout_ms,
                "max.block.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self._timeout_s = timeout_ms / 1_000
        self._sent: dict[TopicPartition, list[DeliveryFuture]] = {}
        """The records of the transaction that `flush` has not reported yet."""

    def close(self) -> None:
        """Close the connections; a transaction that is open stays so until its timeout."""
        self._producer.close(0)

    def init(self) -> None:
        """Get a producer id, and fence earlier producers of this transactional id. Raises `ApiError`."""
        self._in_time(self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        self._sent.clear()
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
        """Send records. Raises `ApiError` where no transaction is open, or it has failed."""
        for timestamp_ms, key, value, headers in records:
            future = self._producer.send(topic, value, key, partition, timestamp_ms, headers)
            self._sent.setdefault(TopicPartition(topic, partition), []).append(future)

    def flush(self) -> dict[TopicPartition, list[int]]:
        """Wait for what was sent; the offset of each record, -1 where it was a duplicate whose offset the leader has
        forgotten. Raises `AbortableTransactionError`, `FatalTransactionError` and REQUEST_TIMED_OUT."""
        offsets: dict[TopicPartition, list[int]] = {}
        until_s = time.monotonic() + 2 * self._timeout_s
        for partition, futures in self._sent.items():
            for future in futures:
                try:
                    found = future.result(max(0.0, until_s - time.monotonic()))
                except TimeoutError as error:
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
                except (AbortableTransactionError, FatalTransactionError):
                    raise
                except ApiError as error:
                    raise AbortableTransactionError(error.code, error.message) from error
                offsets.setdefault(partition, []).append(found.offset)
        self._sent.clear()
        return offsets

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMetadata | None = None
    ) -> None:
        """Commit a group's offsets within the transaction, as the member that has read the input where it is one.
        Raises `ApiError`."""
        self._in_time(lambda: self._producer.send_offsets_to_transaction(offsets, member or group_id))

    def commit(self) -> None:
        """Commit. Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not, and a second call has the
        outcome."""
        self._in_time(self._producer.commit_transaction)

    def abort(self) -> None:
        """Abort. Raises `ApiError`."""
        self._in_time(self._producer.abort_transaction)

    def _in_time(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TimeoutError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
