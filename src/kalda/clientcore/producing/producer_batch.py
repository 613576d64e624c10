"""A producer's batch: the records of one partition that are sent together, and what becomes of them.

Records are appended while the batch is open (`Records`). It is then sealed: the header is written, and the records are
compressed. A batch is done once:

    open       → succeeded   the records are in the log
    open       → failed      they are not, or it is not known whether they are
    open       → aborted     the producer was closed, or its transaction aborted
    open       → split       it was too large: its records are in other batches
    failed, aborted → succeeded   a late answer, which is logged and changes nothing
    failed, aborted → failed      ignored

Anything after `succeeded` is an error of this program.

Not obvious:

- An open batch's memory is replaced under the accumulator's lock while the batch is closed: other threads append to
  it without the lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.ids import TopicPartition
from kalda.protocol.varint import encode_signed
from kalda.records import appending
from kalda.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    advance_sequence,
    write_crc,
    write_fields,
)
from kalda.records.builder import decode_section
from kalda.records.compression import Compression, compress

log = logging.getLogger(__name__)


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class RecordMetadata(_Place):
    """Where a record is: a tuple of topic, partition, offset and timestamp. `offset` is -1 where it is unknown: with
    acks=0, and for a duplicate."""

    serialized_key_size: int = -1
    """Bytes of the record's key as it was sent; -1: it has none."""
    serialized_value_size: int = -1
    """Likewise of its value."""


def unwritten(topic: str, partition: int | None) -> RecordMetadata:
    """Of a record that is in no log; its partition is -1 where none was chosen."""
    return RecordMetadata(topic, -1 if partition is None else partition, -1, -1)


class WrittenBatch(NamedTuple):
    """Where consecutive records are. `base_offset` is -1 where it is unknown."""

    topic: str
    partition: int
    base_offset: int
    records_count: int


