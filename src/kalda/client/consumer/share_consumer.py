"""The blocking share consumer (KIP-932).

    with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["jobs"])
        for record in consumer:
            ...

The members of a share group share the records of each partition: a broker hands a record to one of them at a time, with
a lock, until it is acknowledged. Otherwise as the blocking consumer.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError, WrongState
from kalda.base.ids import TopicPartition
from kalda.client.consumer.blocking_shell import BlockingShell
from kalda.client.consumer.common_calls import K, V
from kalda.client.consumer.share_calls import ShareCalls
from kalda.records.consuming import Record, RecordIterator

if TYPE_CHECKING:
    import pyarrow as pa


class ShareConsumer(ShareCalls[K, V], BlockingShell):
    """Reads topics as a member of a share group; a context manager that closes it."""

    def __enter__(self) -> ShareConsumer[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None)

    def __iter__(self) -> RecordIterator[K, V]:
        """Records, one after the other, until the consumer is closed. In implicit mode those of one poll are accepted
        when all of them were returned and the next one is requested."""
        self._require_usable()
        if not self._core.subscription.is_by_group:
            raise WrongState("the consumer reads nothing: subscribe to topics first")
        return self._iterator

    def _next_records(self) -> list[Record[K, V]] | None:
        return None if self._is_closed else self._drive(self._record_steps(None, None))

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, up to `max_records` (`max.poll.records`), for this consumer alone while its lock on them
        lasts; an empty list where none came within `timeout` seconds (None: wait). Renewed records come first.

        Raises `ApiError`, `Wakeup`, `UndecodableRecord` (the record was released or rejected already), and `WrongState`
        where explicit mode misses an acknowledgement of a record that was returned before."""
        records: list[Record[K, V]] = self._drive(self._record_steps(timeout, max_records))
        return records

    def poll_arrow(self, timeout: float | None = 1.0, max_records: int = 100_000) -> pa.RecordBatch | None:
        """The next records as an Arrow record batch with the columns of Spark's Kafka source, as `Consumer.poll_arrow`;
        None where none came within `timeout` seconds. Brokers hand out some `max.poll.records` at a time: raise it.

        Deserializers are not applied, and rows cannot be renewed. Needs the `arrow` extra."""
        batch: pa.RecordBatch | None = self._drive(self._arrow_steps(timeout, max_records))
        return batch

    def commit_sync(self, timeout: float | None = None) -> dict[TopicPartition, ApiError | None]:
        """Send all acknowledgements, in implicit mode those of all records that were returned, and wait until they are
        answered. Returns the error, or None, of each partition: where one has failed, some member gets the records
        again. Raises `ApiError` where `timeout` seconds have passed, `Wakeup`."""
        results: dict[TopicPartition, ApiError | None] = self._drive(self._commit_steps(timeout))
        return results

    def commit_async(self) -> None:
        """As `commit_sync`, without waiting: the outcome is for the callback."""
        self._begin_commit()

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._drive(self._unsubscribe_steps())

    def close(self, timeout: float | None = 30.0) -> None:
        """Send the acknowledgements that were made, end the share sessions, which releases all other records, leave the
        group and close the connections, within `timeout` seconds. May be called more than once.

        In implicit mode the records of the last poll are released, as by Kafka's share consumer: call `commit_sync`
        before, where they were processed."""
        if self._is_closed or self._io.was_forked:
            self._is_closed = True
            return
        try:
            self._drive(self._close_steps(timeout))
        finally:
            self._end()

    # -- inside

    def _give_back(self, taken: list[Any]) -> None:
        del taken
        self._core.release()
