"""The asyncio consumer: as the blocking one, on the loop of its user.

    async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Its sockets are on the user's loop, so heartbeats are sent while the application awaits something; a loop that is
blocked sends none. The rebalance listener is called by `poll`; its methods may be coroutines. Used by one
loop, but by any number of its tasks. A cancelled call takes no records with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.aio_shell import AioShell
from kalda.client.consumer.common_calls import K, V
from kalda.client.consumer.consumer_calls import (
    ConsumerCalls,
    Offset,
    Partition,
    require_subscription,
)
from kalda.clientcore.connections.metadata import FoundOffset, Topic
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)
_NS_PER_MS = 1_000_000
_FOREVER_S = 3600.0 * 24 * 365


class Consumer(ConsumerCalls[K, V], AioShell):
    """Reads topics; an asynchronous context manager that closes it."""

    async def __aenter__(self) -> Consumer[K, V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(None, None, processed=error is None)

    # -- records

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Records, one after the other, until the consumer is closed. Each record is processed when the next one is
        requested."""
        self._check_open()
        require_subscription(self._core.subscription.kind)
        iterator = self._iterator
        while True:
            for record in iterator:
                yield record
            if self._is_closed:
                return
            iterator.replace_rest(await self._poll_records(None, self._config.max_poll_records))

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> list[Record[K, V]]:
        """The next records, up to `max_records` (`max.poll.records`); an empty list where none came within `timeout`
        seconds (None: wait). Raises `ApiError`, `Wakeup`."""
        limit, rest = self._buffered(max_records)
        return rest or await self._poll_records(timeout, limit)

    async def poll_arrow(self, timeout: float | None = 1.0, max_records: int = 100_000) -> pa.RecordBatch | None:
        """The next records as an Arrow record batch with the columns of Spark's Kafka source, None where none came
        within `timeout` seconds. Deserializers and interceptors are not applied. Needs the `arrow` extra."""
        from kalda.client.consumer.columns import to_one_batch

        if max_records < 1:
            raise ValueError(f"max_records is {max_records}; at least 1 is expected")
        self._put_all_back()
        due_ms = self._now_ms() + int((_FOREVER_S if timeout is None else timeout) * 1000)
        while True:
            left_s = max(0.0, (due_ms - self._now_ms()) / 1000)
            chunks = await self._poll(left_s, lambda: self._core.take_chunks(max_records))
            decoded = to_one_batch(chunks)
            if decoded.failure is not None:
                self._core.put_back(decoded.rest)
                if decoded.batch is None:
                    raise decoded.failure
            if decoded.batch is not None or self._now_ms() >= due_ms:
                return decoded.batch

    async def _poll_records(self, timeout: float | None, limit: int) -> list[Record[K, V]]:
        records: list[Record[K, V]] = await self._poll(timeout, lambda: self._core.take_records(limit))
        return self._intercepted(records) if records and self._interceptors else records

    async def _poll(self, timeout: float | None, take: Callable[[], list[Any]]) -> list[Any]:
        io = self._started()
        self._require_no_listener()
        core, driven = self._core, self._driven
        require_subscription(core.subscription.kind)
        due_ms = self._now_ms() + int((_FOREVER_S if timeout is None else timeout) * 1000)
        driven.polling += 1
        try:
            self._begin().begin_poll()
            io.wake()
            await asyncio.sleep(0)  # whoever finds records in each poll must let the loop receive and send
            while True:
                self._raise_if_woken()
                await self._call_listener()
                taken = self._take(take)
                if taken:
                    if core.fetcher.has_room:
                        io.wake()
                    return taken
                if not await self._run_until(self._has_news, due_ms):
                    return []
                self._check_open()
        finally:
            driven.polling -= 1
            core.metrics.on_poll_ended(self._now_ms())

    def _has_news(self) -> bool:
        return self._is_woken or self._may_continue()

    async def _call_listener(self) -> None:
        while (callback := self._claim_callback()) is not None:
            call = self._listener_call(callback)
            try:
                result = call() if call is not None else None
                if inspect.isawaitable(result):
                    await result
            finally:
                self._end_callback(callback)
                self._changed()

    # -- offsets

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record of an assigned partition; where it is not known yet, that is waited for."""
        offset: int = await self._drive(self._position_steps(partition, timeout))
        return offset

    async def commit(
        self, offsets: Mapping[Partition, Offset] | Record | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit `offsets`, those after a record, or None: the positions. It is repeated until it is done or `timeout`
        has passed, and raises `CommitFailed` where the partitions belong to others by now."""
        await self._drive(self._commit_steps(offsets, timeout))

    async def committed(
        self, *partitions: Partition, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch | None]:
        """The group's committed offsets; None where a partition has none. Without arguments: of all assigned ones."""
        found: dict[TopicPartition, OffsetAndEpoch | None] = await self._drive(
            self._committed_steps(partitions, timeout)
        )
        return found

    async def offsets_for_times(
        self, times: Mapping[Partition, int], timeout: float | None = None
    ) -> dict[TopicPartition, FoundOffset | None]:
        """For each partition, the first record at or after a timestamp in ms; None where every record is older."""
        found: dict[TopicPartition, FoundOffset | None] = await self._drive(self._times_steps(times, timeout))
        return found

    async def beginning_offsets(
        self, *partitions: Partition, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        found: dict[TopicPartition, int] = await self._drive(self._end_steps(partitions, OffsetSpec.EARLIEST, timeout))
        return found

    async def end_offsets(self, *partitions: Partition, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer may read."""
        found: dict[TopicPartition, int] = await self._drive(self._end_steps(partitions, OffsetSpec.LATEST, timeout))
        return found

    async def lag(self, *partitions: Partition, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Records between the position and the end of each assigned partition, from a new look at the ends."""
        found: dict[TopicPartition, int] = await self._drive(self._lag_steps(partitions, timeout))
        return found

    # -- topics

    async def partitions_for(self, topic: str, timeout: float | None = None) -> Topic:
        """The topic's partitions, with leaders and replicas. Raises `ApiError` where it does not exist."""
        found: Topic = await self._drive(self._topic_steps(topic, timeout))
        return found

    async def list_topics(self, timeout: float | None = None) -> dict[str, Topic]:
        """All topics that this user may see, by name."""
        found: dict[str, Topic] = await self._drive(self._wait("listing topics", timeout, self._core.all_topics))
        return found

    async def unsubscribe(self) -> None:
        """Read nothing, and leave the group. The listener is called with what is given up."""
        self._started()
        await self._revoke_all()
        await self._drive(self._unsubscribe_steps())

    async def _revoke_all(self) -> None:
        owned = sorted(self._core.subscription.partitions) if self._core.subscription.is_by_group else []
        if not owned or self._listener is None or self._is_revoking:
            return
        self._is_revoking = True
        try:
            result = (self._listener.revoked if self._core.may_commit else self._listener.lost)(owned)
            if inspect.isawaitable(result):
                await result
        finally:
            self._is_revoking = False

    # -- the end

    async def close(self, timeout: float | None = 30.0, *, leave_group: bool | None = None) -> None:
        """Commit where that is automatic, leave the group and close the connections, within `timeout` seconds.

        `leave_group` as for the blocking consumer. May be called more than once."""
        await self._close(timeout, leave_group, processed=True)

    async def _close(self, timeout: float | None, leave_group: bool | None, *, processed: bool) -> None:
        if self._is_closed:
            return
        io = self._io
        if io is None:
            self._is_closed = True
            self._close_objects()
            return
        due_ms = self._now_ms() + int((30.0 if timeout is None else timeout) * 1000)
        try:
            await self._drive(self._commit_last_steps(processed=processed, due_ms=due_ms))
            try:
                with contextlib.suppress(ApiError):
                    await self._revoke_all()
            finally:  # what the listener raises is raised when the member has left
                if not self._is_closed:  # by the listener
                    await self._drive(self._leave_steps(leave_group, due_ms))
                    await self._drive(self._push_last_metrics(due_ms))
        finally:
            self._end(io)
        await asyncio.shield(io.ended)

    def _now_ns(self) -> int:
        return self._now_ms() * _NS_PER_MS
