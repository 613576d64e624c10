"""Batches from and to Arrow columns: offset, timestamp, key, value, headers. Needs the `arrow` extra.

Made for millions of records: one costs some nanoseconds and no Python object. Timestamps are Kafka's milliseconds
unchanged, so a record without a timestamp (-1) has that of one millisecond before 1970.

The bytes of a column are addressed by int32, so the size of a record batch is bounded: `iter_record_batches` starts a
new one where the bound is reached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from kalda.base.errors import CorruptRecord
from kalda.records import appending, codec
from kalda.records.batch import (
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    check_crc,
    iter_batches,
)
from kalda.records.builder import in_current_format, records_section
from kalda.records.compression import MAX_DECOMPRESSED_BYTES

# Columns as Arrow lays them out, without Arrow, and the sections of records that they are decoded from.

Ints: TypeAlias = "memoryview | array[int]"


class Column(NamedTuple):
    """A column of bytes."""

    ends: Ints
    """Where in `data` each value ends, as int32: one more than there are rows, the first where the first row begins."""
    data: Buffer
    valid: Buffer = b""
    """A bit for each value that is not null; empty where none is null."""
    bit: int = 0
    """The position of the first row in `valid`."""


class Section(NamedTuple):
    """The records of one batch, decompressed."""

    data: Buffer
    records: int
    base_offset: int
    base_timestamp: int
    append_timestamp: int | None
    """That of all records, in milliseconds, where the broker has stamped them."""


HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("item", HEADER, nullable=False)), nullable=False),
    ]
)

CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Decompressed bytes after which a new record batch is started."""

_MAX_COLUMN_BYTES: Final = 2**31 - 1
_RECORD_OVERHEAD: Final = 36
_NO_HEADERS: Final = pa.nulls(0, HEADER)  # `pa.array` would import pandas, which takes half a second
_EMPTY: Final = memoryview(b"")
_NO_ENDS: Final = memoryview(b"").cast("i")


