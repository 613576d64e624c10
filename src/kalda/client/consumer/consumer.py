"""The blocking consumer.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            ...

`poll` returns a list, `poll_arrow` a record batch, iteration one record after the other. Between two polls the records
that were returned are being processed; the next poll says that they are, which is when they may be committed
automatically and when partitions may be taken away. The rebalance listener is called by `poll`, in the caller's thread.

Calls may come from several threads; `wakeup` makes a call that waits in another thread end with `Wakeup`. Errors of
the cluster that a repetition does not mend are `ApiError`s; what passes is repeated until the timeout.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.blocking_shell import BlockingShell
from kalda.client.consumer.common_calls import K, V, Wait
from kalda.client.consumer.consumer_calls import (
    ConsumerCalls,
    Offset,
    Partition,
    first_offsets,
    offsets_of,
    require_subscription,
)
from kalda.client.transport.channels import monotonic_ms
from kalda.clientcore.connections.metadata import FoundOffset, Topic
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record, RecordIterator

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)
_FOREVER_S = 3600.0 * 24 * 365


class Consumer(ConsumerCalls[K, V], BlockingShell):
    """Reads topics; a context manager that closes it."""

    def __enter__(self) -> Consumer[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, None, processed=error is None)

    # -- records

    def __iter__(self) -> RecordIterator[K, V]:
        """Records, one after the other, until the consumer is closed. Each record is processed when the next one is
        requested: leave the loop by an exception, and `with` does not commit the record that failed."""
        self._check_open()
        require_subscription(self._core.subscription.kind)
        return self._iterator

    def _next_records(self) -> list[Record[K, V]] | None:
        if self._is_closed:
            return None
        return self._poll_records(None, self._config.max_poll_records) or None

    def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, up to `max_records` (`max.poll.records`); an empty list where none came within `timeout`
        seconds (None: wait). Raises `ApiError`, `Wakeup`."""
        limit, rest = self._buffered(max_records)
        return rest or self._poll_records(timeout, limit)

    def poll_arrow(self, timeout: float | None = 1.0, max_records: int = 100_000) -> pa.RecordBatch | None:
        """The next records as an Arrow record batch with the columns of Spark's Kafka source: key, value, topic,
        partition, offset, timestamp, timestampType, headers. None where none came within `timeout` seconds.

        Deserializers and interceptors are not applied. Records before one that cannot be decoded are returned; then
        `UndecodableRecord` is raised, until the application seeks past it. Needs the `arrow` extra."""
        from kalda.client.consumer.columns import to_one_batch

        if max_records < 1:
            raise ValueError(f"max_records is {max_records}; at least 1 is expected")
        if self._iterator.rest:
            with self._lock:
                self._put_all_back()
        due_s = time.monotonic() + (_FOREVER_S if timeout is None else timeout)
        while True:
            chunks = self._poll(max(0.0, due_s - time.monotonic()), lambda: self._core.take_chunks(max_records))
            try:
                decoded = to_one_batch(chunks)
            except BaseException:  # such as a signal handler's: nothing of it was returned
                with self._lock:
                    self._core.put_back(first_offsets(chunks))
                raise
            if decoded.failure is not None:
                with self._lock:
                    self._core.put_back(decoded.rest)
                if decoded.batch is None:
                    raise decoded.failure
            if decoded.batch is not None or time.monotonic() >= due_s:
                return decoded.batch

    def _poll_records(self, timeout: float | None, limit: int) -> list[Record[K, V]]:
        # Before the poll: what a call behind it would raise, interrupted by a signal, would lose the records.
        is_intercepted = bool(self._interceptors)
        records: list[Record[K, V]] = self._poll(timeout, lambda: self._core.take_records(limit))
        return self._intercepted(records) if is_intercepted and records else records

    def _poll(self, timeout: float | None, take: Callable[[], list[Any]]) -> list[Any]:
        self._check_open()
        self._require_no_listener()
        core, driven, io = self._core, self._driven, self._io
        now_ms = monotonic_ms()
        due_ms = now_ms + int((_FOREVER_S if timeout is None else timeout) * 1000)
        news = Wait(self._has_news, due_ms)
        require_subscription(core.subscription.kind)
        with driven.lock:
            driven.polling += 1
        try:
            self._begin_poll(now_ms)
            if core.is_rebalancing:
                io.wake()  # the background thread may be waiting for sockets: what the poll has begun is sent now
            self._let_run()
            while True:
                self._raise_if_woken()
                self._call_listener()
                if taken := self._take(take):
                    return taken
                if not self._run_until(news):
                    return []
                self._check_open()
        finally:
            driven.polling -= 1
            core.metrics.on_poll_ended(monotonic_ms())

    def _begin_poll(self, now_ms: int) -> None:
        with self._lock:
            self._core.requests.now_ms = now_ms
            self._core.begin_poll()

    def _on_taken(self) -> None:
        if self._core.fetcher.has_room:
            self._turn_at_once()  # the next Fetch is on its way while the application works

    def _give_back(self, taken: list[Any]) -> None:
        self._core.put_back(first_offsets(taken))  # it is fetched again

    def _has_news(self) -> bool:
        """Whether a poll has something to do besides waiting."""
        if self._is_woken or self._driven.is_ending:
            return True
        return self._may_continue()

    def _call_listener(self) -> None:
        """Call the listener while calls are due. What it raises is raised after the rebalance's step."""
        while self._core.callback is not None:
            callback, was_called = None, False
            try:
                with self._lock:  # whose exit may raise what a signal handler does
                    callback = self._claim_callback()
                if callback is None:
                    return
                call, was_called = self._listener_call(callback), True
                if call is not None:
                    call()
            finally:
                if callback is not None:
                    try:
                        self._end_callback(callback, was_called=was_called)
                    finally:
                        self._io.wake()  # another thread may wait for the call's end

    # -- offsets

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record of an assigned partition; where it is not known yet, that is waited for."""
        offset: int = self._drive(self._position_steps(partition, timeout))
        return offset

    def commit(
        self,
        offsets: Mapping[Partition, Offset] | Record | None = None,
        *,
        wait: bool = True,
        on_done: Callable[[dict[TopicPartition, OffsetAndEpoch] | None, Exception | None], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit `offsets`, those after a record, or None: the positions. With `wait` it is repeated until it is done
        or `timeout` has passed, and raises `CommitFailed` where the partitions belong to others by now. Without, it is
        tried once, and `on_done(offsets, error)` is called during a later call."""
        if wait:
            self._drive(self._commit_steps(offsets, timeout))
            return
        self._check_open()
        chosen = offsets_of(offsets)
        with self._lock:
            core = self._begin()
            operation = Operation("the commit", self._due_ms(timeout))
            operation.on_done = lambda done: self._on_committed(done, on_done)
            core.commit(self.positions() if chosen is None else chosen, operation, repeats=False)
        self._turn_at_once()

    def _on_committed(self, operation: Operation, on_done: Callable[[Any, Any], None] | None) -> None:
        if operation.error is None:
            self._intercept_commit(operation.result or {})
        elif on_done is None:
            log.warning("a commit has failed: %s", operation.error)
        if on_done is not None:
            try:
                on_done(operation.result, operation.error)
            except Exception:
                log.exception("a commit's on_done failed")

    def committed(
        self, *partitions: Partition, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch | None]:
        """The group's committed offsets; None where a partition has none. Without arguments: of all assigned ones."""
        found: dict[TopicPartition, OffsetAndEpoch | None] = self._drive(self._committed_steps(partitions, timeout))
        return found

    def offsets_for_times(
        self, times: Mapping[Partition, int], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset | None]:
        """For each partition, the first record at or after a timestamp in ms; None where every record is older."""
        found: dict[TopicPartition, FoundOffset | None] = self._drive(self._times_steps(times, timeout))
        return found

    def beginning_offsets(self, *partitions: Partition, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        found: dict[TopicPartition, int] = self._drive(self._end_steps(partitions, OffsetSpec.EARLIEST, timeout))
        return found

    def end_offsets(self, *partitions: Partition, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer may read: the high watermark, or the last stable offset
        with `isolation.level=read_committed`."""
        found: dict[TopicPartition, int] = self._drive(self._end_steps(partitions, OffsetSpec.LATEST, timeout))
        return found

    def lag(self, *partitions: Partition, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Records between the position and the end of each assigned partition, from a new look at the ends."""
        found: dict[TopicPartition, int] = self._drive(self._lag_steps(partitions, timeout))
        return found

    # -- topics

    def partitions_for(self, topic: str, timeout: float | None = None) -> Topic:
        """The topic's partitions, with leaders and replicas. Raises `ApiError` where it does not exist."""
        found: Topic = self._drive(self._topic_steps(topic, timeout))
        return found

    def list_topics(self, timeout: float | None = None) -> dict[str, Topic]:
        """All topics that this user may see, by name."""
        found: dict[str, Topic] = self._drive(self._wait("listing topics", timeout, self._core.all_topics))
        return found

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group. The listener is called with what is given up."""
        self._check_open()
        self._revoke_all()
        self._drive(self._unsubscribe_steps())

    def _revoke_all(self) -> None:
        with self._lock:
            owned = sorted(self._core.subscription.partitions) if self._core.subscription.is_by_group else []
            may_commit = self._core.may_commit
        if not owned or self._listener is None or self._is_revoking:
            return
        self._is_revoking = True
        try:
            (self._listener.revoked if may_commit else self._listener.lost)(owned)
        finally:
            self._is_revoking = False

    # -- the end

    def close(self, timeout: float | None = 30.0, *, leave_group: bool | None = None) -> None:
        """Commit where that is automatic, leave the group and close the connections, within `timeout` seconds.

        `leave_group` None: dynamic members leave, static ones keep their partitions until their session ends. False:
        stay in the group until the session ends; True: leave in any case. May be called more than once."""
        self._close(timeout, leave_group, processed=True)

    def _close(self, timeout: float | None, leave_group: bool | None, *, processed: bool) -> None:
        if self._is_closed or self._io.was_forked:
            self._is_closed = True
            return
        due_ms = monotonic_ms() + int((30.0 if timeout is None else timeout) * 1000)
        try:
            self._drive(self._commit_last_steps(processed=processed, due_ms=due_ms))
            try:
                with contextlib.suppress(ApiError):
                    self._revoke_all()
            finally:  # what the listener raises is raised when the member has left
                if not self._is_closed:  # by the listener
                    self._drive(self._leave_steps(leave_group, due_ms))
                    self._turn_at_once()
                    self._drive(self._push_last_metrics(due_ms))
        finally:
            self._end()

    def _now_ns(self) -> int:
        return time.perf_counter_ns()