class FinalState(Enum):
    """What became of a batch."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"
    SPLIT = "split"


class ProducerBatch(appending.Records):
    """One batch. Invariant: where `is_done`, it has a final state, and the callbacks of its records were called.

    What is the same for every new batch is set in the class: a batch of one record costs less that way.
    """

    io: Any = None
    """What a thread may run that waits for this batch; the accumulator's `io`."""
    attempts = 0
    backoff_ms = -1
    """The pause before the next attempt; -1: not chosen yet."""
    in_retry = False
    """It was sent before, and is queued again."""
    retried_for = ""
    """Why its last attempt failed."""
    is_in_flight = False
    """It is in a request: its memory may be read."""
    is_tracked = False
    """It is among the sender's batches whose order of reports is kept."""
    leader_epoch = -1
    """Of the leader to which it was sent last."""
    leader_changed = False
    """It is retried with another leader than before: no backoff."""
    producer_id = NO_PRODUCER_ID
    producer_epoch = NO_PRODUCER_EPOCH
    base_sequence = NO_SEQUENCE
    is_transactional = False
    sequence_was_reset = False
    sealed: memoryview | bytearray | None = None
    """The bytes to send."""
    _header_is_stale = True
    order: tuple[int, ...] = ()
    """The place among the batches of the partition, which a retry does not change. Parts of a split batch have its
    order and one number more."""
    final_state: FinalState | None = None
    is_done = False
    is_delivered = False
    """The callbacks of its records have been taken."""
    base_offset = -1
    log_append_time_ms = -1
    error: Exception | None = None
    record_errors: Mapping[int, Exception] = MappingProxyType({})
    """Where it failed because of single records (KIP-467): their errors by index, and that of the others by -1."""
    parts: Sequence[tuple[int, ProducerBatch]] = ()
    """Where it was split: the index of the first record in each, and the batches."""
    waiter: Any = None
    """What the shell's callers wait on until it is done."""

    def __init__(self, topic_partition: TopicPartition, buffer: bytearray, limit: int, now_ms: int) -> None:
        super().__init__(buffer, limit)
        self.most_bytes = limit
        """The size up to which it takes records, some of them in a larger buffer than it has now."""
        self.topic_partition = topic_partition
        self.buffer: bytearray | None = buffer
        """The pool's memory; None once it is given back."""
        self.created_ms = self.last_attempt_ms = self.drained_ms = now_ms

    # -- before it is sent

    @property
    def size_bytes(self) -> int:
        """As sent, or before that as far as it is known: uncompressed."""
        return self.position if self.sealed is None else len(self.sealed)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more records."""
        return not self.is_open or self.position >= self.most_bytes

    @property
    def compression_ratio(self) -> float:
        """Compressed bytes to uncompressed ones, without the header, once it is sealed."""
        assert self.sealed is not None, "a batch is compressed when it is sealed"
        return (len(self.sealed) - HEADER_SIZE) / max(1, self.position - HEADER_SIZE)

    def move_to(self, buffer: bytearray) -> None:
        """Go on in a larger buffer. The caller holds the accumulator's lock."""
        self.is_open = False  # other threads append without the lock
        buffer[: self.position] = memoryview(self.data)[: self.position]
        self.data, self.buffer = buffer, buffer
        self.limit = min(self.most_bytes, len(buffer))
        self.is_open = True

    @property
    def has_sequence(self) -> bool:
        """Whether it was numbered; then it keeps its number, so that the broker recognises a duplicate."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record."""
        return advance_sequence(self.base_sequence, self.count - 1)

    def set_producer(self, producer_id: int, epoch: int, base_sequence: int, is_transactional: bool) -> None:
        """Number it. The header is written by `seal`."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.base_sequence, self.is_transactional = base_sequence, is_transactional
        self._header_is_stale = True

    def seal(self, codec: Compression, level: int | None) -> None:
        """Compress the records, at the first time, and write the header."""
        if not self._header_is_stale:
            return
        if self.sealed is None:
            view = memoryview(self.data)[: self.position]
            if codec is Compression.NONE:
                self.sealed = view
            else:
                packed = bytearray(HEADER_SIZE)
                packed += compress(codec, view[HEADER_SIZE:], level)
                self.sealed = packed
        sealed, count = self.sealed, self.count
        size = len(sealed)
        attributes = codec | (TRANSACTIONAL_BIT if self.is_transactional else 0)
        write_fields(
            sealed, 0, 0, size - LOG_OVERHEAD, NO_LEADER_EPOCH, MAGIC, 0, attributes, count - 1, self.base_timestamp,
            self.max_timestamp, self.producer_id, self.producer_epoch, self.base_sequence, count,
        )  # fmt: skip
        write_crc(sealed, 0, size)
        self._header_is_stale = False

    # -- when it is done

    def finish(
        self, state: FinalState, *, base_offset: int = -1, log_append_time_ms: int = -1, error: Exception | None = None
    ) -> bool:
        """Set the final state. False where it had one already. `is_done` follows after the callbacks."""
        if self.final_state is not None:
            assert self.final_state not in (FinalState.SUCCEEDED, FinalState.SPLIT), (
                f"a batch of {self.topic_partition} that {self.final_state.value} cannot be {state.value}"
            )
            if state is FinalState.SUCCEEDED:
                log.warning(
                    "%s: %d records were written at offset %d after their batch had been reported as %s",
                    self.topic_partition, self.count, base_offset, self.final_state.value,
                )  # fmt: skip
            return False
        self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
        self.final_state = state
        return True

    def error_of(self, index: int) -> Exception | None:
        """Why a record of this batch was not written; None where it was."""
        return self.record_errors.get(index, self.record_errors[-1]) if self.record_errors else self.error

    def outcome_of(self, ticket: appending.Ticket) -> tuple[RecordMetadata, Exception | None]:
        """What is reported of a record of this batch: where it is, or would be, and its error."""
        error = self.error_of(ticket.index)
        if error is not None:
            return unwritten(*self.topic_partition), error
        return self.record_metadata(ticket.index, ticket), None

    def record_metadata(self, index: int, ticket: appending.Ticket) -> RecordMetadata:
        """Where a record of this batch is, once that succeeded."""
        topic, partition = self.topic_partition
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        timestamp_ms = ticket.timestamp if self.log_append_time_ms < 0 else self.log_append_time_ms
        found = new_tuple(RecordMetadata, (topic, partition, offset, timestamp_ms))
        if ticket.key_size >= 0:
            found.serialized_key_size = ticket.key_size
        if ticket.value_size >= 0:
            found.serialized_value_size = ticket.value_size
        return found

    def written(self) -> WrittenBatch:
        """Where its records are, once it succeeded."""
        return WrittenBatch(*self.topic_partition, self.base_offset, self.count)

    def split(self, max_bytes: int, codec: Compression) -> list[ProducerBatch]:
        """Its records in batches of at most `max_bytes` each, or of one record."""
        section = memoryview(self.data)[HEADER_SIZE : self.position]
        header = BatchHeader(
            0, 0, 0, MAGIC, 0, 0, self.count - 1, self.base_timestamp, self.max_timestamp, -1, -1, -1, self.count
        )
        tickets = {ticket.index: ticket for ticket in self.tickets or ()}
        parts: list[ProducerBatch] = []
        firsts: list[tuple[int, ProducerBatch]] = []
        for index, record in enumerate(decode_section(section, header)):
            tail = encode_headers(record.headers)
            ticket = tickets.get(index) or appending.Ticket()
            part = parts[-1] if parts else None
            if part is None or not part.put(record.timestamp, record.key, record.value, tail, ticket):
                if part is not None:
                    part.is_open = False
                size = len(record.key or b"") + len(record.value or b"") + len(tail) + appending.RECORD_OVERHEAD
                room = max(max_bytes, HEADER_SIZE + size)
                part = ProducerBatch(self.topic_partition, bytearray(room), max_bytes, self.created_ms)
                part.buffer = None  # not the pool's
                part.io = self.io
                part.order = (*self.order, len(parts))
                parts.append(part)
                firsts.append((index, part))
                put = part.put(record.timestamp, record.key, record.value, tail, ticket)
                assert put, "the first record of a part fits"
            ticket.batch = part
        for part in parts:
            part.is_open = False
        self.parts = firsts
        return parts

    def holder_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that has the record now, and its index there."""
        batch = self
        while batch.final_state is FinalState.SPLIT:
            first, batch = next(part for part in reversed(batch.parts) if part[0] <= index)
            index -= first
        return batch, index


