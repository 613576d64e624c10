"""Rows of Arrow tables as batches of a producer, without an object for a row.

A table's rows are known at once, so its batches are as large as a request may be, whatever `batch.size` says. They are
encoded into the producer's bounded memory: for each batch, the caller first gets a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kalda.base.configs.producer import ProducerConfig
from kalda.base.ids import TopicPartition
from kalda.clientcore.producing.accumulator import Accumulator, TopicState
from kalda.clientcore.producing.producer_batch import ProducerBatch
from kalda.clientcore.producing.producer_errors import RecordTooLarge
from kalda.records.batch import HEADER_SIZE

_LARGEST_BATCH_BYTES = 1_000_000
"""Below the default of the topics' max.message.bytes."""
_LEAST_BUFFERS = 4
"""In the producer's memory, so that batches are encoded while others are sent."""


def table_batch_bytes(config: ProducerConfig) -> int:
    """The size of a table's batches."""
    largest = min(config.max_request_size, _LARGEST_BATCH_BYTES, config.buffer_memory // _LEAST_BUFFERS)
    return min(max(config.batch_size, largest), config.buffer_memory)


class Columns(NamedTuple):
    """Which columns a table's records come from; None: the column of the usual name (`key`, `value`, `timestamp`,
    `headers`) where there is one."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    headers: str | None = None


class Rows:
    """Rows of one partition, and how far they are encoded."""

    def __init__(self, part: Any, partition: int | None, now_ms: int, config: ProducerConfig) -> None:
        from kalda.records.arrow import RowEncoder

        self.partition = partition
        """None: each batch goes to the sticky partition of its moment."""
        self._encoder = RowEncoder(part, now_ms)
        self._next = 0
        self._batch_bytes = table_batch_bytes(config)
        self._max_bytes = min(config.max_request_size, config.buffer_memory)

    @property
    def is_left(self) -> bool:
        """Whether rows are left to encode."""
        return self._next < self._encoder.rows

    def buffer_bytes(self) -> int:
        """The size of the next batch's buffer. Raises `RecordTooLarge`."""
        one = HEADER_SIZE + self._encoder.bytes_from(self._next, self._next + 1)
        if one > self._max_bytes:
            raise RecordTooLarge(f"row {self._next} is {one} bytes when serialized; the limit is {self._max_bytes}")
        left = HEADER_SIZE + self._encoder.bytes_from(self._next)
        return max(one, min(left, self._batch_bytes)) if left < self._batch_bytes // 2 else max(one, self._batch_bytes)

    def encode(self, buffer: bytearray, topic: str, partition: int, now_ms: int) -> ProducerBatch:
        """The next batch, in `buffer`."""
        end, following, base_timestamp, max_timestamp = self._encoder.encode(buffer, self._next)
        assert following > self._next, "the buffer has room for a row"
        batch = ProducerBatch(TopicPartition(topic, partition), buffer, len(buffer), now_ms)
        batch.position = end
        batch.count = following - self._next
        batch.largest_record = HEADER_SIZE + self._encoder.largest_row_bytes
        batch.base_timestamp, batch.max_timestamp = base_timestamp, max_timestamp
        batch.is_open = False
        self._next = following
        return batch


def append_next(
    rows: Rows, buffer: bytearray, accumulator: Accumulator, topic: TopicState, now_ms: int
) -> ProducerBatch:
    """Queue the next batch of rows, in `buffer` of the pool, which has it again where this raises."""
    batch: ProducerBatch | None = None
    try:
        target = next_sticky(accumulator, topic) if rows.partition is None else rows.partition
        batch = rows.encode(buffer, topic.name, target, now_ms)
        accumulator.append_sealed(batch, topic, target)
    except BaseException:
        if batch is None or not batch.order:
            with accumulator.lock:
                accumulator.pool.give_back(buffer)
        raise
    return batch


def parts_of(
    table: Any, columns: Columns, partition: int | None, partition_by: str | None, partitions: int, sticky: int
) -> Iterator[tuple[Any, int | None]]:
    """Record batches with the columns of a record, each with its partition; None: the sticky one.

    Without `partition` and `partition_by`, the key chooses, and without one the sticky partitioner; `sticky` is the
    partition of rows whose key is null. Raises `TypeError` for what is no table, and `KeyError` for a column that it
    lacks. Without values, all rows would delete their keys: a table of such has a column of nulls.
    """
    import pyarrow as pa

    from kalda.records.arrow import key_partitions

    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise TypeError(f"a pyarrow.Table or RecordBatch is expected, not {type(table).__name__}")
    if columns.value is None and "value" not in table.schema.names:
        raise KeyError(f"the table has no column 'value'; name the one of the values, of {table.schema.names}")
    for part in table.combine_chunks().to_batches() if isinstance(table, pa.Table) else [table]:
        found: dict[str, Any] = {}
        for name, given in columns._asdict().items():
            index = part.schema.get_field_index(given or name)
            if index >= 0:
                found[name] = part.column(index)
            elif given is not None:
                raise KeyError(f"the table has no column {given!r} for the {name}; it has {part.schema.names}")
        records = pa.RecordBatch.from_arrays(list(found.values()), names=list(found))
        if partition is not None:
            yield records, partition
            continue
        if partition_by is not None and part.schema.get_field_index(partition_by) < 0:
            raise KeyError(f"the table has no column {partition_by!r} to partition by; it has {part.schema.names}")
        by = part.column(part.schema.get_field_index(partition_by)) if partition_by is not None else found.get("key")
        if by is None or pa.types.is_null(by.type):
            yield records, None
            continue
        order, starts = key_partitions(by, partitions, sticky)
        for index in range(partitions):
            first, last = starts[index], starts[index + 1]
            if last - first == part.num_rows:
                yield records, index
            elif last > first:
                rows = pa.Array.from_buffers(pa.int64(), last - first, [None, pa.py_buffer(order[first:last])])
                yield records.take(rows), index


def next_sticky(accumulator: Accumulator, topic: TopicState) -> int:
    """A partition for a batch of rows without a key."""
    with accumulator.lock:
        return topic.partitioner.next_partition(accumulator.candidates(topic.name))
