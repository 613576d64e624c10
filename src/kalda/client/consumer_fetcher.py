"""Reads batches of partitions between offsets from their leaders, as bytes that the caller decodes.

At most one Fetch is in flight to each leader. The next one is sent before the last batches of a response are returned,
so that the leader reads while the caller decodes. One response is held in memory (`max_bytes`, or one batch where that
is larger); the responses of other leaders stay in their sockets.

When a leader has moved or does not answer, it is looked up again, until a partition has had no answer for
`timeout_ms`. `on_out_of_range` is what happens where the leader does not have an offset.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.client.cluster_client import ClusterClient, version_within
from kalda.client.core.transactions_seen import aborted_batches
from kalda.client.errors import refused
from kalda.client.metadata import Leader
from kalda.client.retry import Deadline
from kalda.network.calls import Call
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
    OffsetSpec,
)
from kalda.records.batch import BatchHeader, check_crc, iter_batches
from kalda.records.builder import Record, read_records

_LANE = "fetch"
_MAX_FETCH_BY_NAME = 12
_SLACK_MS = 10_000
"""How long a response may take beyond `max_wait_ms`, the time that the leader may wait for records."""
_RETRY_MS = 100
"""The pause after a failure, before the leaders are looked up again."""


class OutOfRange(Enum):
    """What to do where the leader does not have the requested offset: fail, or continue at one end of the log."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


class Slice(NamedTuple):
    """The offsets of a partition to read, from `start` up to but not including `end`; None: without an end."""

    topic: str
    partition: int
    start: int
    end: int | None = None


