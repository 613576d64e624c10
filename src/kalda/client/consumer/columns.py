"""The columns of Spark's Kafka source from fetched batches, as Arrow record batches without a Python object a record.

The types are exactly those that PySpark derives from the schema of Spark's own Kafka source: timestamps in
microseconds of UTC, headers null where a record has none. Only the columns in the schema are made.

Imports here delay a task's first rows, and use memory in every worker. So arrays are made from buffers: Arrow's
`scalar`, `repeat`, `array` and `cast` import pandas or `pyarrow.compute`, which is done for headers only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from kalda.base.errors import CorruptRecord
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.consumer_errors import UndecodableRecord
from kalda.clientcore.consuming.fetcher import Taken
from kalda.records import codec
from kalda.records.arrow import iter_record_batches
from kalda.records.batch import BatchHeader, Buffer, TimestampType, iter_batches

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""The decompressed size of an Arrow record batch; larger where one of Kafka's batches is larger."""

_LAST_MS: Final = (2**63 - 1) // 1000
"""The largest time that Spark's microseconds hold, and without its sign the smallest."""
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


class Batches(Protocol):
    """Whole batches of a partition, such as a consumer's `Taken`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None: ...
    @property
    def keep(self) -> Callable[[BatchHeader], bool] | None: ...


class SparkColumns:
    """One task's columns, of a schema whose fields are among `TYPES`."""

    def __init__(
        self, schema: pa.Schema, chunk_bytes: int = CHUNK_BYTES, *, overflowing_times_are_null: bool = False
    ) -> None:
        """A new record batch is begun where one has `chunk_bytes`, decompressed. A timestamp that microseconds do not
        hold is an error, or null."""
        self._schema = schema
        self._overflowing_times_are_null = overflowing_times_are_null
        self._chunk_bytes = chunk_bytes
        self._makers = [_MAKERS[field.name] for field in schema]
        self._constants: dict[str | int, pa.Array] = {}
        """Columns of one value that were made already, by the value."""

    def of(self, fetched: Batches) -> Iterator[pa.RecordBatch]:
        """The requested records as record batches, none of them empty.

        Raises `CorruptRecord`, and `ValueError` for a value outside Spark's types.
        """
        for timestamp_type, buffer in _runs(fetched.buffer):
            for batch in iter_record_batches(
                buffer, start_offset=fetched.start, keep=fetched.keep, chunk_bytes=self._chunk_bytes
            ):
                rows = _rows_before(batch, fetched.end)
                if rows:
                    source = _Source(
                        batch.slice(0, rows),
                        fetched.topic,
                        fetched.partition,
                        int(timestamp_type),
                        self._constants,
                        self._overflowing_times_are_null,
                    )
                    columns = [make(source) for make in self._makers]
                    yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _runs(buffer: memoryview) -> Iterator[tuple[TimestampType, Buffer]]:
    """The buffer in pieces whose batches have the same timestamp type; usually it is one piece."""
    start, current = 0, None
    end = 0
    for pos, header in iter_batches(buffer):
        if header.timestamp_type is not current:
            if current is not None:
                yield current, buffer[start:pos]
            start, current = pos, header.timestamp_type
        end = pos + header.size_bytes
    if current is not None:
        yield current, buffer[start:end]


def _rows_before(batch: pa.RecordBatch, end: int | None) -> int:
    offsets = batch.column("offset")
    rows = len(offsets)
    if end is None or offsets[rows - 1].as_py() < end:
        return rows
    return bisect_left(range(rows), end, key=lambda row: offsets[row].as_py())


class _Source:
    """Decoded records of one partition, with the values of the constant columns."""

    __slots__ = ("batch", "constants", "overflowing_times_are_null", "partition", "timestamp_type", "topic")

    def __init__(
        self,
        batch: pa.RecordBatch,
        topic: str,
        partition: int,
        timestamp_type: int,
        constants: dict[str | int, pa.Array],
        overflowing_times_are_null: bool,
    ) -> None:
        self.batch = batch
        self.topic = topic
        self.partition = partition
        self.timestamp_type = timestamp_type
        self.constants = constants
        self.overflowing_times_are_null = overflowing_times_are_null

    def same(self, value: str | int) -> pa.Array:
        """A column of one value: a slice of one that was made before, if that is long enough."""
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
    if codec.to_micros(millis, memoryview(micros).cast("B").cast("q")):
        return pa.Array.from_buffers(TYPES["timestamp"], rows, [None, micros])
    held = [-_LAST_MS <= each <= _LAST_MS for each in millis]
    if not source.overflowing_times_are_null:
        row = held.index(False)
        raise ValueError(
            f"{source.topic}-{source.partition}, offset {source.batch.column('offset')[row].as_py()}: the timestamp "
            f"{millis[row]} is too far from 1970 for Spark's microseconds. It is to be in milliseconds: the producer "
            f"may have written microseconds or nanoseconds. In Spark, option kalda.timestamp.overflow=null makes it "
            f"null, and a schema without the column timestamp leaves it out"
        )
    return pa.array(
        [each * 1000 if fits else None for each, fits in zip(millis, held, strict=True)], TYPES["timestamp"]
    )


def _headers(source: _Source) -> pa.Array:
    """The headers; null where a record has none, as in Spark's own source."""
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


class Decoded(NamedTuple):
    """`batch` has the records before the first one that cannot be decoded, None where there is none. `rest` has the
    offsets from which records are not in it, and `failure` says why."""

    batch: pa.RecordBatch | None
    rest: dict[TopicPartition, int]
    failure: UndecodableRecord | None


def to_one_batch(taken: Sequence[Taken]) -> Decoded:
    """The records of `taken` in one record batch of all columns."""
    batches: list[pa.RecordBatch] = []
    for index, each in enumerate(taken):
        try:
            batches += list(ALL_COLUMNS.of(each))
        except (CorruptRecord, ValueError) as error:
            before, offset = _before_damage(each)
            partition = TopicPartition(each.topic, each.partition)
            rest = {TopicPartition(later.topic, later.partition): later.start for later in reversed(taken[index + 1 :])}
            failure = UndecodableRecord(partition, offset, error)
            failure.__cause__ = error
            return Decoded(_joined(batches + before), rest | {partition: offset}, failure)
    return Decoded(_joined(batches), {}, None)


def _before_damage(taken: Taken) -> tuple[list[pa.RecordBatch], int]:
    """The records of the batches before the first one that cannot be decoded, and the offset at which it begins."""
    found: list[pa.RecordBatch] = []
    for pos, header in iter_batches(taken.buffer):
        try:
            found += list(ALL_COLUMNS.of(taken._replace(buffer=taken.buffer[pos : pos + header.size_bytes])))
        except (CorruptRecord, ValueError):
            return found, max(taken.start, header.base_offset)
    return found, taken.start


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    if len(batches) < 2:
        return batches[0] if batches else None
    return pa.concat_batches(batches)


ALL_COLUMNS: Final = SparkColumns(
    pa.schema([pa.field(name, kind) for name, kind in TYPES.items()]), chunk_bytes=64 * 1024 * 1024
)
"""With chunks as large as a consumer's buffers: to join them would copy all records once more."""