def encode_headers(headers: object) -> bytes:
    """The headers of a record as on the wire: the count, then each key and value. Takes pairs, or a mapping."""
    if not headers:
        return appending.NO_HEADERS
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)  # type: ignore[call-overload]
    parts = [encode_signed(len(pairs))]
    for pair in pairs:
        try:
            key, value = pair
            name, content = key.encode(), None if value is None else bytes(memoryview(value))
        except (TypeError, ValueError, AttributeError) as error:
            raise TypeError(f"header {pair!r}: a pair of a str and bytes, or None, is expected") from error
        parts += (encode_signed(len(name)), name)
        if content is None:
            parts.append(encode_signed(-1))
        else:
            parts += (encode_signed(len(content)), content)
    return b"".join(parts)


# The memory of a producer's batches: bounded, reused, and given to those who wait in the order of their coming.
#
#     take(size)          a buffer, or None where there is too little memory, or others wait
#     wait(size, wake)    stand in line; `wake` is called when `Waiter.buffer` has been set
#     cancel(waiter)      leave the line; what had been set aside for it goes to those behind it
#     give_back(buffer)   the memory of a buffer is free
#
# Buffers of the sizes `kept_bytes` are kept for reuse; others are counted only. The caller makes sure that no two
# calls run at once.
#
# Invariant: free memory + memory set aside for waiters + memory of buffers in use == `total_bytes`, and none is
# negative. So memory of a waiter that gives up is not lost.