def iter_record_batches(
    buf: Buffer,
    *,
    start_offset: int | None = None,
    keep: Callable[[BatchHeader], bool] | None = None,
    check_crcs: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of the whole batches in `buf` as record batches of `SCHEMA`, none of them empty.

    Left out are control batches, batches for which `keep` is false (those of aborted transactions), and records before
    `start_offset`, because a fetch may start in the middle of a batch. Raises `CorruptRecord`.
    """
    sections: list[Section] = []
    size = 0
    for pos, header in iter_batches(buf):
        if check_crcs:  # first: a damaged header may look like that of a batch which is left out
            check_crc(buf, pos, header)
        if header.is_control or header.records_count == 0 or (keep is not None and not keep(header)):
            continue
        if start_offset is not None and header.last_offset < start_offset:
            continue
        if header.is_legacy:
            header, current = in_current_format(header, buf, pos, max_decompressed_bytes)
            data, start, end = records_section(current, 0, header)
        else:
            data, start, end = records_section(buf, pos, header, max_decompressed_bytes)
        if not 0 < header.records_count <= (end - start) // codec.MIN_RECORD_SIZE:
            raise CorruptRecord(f"{end - start} bytes cannot hold the {header.records_count} records of the header")
        if sections and size + end - start > chunk_bytes:
            yield from _decode(sections, size, start_offset)
            sections, size = [], 0
        append_timestamp = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
        section = memoryview(data)[start:end]
        sections.append(
            Section(section, header.records_count, header.base_offset, header.base_timestamp, append_timestamp)
        )
        size += end - start
    if sections:
        yield from _decode(sections, size, start_offset)


def _decode(sections: list[Section], size: int, start_offset: int | None) -> Iterator[pa.RecordBatch]:
    rows = sum(section.records for section in sections)
    offsets, timestamps = pa.allocate_buffer(8 * rows), pa.allocate_buffer(8 * rows)
    key_ends, value_ends, header_ends = (pa.allocate_buffer(4 * rows + 4) for _ in range(3))
    key_data, value_data = (pa.allocate_buffer(size, resizable=True) for _ in range(2))
    key_valid, value_valid = (bytearray(b"\xff") * (rows // 8 + 1) for _ in range(2))
    offset_view = memoryview(offsets).cast("B").cast("q")
    key_end_view, value_end_view, header_end_view = (
        memoryview(ends).cast("B").cast("i") for ends in (key_ends, value_ends, header_ends)
    )
    null_keys, null_values, name_bytes, content_bytes = codec.decode_columns(
        sections,
        offset_view,
        memoryview(timestamps).cast("B").cast("q"),
        Column(key_end_view, memoryview(key_data).cast("B"), key_valid),
        Column(value_end_view, memoryview(value_data).cast("B"), value_valid),
        header_end_view,
    )
    key_data.resize(key_end_view[rows], shrink_to_fit=True)
    value_data.resize(value_end_view[rows], shrink_to_fit=True)
    entries = _decode_headers(sections, header_end_view[rows], name_bytes, content_bytes)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int64(), rows, [None, offsets]),
            pa.Array.from_buffers(SCHEMA.field("timestamp").type, rows, [None, timestamps]),
            _binary(rows, key_ends, key_data, key_valid, null_keys),
            _binary(rows, value_ends, value_data, value_valid, null_values),
            pa.Array.from_buffers(SCHEMA.field("headers").type, rows, [None, header_ends], children=[entries]),
        ],
        schema=SCHEMA,
    )
    if start_offset is not None and offset_view[0] < start_offset:
        batch = batch.slice(bisect_left(offset_view, start_offset))
    if batch.num_rows:
        yield batch


def _binary(rows: int, ends: pa.Buffer, data: pa.Buffer, valid: bytearray, nulls: int) -> pa.Array:
    bitmap = pa.py_buffer(valid) if nulls else None
    return pa.Array.from_buffers(pa.binary(), rows, [bitmap, ends, data], nulls)


def _decode_headers(sections: list[Section], headers: int, name_bytes: int, content_bytes: int) -> pa.Array:
    """All headers, one after another, as structs of key and value."""
    if headers == 0:
        return _NO_HEADERS
    name_ends, content_ends = pa.allocate_buffer(4 * headers + 4), pa.allocate_buffer(4 * headers + 4)
    name_data, content_data = pa.allocate_buffer(name_bytes), pa.allocate_buffer(content_bytes)
    valid = bytearray(headers // 8 + 1)
    nulls = codec.decode_header_columns(
        sections,
        Column(memoryview(name_ends).cast("B").cast("i"), memoryview(name_data).cast("B")),
        Column(memoryview(content_ends).cast("B").cast("i"), memoryview(content_data).cast("B"), valid),
    )
    names = pa.Array.from_buffers(pa.binary(), headers, [None, name_ends, name_data])
    try:
        keys = names.cast(pa.string())
    except pa.ArrowInvalid:
        keys = pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    contents = _binary(headers, content_ends, content_data, valid, nulls)
    return pa.StructArray.from_arrays([keys, contents], fields=list(HEADER))


class RowEncoder:
    """The rows of one record batch, encoded into buffers one after another."""

    def __init__(self, part: pa.RecordBatch, now_ms: int) -> None:
        self.rows: int = part.num_rows
        self._timestamps = _timestamps(part, now_ms)
        self._key = _bytes_column(_column(part, "key"), self.rows)
        self._value = _bytes_column(_column(part, "value"), self.rows)
        self._tails = _tails(_column(part, "headers"), self.rows)

    def bytes_from(self, first: int, last: int | None = None) -> int:
        """An upper bound of the encoded size of the rows from `first` on, up to `last`."""
        last = self.rows if last is None else last
        key_ends, value_ends, tail_ends = self._key.ends, self._value.ends, self._tails.ends
        size: int = key_ends[last] - key_ends[first] + value_ends[last] - value_ends[first]
        return size + (last - first) * _RECORD_OVERHEAD + (tail_ends[last] - tail_ends[first] if len(tail_ends) else 0)

    @cached_property
    def largest_row_bytes(self) -> int:
        """An upper bound of the encoded size of each row."""
        if not self.rows:
            return 0
        import pyarrow.compute as pc

        sizes = [
            pc.subtract(column.slice(1), column.slice(0, self.rows))
            for ends in (self._key.ends, self._value.ends, self._tails.ends)
            if len(ends)
            for column in [pa.Array.from_buffers(pa.int32(), self.rows + 1, [None, pa.py_buffer(ends)])]
        ]
        total = sizes[0]
        for size in sizes[1:]:
            total = pc.add(total, size)
        return int(pc.max(total).as_py()) + _RECORD_OVERHEAD

    def encode(self, out: bytearray | memoryview, first: int) -> tuple[int, int, int, int]:
        """Encode rows from `first` on into `out`, behind the room for a header, as many as fit: (end, next row, base
        timestamp, max timestamp)."""
        end, following, max_timestamp = codec.encode_columns(
            out, HEADER_SIZE, first, self.rows, self._timestamps, self._key, self._value, self._tails
        )
        return end, following, self._timestamps[first], max_timestamp


def key_partitions(column: pa.Array, partitions: int, without_key: int) -> tuple[memoryview, memoryview]:
    """Rows by the partition of their key: (row numbers in the order of partitions, and where each partition's begin).
    Rows without a key go to the partition `without_key`."""
    rows = len(column)
    keys = _bytes_column(column, rows)
    order = memoryview(bytearray(8 * rows)).cast("q")
    starts = memoryview(bytearray(8 * (partitions + 1))).cast("q")
    appending.group_rows(keys, partitions, without_key, order, starts)
    return order, starts


def _column(part: pa.RecordBatch, name: str) -> pa.Array | None:
    index = part.schema.get_field_index(name)
    return None if index < 0 else part.column(index)


def _timestamps(part: pa.RecordBatch, now_ms: int) -> memoryview:
    column = _column(part, "timestamp")
    if column is None:
        column = pa.repeat(pa.scalar(now_ms, pa.int64()), part.num_rows)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(now_ms)
    return memoryview(column.buffers()[1]).cast("B").cast("q")[column.offset : column.offset + len(column)]


def _bytes_column(column: pa.Array | None, rows: int) -> Column:
    if column is None:
        column = pa.nulls(rows, pa.binary())
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    valid, ends, data = column.buffers()
    if ends is None or ends.size == 0:
        end_view = memoryview(bytes(4 * rows + 4)).cast("i")
    else:
        end_view = memoryview(ends).cast("B").cast("i")[column.offset : column.offset + rows + 1]
    data_view = _EMPTY if data is None else memoryview(data).cast("B")
    codec.check_columns(len(data_view), end_view, rows)
    if valid is None or column.null_count == 0:
        return Column(end_view, data_view)
    return Column(end_view, data_view, memoryview(valid).cast("B"), column.offset)


def _tails(column: pa.Array | None, rows: int) -> Column:
    """Each record's headers as they are on the wire, for `encode_columns`; without ends where no record has headers."""
    if column is None or pa.types.is_null(column.type):
        return Column(_NO_ENDS, _EMPTY)
    if column.null_count or not pa.types.is_list(column.type):
        column = pa.array([row or [] for row in column.to_pylist()], SCHEMA.field("headers").type)
    header_ends = memoryview(column.buffers()[1]).cast("B").cast("i")[column.offset : column.offset + rows + 1]
    entries = column.values
    if header_ends[0] == header_ends[rows]:
        return Column(_NO_ENDS, _EMPTY)
    codec.check_columns(len(entries), header_ends, rows)
    keys, contents = entries.field("key"), entries.field("value")
    if keys.null_count:
        raise ValueError("a header's key may not be null")
    names, values = _bytes_column(keys, len(entries)), _bytes_column(contents, len(entries))
    headers = header_ends[rows] - header_ends[0]
    room = 5 * rows + 10 * headers + len(names.data) + len(values.data)
    if room > _MAX_COLUMN_BYTES:
        raise ValueError(f"{room} bytes of headers are too many for one record batch")
    tails = Column(memoryview(bytearray(4 * rows + 4)).cast("i"), memoryview(bytearray(room)))
    codec.encode_headers(header_ends, names, values, tails)
    return tails