class Fetched(NamedTuple):
    """Whole batches of a partition. The first may begin before `start`, the last may reach beyond `end`.

    `keep` returns False for the batches of aborted transactions; None where there are none. The next Fetch of this
    partition begins at `next_offset`.
    """

    topic: str
    partition: int
    buffer: memoryview
    start: int
    end: int | None
    next_offset: int
    high_watermark: int
    keep: Callable[[BatchHeader], bool] | None = None

    def records(self) -> Iterator[Record]:
        """The requested records, decoded, without control records and without those of aborted transactions."""
        for _, records in self.batches():
            yield from records

    def batches(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """The same records by batch, each with its batch's header."""
        for pos, header in iter_batches(self.buffer):
            if header.is_control or (self.keep is not None and not self.keep(header)):
                continue
            records = read_records(self.buffer, pos, header)
            if header.base_offset < self.start or (self.end is not None and header.last_offset >= self.end):
                end = header.next_offset if self.end is None else self.end
                records = [record for record in records if self.start <= record.offset < end]
            yield header, records


class _Reading:
    """One partition's progress."""

    __slots__ = ("end", "give_up_at", "high_watermark", "leader", "next_lookup", "position", "topic_partition")

    def __init__(self, slice_: Slice) -> None:
        self.topic_partition = TopicPartition(slice_.topic, slice_.partition)
        self.position = slice_.start
        """The offset of the next Fetch."""
        self.end = slice_.end
        self.leader: Leader | None = None
        """None: has to be looked up."""
        self.next_lookup = Deadline(0)
        """The leader is not looked up before it is past: there was none."""
        self.high_watermark = -1
        """Of the last response; -1 before the first."""
        self.give_up_at: Deadline | None = None
        """Set by the first failure in a row; None after a success."""

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end


class _InFlight(NamedTuple):
    """A Fetch without a response. `by_topic` has each reading by topic name, and by topic id where that was sent."""

    call: Call
    due: Deadline
    by_topic: dict[tuple[str | Uuid, int], _Reading]

    @property
    def readings(self) -> list[_Reading]:
        return list(dict.fromkeys(self.by_topic.values()))


class ConsumerFetcher:
    """Reads slices; a context manager. Iteration ends when every slice is read up to its end.

    With a slice without an end, iteration does not stop; use `poll`, which returns None when nothing came.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        slices: Iterable[Slice],
        *,
        read_committed: bool = False,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 16 * 1024 * 1024,
        partition_max_bytes: int = 4 * 1024 * 1024,
        on_out_of_range: OutOfRange = OutOfRange.ERROR,
        on_reset: Callable[[TopicPartition, int, int], None] | None = None,
        check_crcs: bool = False,
        rack: str = "",
    ) -> None:
        """`on_reset(partition, requested offset, new offset)` is called when `on_out_of_range` moved the position."""
        self._cluster = cluster
        self._read_committed = read_committed
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._on_out_of_range = on_out_of_range
        self._on_reset = on_reset
        self._check_crcs = check_crcs
        self._rack = rack
        self._timeout_ms = cluster.timeout_ms
        self._readings = {reading.topic_partition: reading for reading in map(_Reading, slices)}
        """In the order in which requests name them: a partition that returned batches moves to the end."""
        self._in_flight: dict[int, _InFlight] = {}
        """By the leader's node id."""
        self._ready: list[Fetched] = []
        self._pause = Deadline(0)
        """No Fetch is sent until it is past."""

    def __enter__(self) -> ConsumerFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Fetched]:
        stalled_until: Deadline | None = None
        while not self.is_done:
            fetched = self.poll(self._max_wait_ms)
            if fetched is not None:
                stalled_until = None
                yield fetched
            elif stalled_until is None:
                stalled_until = Deadline(self._timeout_ms)
            elif stalled_until.is_past:
                self._raise_if_stalled()

    @property
    def is_done(self) -> bool:
        """Every slice was returned up to its end."""
        return not self._ready and all(reading.is_done for reading in self._readings.values())

    @property
    def at_end(self) -> bool:
        """Everything up to the high watermark of the last response was returned, for all partitions."""
        return not self._ready and all(
            reading.is_done or reading.position >= reading.high_watermark >= 0 for reading in self._readings.values()
        )

    def poll(self, timeout_ms: int) -> Fetched | None:
        """The next batches, or None where none came within `timeout_ms`. Raises `ApiError`."""
        deadline = Deadline(timeout_ms)
        while not self._ready:
            if all(reading.is_done for reading in self._readings.values()):
                return None
            self._send_all()
            self._receive_some(min(deadline.remaining_ms, self._timeout_ms))
            if deadline.is_past:
                break
        if not self._ready:
            return None
        fetched = self._ready.pop(0)
        if not self._ready:
            self._send_all()
        return fetched

    def close(self) -> None:
        """Drop the requests in flight, with their connections."""
        for node_id in list(self._in_flight):
            self._cluster.drop(node_id, _LANE)
        self._in_flight.clear()
        self._ready.clear()

    # -- sending

    def _send_all(self) -> None:
        """Send a Fetch to every leader that has none in flight and has a partition to read."""
        if not self._pause.is_past:
            return
        busy = {id(reading) for flight in self._in_flight.values() for reading in flight.readings}
        idle = [r for r in self._readings.values() if not r.is_done and id(r) not in busy]
        without_leader = [r.topic_partition for r in idle if r.leader is None and r.next_lookup.is_past]
        if without_leader:
            leaders, failures = self._cluster.leaders_now(without_leader)
            for partition, leader in leaders.items():
                self._readings[partition].leader = leader
            for partition, error in failures.items():
                self._failed_once_more(self._readings[partition], error)
                self._readings[partition].next_lookup = Deadline(_RETRY_MS)
        by_node: dict[int, list[_Reading]] = {}
        for reading in idle:
            if reading.leader is not None and reading.leader.node_id not in self._in_flight:
                by_node.setdefault(reading.leader.node_id, []).append(reading)
        for node_id, readings in by_node.items():
            try:
                self._send(node_id, readings)
            except ApiError as error:
                self._connection_failed(node_id, readings, error)

    def _send(self, node_id: int, readings: list[_Reading]) -> None:
        connection = self._cluster.connection(node_id, _LANE)
        by_name = any(reading.leader is None or reading.leader.topic_id == ZERO_UUID for reading in readings)
        version = version_within(connection, FetchRequest.API_KEY, _MAX_FETCH_BY_NAME if by_name else None)
        topics: dict[str, FetchRequestFetchTopic] = {}
        expected: dict[tuple[str | Uuid, int], _Reading] = {}
        for reading in readings:
            assert reading.leader is not None
            name, index = reading.topic_partition
            topic = topics.setdefault(name, FetchRequestFetchTopic(topic=name, topic_id=reading.leader.topic_id))
            topic.partitions.append(
                FetchRequestFetchPartition(
                    partition=index,
                    current_leader_epoch=reading.leader.epoch,
                    fetch_offset=reading.position,
                    partition_max_bytes=self._partition_max_bytes,
                )
            )
            expected[name, index] = reading
            if not by_name:
                expected[reading.leader.topic_id, index] = reading
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=int(self._read_committed),
            topics=list(topics.values()),
            rack_id=self._rack,
        )
        due = Deadline(self._max_wait_ms + _SLACK_MS)
        self._in_flight[node_id] = _InFlight(connection.send(request, version), due, expected)

    # -- receiving

    def _receive_some(self, timeout_ms: int) -> None:
        """Wait until a response has come, and handle it and all others that have come."""
        if not self._in_flight:
            lookups_ms = (r.next_lookup.remaining_ms for r in self._readings.values() if not r.is_done)
            wait_ms = max(self._pause.remaining_ms, min(lookups_ms, default=0))
            select.select((), (), (), min(timeout_ms, wait_ms) / 1000)
            return
        connections = {self._cluster.connection(node_id, _LANE): node_id for node_id in self._in_flight}
        readable = select.select(list(connections), (), (), timeout_ms / 1000)[0]
        for connection in readable:
            node_id = connections[connection]
            flight = self._in_flight.pop(node_id)
            try:
                answer = connection.receive(flight.call, timeout_ms=self._max_wait_ms + _SLACK_MS)
                self._handle_response(answer, flight)
            except ApiError as error:
                if not error.code.retriable:
                    raise
                self._connection_failed(node_id, flight.readings, error)
        if not readable:
            self._drop_overdue()

    def _handle_response(self, answer: FetchResponse, flight: _InFlight) -> None:
        if answer.error_code:
            raise refused(answer.error_code, "the fetch")
        for topic in answer.responses:
            for data in topic.partitions:
                reading = flight.by_topic.get((topic.topic, data.partition_index)) or flight.by_topic.get(
                    (topic.topic_id, data.partition_index)
                )
                if reading is not None:
                    self._handle_partition(reading, data)

    def _handle_partition(self, reading: _Reading, data: FetchResponsePartitionData) -> None:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset(reading)
        elif code:
            error = refused(code, f"partition {reading.topic_partition}")
            if not error.code.retriable:
                raise error
            self._retry_later([reading], error)
        else:
            reading.give_up_at = None
            reading.high_watermark = data.high_watermark
            self._add_batches(reading, data)

    def _add_batches(self, reading: _Reading, data: FetchResponsePartitionData) -> None:
        """Add the partition's batches to `_ready`, and advance its position."""
        records = memoryview(data.records) if isinstance(data.records, bytes | bytearray | memoryview) else None
        if not records:
            return
        start, size = reading.position, 0
        for pos, header in iter_batches(records):
            if reading.end is not None and header.base_offset >= reading.end:
                reading.position = max(reading.position, reading.end)
                break
            if self._check_crcs:
                check_crc(records, pos, header)
            size = pos + header.size_bytes
            reading.position = max(reading.position, header.next_offset)
        if not size:
            return
        keep = None
        if data.aborted_transactions:
            aborted = ((one.producer_id, one.first_offset) for one in data.aborted_transactions)
            dropped = aborted_batches(records[:size], aborted)
            if dropped:
                keep = _Keep(dropped)
        # A leader fills a response in the order of the request. The partition moves to the end of the next request, so
        # that one with many records does not use up `max_bytes` each time.
        partition = reading.topic_partition
        self._readings[partition] = self._readings.pop(partition)
        self._ready.append(
            Fetched(*partition, records[:size], start, reading.end, reading.position, data.high_watermark, keep)
        )

    # -- failures

    def _connection_failed(self, node_id: int, readings: list[_Reading], error: ApiError) -> None:
        """Drop the connection to a leader, and retry its partitions."""
        self._cluster.drop(node_id, _LANE)
        self._in_flight.pop(node_id, None)
        self._retry_later(readings, error)

    def _retry_later(self, readings: list[_Reading], error: ApiError) -> None:
        """Look the leaders up again after `_RETRY_MS`. Raises `error` where a partition fails for `timeout_ms`."""
        for reading in readings:
            self._failed_once_more(reading, error)
            reading.leader = None
        self._cluster.forget(reading.topic_partition.topic for reading in readings)
        self._pause = Deadline(_RETRY_MS)

    def _failed_once_more(self, reading: _Reading, error: ApiError) -> None:
        """Raises `error` where it is not retriable, or the partition has failed for `timeout_ms`."""
        if reading.give_up_at is None:
            reading.give_up_at = Deadline(self._timeout_ms)
        if not error.code.retriable or reading.give_up_at.is_past:
            raise error

    def _drop_overdue(self) -> None:
        """Drop connections with an overdue response: a leader without new records still answers in `max_wait_ms`."""
        for node_id, flight in list(self._in_flight.items()):
            if flight.due.is_past:
                error = refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {node_id}", "no answer to a fetch")
                self._connection_failed(node_id, flight.readings, error)

    def _raise_if_stalled(self) -> None:
        """Raise where a slice has an end that is not reached: it may be beyond the end of the log, or of the last
        stable offset. Slices without an end may wait for ever."""
        for partition, reading in self._readings.items():
            if reading.end is not None and not reading.is_done:
                raise refused(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"partition {partition}",
                    f"offsets up to {reading.end} were requested, but for {self._timeout_ms} ms there is nothing to "
                    f"read beyond {reading.position}. Check the end offset, and whether a transaction is still open",
                )

    def _reset(self, reading: _Reading) -> None:
        from kalda.client.admin.offsets import offsets_at

        partition, requested = reading.topic_partition, reading.position
        first = offsets_at(self._cluster, [partition], OffsetSpec.EARLIEST)[partition]
        last = offsets_at(self._cluster, [partition], OffsetSpec.LATEST)[partition]
        if self._on_out_of_range is OutOfRange.ERROR:
            raise refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"partition {partition}",
                f"offset {requested} is not there; it has {first} to {last}. Start in that range",
            )
        reading.position = first if self._on_out_of_range is OutOfRange.EARLIEST else last
        if self._on_reset is not None:
            self._on_reset(partition, requested, reading.position)


class _Keep:
    """Returns False for batches with these base offsets. A class and not a closure, so that it can be pickled."""

    __slots__ = ("_dropped",)

    def __init__(self, dropped: frozenset[int]) -> None:
        self._dropped = dropped

    def __call__(self, header: BatchHeader) -> bool:
        return header.base_offset not in self._dropped