class Waiter:
    """One that waits for memory."""

    __slots__ = ("buffer", "reserved_bytes", "size_bytes", "wake")

    def __init__(self, size_bytes: int, wake: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.wake = wake
        self.reserved_bytes = 0
        """Memory set aside so far."""
        self.buffer: bytearray | None = None
        """Set when all of the memory is there."""


class BufferPool:
    """`total_bytes` of memory."""

    def __init__(self, total_bytes: int, *kept_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._free: dict[int, list[bytearray]] = {size: [] for size in kept_bytes}
        """Buffers for reuse, by their size."""
        self._kept_bytes = 0
        """The memory of the buffers in `_free`."""
        self._unused_bytes = total_bytes
        """Free memory that is not in `_free`."""
        self._waiters: deque[Waiter] = deque()

    @property
    def available_bytes(self) -> int:
        """Free memory."""
        return self._unused_bytes + self._kept_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of that size, or None. Raises `ValueError` for more than there is in all."""
        if size_bytes > self.total_bytes:
            raise ValueError(f"{size_bytes} bytes are more than the {self.total_bytes} of the whole pool")
        kept = self._free.get(size_bytes)
        if kept and not self._waiters:
            self._kept_bytes -= size_bytes
            return kept.pop()
        if self._waiters or self.available_bytes < size_bytes:
            return None
        self._free_up(size_bytes)
        self._unused_bytes -= size_bytes
        return bytearray(size_bytes)

    def wait(self, size_bytes: int, wake: Callable[[], None]) -> Waiter:
        """Stand in line. `wake` may be called before this returns."""
        if size_bytes > self.total_bytes:
            raise ValueError(f"{size_bytes} bytes are more than the {self.total_bytes} of the whole pool")
        waiter = Waiter(size_bytes, wake)
        self._waiters.append(waiter)
        self._serve()
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Leave the line; a buffer that was set already is given back."""
        if waiter.buffer is not None:
            buffer, waiter.buffer = waiter.buffer, None
            self.give_back(buffer)
            return
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._unused_bytes += waiter.reserved_bytes
            waiter.reserved_bytes = 0
            self._serve()

    def give_back(self, buffer: bytearray) -> None:
        """The buffer's memory is free. Each buffer is given back once."""
        size_bytes = len(buffer)
        kept = self._free.get(size_bytes)
        if kept is None:
            self._unused_bytes += size_bytes
        else:
            kept.append(buffer)
            self._kept_bytes += size_bytes
        assert self._unused_bytes + self._kept_bytes <= self.total_bytes, "a buffer was given back twice"
        if self._waiters:
            self._serve()

    def _serve(self) -> None:
        """Give free memory to the first in line, until it has enough or none is left; then to the next."""
        while self._waiters:
            first = self._waiters[0]
            missing_bytes = first.size_bytes - first.reserved_bytes
            kept = None if first.reserved_bytes else self._take_kept(first.size_bytes)
            if kept is not None:
                first.buffer = kept
            else:
                self._free_up(missing_bytes)
                taken_bytes = min(missing_bytes, self._unused_bytes)
                self._unused_bytes -= taken_bytes
                first.reserved_bytes += taken_bytes
                if first.reserved_bytes < first.size_bytes:
                    return
                first.reserved_bytes = 0
                first.buffer = bytearray(first.size_bytes)
            self._waiters.popleft()
            first.wake()

    def _take_kept(self, size_bytes: int) -> bytearray | None:
        free = self._free.get(size_bytes)
        if not free:
            return None
        self._kept_bytes -= size_bytes
        return free.pop()

    def _free_up(self, size_bytes: int) -> None:
        """Give up kept buffers until that much memory is unused, or none is kept."""
        for kept_bytes, free in self._free.items():
            while free and self._unused_bytes < size_bytes:
                free.pop()
                self._kept_bytes -= kept_bytes
                self._unused_bytes += kept_bytes
