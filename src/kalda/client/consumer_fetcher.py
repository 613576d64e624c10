"""Batches of partitions, from their leaders, between offsets: as bytes, for whoever decodes them in its own way.

One Fetch is in flight to each leader, and the next is sent before what came is handed out, so that a leader reads
while the caller decodes. What is held in memory is one answer (`max_bytes`, or one batch where it is larger); the
others wait in their sockets.

A leader that has moved, or is away, is looked up again, until a partition has had no answer for `timeout_ms`. An
offset that the leader does not have is handled as `on_out_of_range` says.
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
"""What an answer may take beyond the time that the leader may wait for records."""
_RETRY_MS = 100


class OutOfRange(Enum):
    """What to do where the leader does not have the wanted offset: fail, or go on at one end of the log."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


class Slice(NamedTuple):
    """What to read of a partition: offsets from `start` up to but not including `end`; None: whatever comes."""

    topic: str
    partition: int
    start: int
    end: int | None = None


class Fetched(NamedTuple):
    """Whole batches of a partition. The first may begin before `start`, the last may reach beyond `end`.

    `keep` refuses the batches of aborted transactions (read_committed only). `next_offset` is where reading goes on.
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
        """The records that are asked for, decoded: no control records, none that `keep` refuses."""
        for _, records in self.batches():
            yield from records

    def batches(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """The same, with the header of the batch that they come from."""
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

    __slots__ = ("end", "failing", "high_watermark", "leader", "position", "topic_partition")

    def __init__(self, slice_: Slice) -> None:
        self.topic_partition = TopicPartition(slice_.topic, slice_.partition)
        self.position = slice_.start
        self.end = slice_.end
        self.leader: Leader | None = None
        self.high_watermark = -1
        self.failing: Deadline | None = None
        """Set by the first failure in a row: when to give up."""

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end


class _InFlight(NamedTuple):
    """A Fetch without an answer. Its readings are found by topic name and, where that was sent, by topic id."""

    call: Call
    due: Deadline
    by_name: dict[tuple[str | Uuid, int], _Reading]

    @property
    def readings(self) -> list[_Reading]:
        return list(dict.fromkeys(self.by_name.values()))


class ConsumerFetcher:
    """Reads slices; a context manager. Iterate for batches until every slice with an end is read.

    With slices without an end, iteration does not stop; `poll` then says when nothing came.
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
        """`on_reset` is told (partition, wanted offset, new offset) when reading goes on elsewhere."""
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
        self._in_flight: dict[int, _InFlight] = {}
        self._ready: list[Fetched] = []
        self._resting = Deadline(0)

    def __enter__(self) -> ConsumerFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Fetched]:
        stalled: Deadline | None = None
        while not self.is_done:
            fetched = self.poll(self._max_wait_ms)
            if fetched is not None:
                stalled = None
                yield fetched
            elif stalled is None:
                stalled = Deadline(self._timeout_ms)
            elif stalled.is_past:
                self._complain_of_standstill()

    @property
    def is_done(self) -> bool:
        """Everything was handed out."""
        return not self._ready and all(reading.is_done for reading in self._readings.values())

    @property
    def at_end(self) -> bool:
        """Of all partitions, everything up to the high watermark that the last answer told was handed out."""
        return not self._ready and all(
            reading.is_done or reading.position >= reading.high_watermark >= 0 for reading in self._readings.values()
        )

    def poll(self, timeout_ms: int) -> Fetched | None:
        """The next batches, or None when there were none for `timeout_ms`. Raises `ApiError`."""
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
        """Give up what is in flight."""
        for node_id in list(self._in_flight):
            self._cluster.drop(node_id, _LANE)
        self._in_flight.clear()
        self._ready.clear()

    # -- sending

    def _send_all(self) -> None:
        """A Fetch to every leader that has none in flight and something to read."""
        if not self._resting.is_past:
            return
        busy = {id(reading) for flight in self._in_flight.values() for reading in flight.readings}
        idle = [r for r in self._readings.values() if not r.is_done and id(r) not in busy]
        lost = [reading.topic_partition for reading in idle if reading.leader is None]
        if lost:
            for partition, leader in self._cluster.leaders(lost).items():
                self._readings[partition].leader = leader
        by_node: dict[int, list[_Reading]] = {}
        for reading in idle:
            assert reading.leader is not None
            if reading.leader.node_id not in self._in_flight:
                by_node.setdefault(reading.leader.node_id, []).append(reading)
        for node_id, readings in by_node.items():
            try:
                self._send(node_id, readings)
            except ApiError as error:
                self._lost(node_id, readings, error)

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
        """Wait until one answer has come, and take it."""
        if not self._in_flight:
            select.select((), (), (), min(timeout_ms, self._resting.remaining_ms) / 1000)
            return
        connections = {self._cluster.connection(node_id, _LANE): node_id for node_id in self._in_flight}
        readable = select.select(list(connections), (), (), timeout_ms / 1000)[0]
        for connection in readable:
            node_id = connections[connection]
            flight = self._in_flight.pop(node_id)
            try:
                answer = connection.receive(flight.call, timeout_ms=self._max_wait_ms + _SLACK_MS)
                self._take(answer, flight)
            except ApiError as error:
                if not error.code.retriable:
                    raise
                self._lost(node_id, flight.readings, error)
        if not readable:
            self._give_up_the_silent()

    def _take(self, answer: FetchResponse, flight: _InFlight) -> None:
        if answer.error_code:
            raise refused(answer.error_code, "the fetch")
        for topic in answer.responses:
            for data in topic.partitions:
                reading = flight.by_name.get((topic.topic, data.partition_index)) or flight.by_name.get(
                    (topic.topic_id, data.partition_index)
                )
                if reading is not None:
                    self._take_partition(reading, data)

    def _take_partition(self, reading: _Reading, data: FetchResponsePartitionData) -> None:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset(reading)
        elif code:
            error = refused(code, f"partition {reading.topic_partition}")
            if not error.code.retriable:
                raise error
            self._step_back([reading], error)
        else:
            reading.failing = None
            reading.high_watermark = data.high_watermark
            self._hand_out(reading, data)

    def _hand_out(self, reading: _Reading, data: FetchResponsePartitionData) -> None:
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
        # To the end of the line: partitions that have much to say must not keep the others from speaking.
        partition = reading.topic_partition
        self._readings[partition] = self._readings.pop(partition)
        self._ready.append(
            Fetched(*partition, records[:size], start, reading.end, reading.position, data.high_watermark, keep)
        )

    # -- when it goes wrong

    def _lost(self, node_id: int, readings: list[_Reading], error: ApiError) -> None:
        """The connection to a leader broke."""
        self._cluster.drop(node_id, _LANE)
        self._in_flight.pop(node_id, None)
        self._step_back(readings, error)

    def _step_back(self, readings: list[_Reading], error: ApiError) -> None:
        """Look the leaders up again after a short rest. Raises `error` where that has gone on for too long."""
        for reading in readings:
            if reading.failing is None:
                reading.failing = Deadline(self._timeout_ms)
            elif reading.failing.is_past:
                raise error
            reading.leader = None
        self._cluster.forget(reading.topic_partition.topic for reading in readings)
        self._resting = Deadline(_RETRY_MS)

    def _give_up_the_silent(self) -> None:
        """A leader that does not even say that there is nothing has gone without a word."""
        for node_id, flight in list(self._in_flight.items()):
            if flight.due.is_past:
                error = refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {node_id}", "no answer to a fetch")
                self._lost(node_id, flight.readings, error)

    def _complain_of_standstill(self) -> None:
        """A slice's end may lie beyond what the log will ever have. Slices without an end may wait for ever."""
        for partition, reading in self._readings.items():
            if reading.end is not None and not reading.is_done:
                raise refused(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"partition {partition}",
                    f"offsets up to {reading.end} are wanted, but for {self._timeout_ms} ms there is nothing to read "
                    f"beyond {reading.position}. Is the end right, or does a transaction stay open?",
                )

    def _reset(self, reading: _Reading) -> None:
        from kalda.client.admin.offsets import offsets_at

        partition, wanted = reading.topic_partition, reading.position
        first = offsets_at(self._cluster, [partition], OffsetSpec.EARLIEST)[partition]
        last = offsets_at(self._cluster, [partition], OffsetSpec.LATEST)[partition]
        if self._on_out_of_range is OutOfRange.ERROR:
            raise refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"partition {partition}",
                f"offset {wanted} is not there; it has {first} to {last}. Start in that range",
            )
        reading.position = first if self._on_out_of_range is OutOfRange.EARLIEST else last
        if self._on_reset is not None:
            self._on_reset(partition, wanted, reading.position)


class _Keep:
    """Refuses batches by base offset. A class, so that it can be sent to another process."""

    __slots__ = ("_dropped",)

    def __init__(self, dropped: frozenset[int]) -> None:
        self._dropped = dropped

    def __call__(self, header: BatchHeader) -> bool:
        return header.base_offset not in self._dropped
