"""Spark's columns out of fetched batches, as record batches that Spark takes without a look at the rows.

The types are exactly those that PySpark derives from the schema of Spark's own Kafka source: timestamps in
microseconds of UTC, headers null where a record has none. Only the columns that the schema asks for are made.

A task's first rows wait for what is imported here, and every worker holds it. So arrays are made of buffers: Arrow's
`scalar`, `repeat`, `array` and `cast` import pandas or `pyarrow.compute`, which only headers are worth.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from kalda.client.consumer_fetcher import Fetched
from kalda.records import codec
from kalda.records.arrow import iter_record_batches
from kalda.records.batch import Buffer, TimestampType, iter_batches

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Decompressed bytes in a record batch, or one of Kafka's batches where that is larger."""

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}


class SparkColumns:
    """One task's columns, of a schema whose fields are among `TYPES`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._makers = [_MAKERS[field.name] for field in schema]
        self._constants: dict[str | int, pa.Array] = {}

    def of(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """The records that are asked for, as record batches, none empty.

        Raises `CorruptRecord`, and `ValueError` for what Spark's types cannot hold.
        """
        for timestamp_type, buffer in _runs(fetched.buffer):
            for batch in iter_record_batches(
                buffer, start_offset=fetched.start, keep=fetched.keep, chunk_bytes=CHUNK_BYTES
            ):
                rows = _rows_before(batch, fetched.end)
                if rows:
                    source = _Source(
                        batch.slice(0, rows), fetched.topic, fetched.partition, int(timestamp_type), self._constants
                    )
                    columns = [make(source) for make in self._makers]
                    yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _runs(buffer: memoryview) -> Iterator[tuple[TimestampType, Buffer]]:
    """The buffer in pieces whose batches have one timestamp type: mostly it is one piece."""
    begun, current = 0, None
    end = 0
    for pos, header in iter_batches(buffer):
        if header.timestamp_type is not current:
            if current is not None:
                yield current, buffer[begun:pos]
            begun, current = pos, header.timestamp_type
        end = pos + header.size_bytes
    if current is not None:
        yield current, buffer[begun:end]


def _rows_before(batch: pa.RecordBatch, end: int | None) -> int:
    offsets = batch.column("offset")
    rows = len(offsets)
    if end is None or offsets[rows - 1].as_py() < end:
        return rows
    return bisect_left(range(rows), end, key=lambda row: offsets[row].as_py())


class _Source:
    """Decoded records, and what they have in common."""

    __slots__ = ("batch", "constants", "partition", "timestamp_type", "topic")

    def __init__(
        self,
        batch: pa.RecordBatch,
        topic: str,
        partition: int,
        timestamp_type: int,
        constants: dict[str | int, pa.Array],
    ) -> None:
        self.batch = batch
        self.topic = topic
        self.partition = partition
        self.timestamp_type = timestamp_type
        self.constants = constants

    def same(self, value: str | int) -> pa.Array:
        """A column of one value: part of one that was made before, where that is long enough."""
        rows = self.batch.num_rows
        made = self.constants.get(value)
        if made is None or len(made) < rows:
            made = self.constants[value] = _strings(value, rows) if isinstance(value, str) else _ints(value, rows)
        return made if len(made) == rows else made.slice(0, rows)


def _ints(value: int, rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(array("i", (value,)) * rows)])


def _strings(value: str, rows: int) -> pa.Array:
    data = value.encode()
    ends = array("i", range(0, len(data) * rows + 1, len(data)))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data * rows)])


def _timestamps(source: _Source) -> pa.Array:
    column = source.batch.column("timestamp")
    rows = len(column)
    millis = memoryview(column.buffers()[1]).cast("B").cast("q")[column.offset : column.offset + rows]
    micros = pa.allocate_buffer(8 * rows)
    if not codec.to_micros(millis, memoryview(micros).cast("B").cast("q")):
        raise ValueError(
            f"{source.topic}-{source.partition}: a timestamp is too far from 1970 for Spark's microseconds. Leave the "
            f"column out by giving a schema without it"
        )
    return pa.Array.from_buffers(TYPES["timestamp"], rows, [None, micros])


def _headers(source: _Source) -> pa.Array:
    """Null where there are none, as Spark's own source has it."""
    column = source.batch.column("headers")
    rows = len(column)
    if len(column.values) == 0:
        return pa.nulls(rows, TYPES["headers"])
    import pyarrow.compute as pc

    lengths = column.value_lengths()
    if pc.max(lengths).as_py() == 0:
        return pa.nulls(rows, TYPES["headers"])
    entries = column.flatten()
    entries = pa.StructArray.from_arrays([entries.field("key"), entries.field("value")], fields=list(HEADER_TYPE))
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(starts, entries, type=TYPES["headers"], mask=pc.equal(lengths, 0))


_MAKERS: Final[dict[str, Callable[[_Source], pa.Array]]] = {
    "key": lambda source: source.batch.column("key"),
    "value": lambda source: source.batch.column("value"),
    "topic": lambda source: source.same(source.topic),
    "partition": lambda source: source.same(source.partition),
    "offset": lambda source: source.batch.column("offset"),
    "timestamp": _timestamps,
    "timestampType": lambda source: source.same(source.timestamp_type),
    "headers": _headers,
}
