"""Batches from and to Arrow columns: offset, timestamp, key, value, headers. Needs the `arrow` extra.

Made for millions of records: one costs some nanoseconds and no Python object. Timestamps are Kafka's milliseconds
unchanged, so a record without a timestamp (-1) has that of one millisecond before 1970.

The bytes of a column are addressed by int32, so the size of a record batch is bounded: `iter_record_batches` starts a
new one where the bound is reached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from kalda.base.errors import CorruptRecord
from kalda.records import appending, codec
from kalda.records.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    advance_sequence,
    check_crc,
    iter_batches,
)
from kalda.records.builder import attributes_of, in_current_format, records_section, seal
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression

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

Batch = bytearray | memoryview

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
    sections: list[codec.Section] = []
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
        sections.append((section, header.records_count, header.base_offset, header.base_timestamp, append_timestamp))
        size += end - start
    if sections:
        yield from _decode(sections, size, start_offset)


def to_record_batch(buf: Buffer, **options: Any) -> pa.RecordBatch:
    """All records of `buf` in one record batch; `options` as for `iter_record_batches`."""
    batches = list(iter_record_batches(buf, **options))
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _decode(sections: list[codec.Section], size: int, start_offset: int | None) -> Iterator[pa.RecordBatch]:
    rows = sum(section[1] for section in sections)
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
        key_end_view,
        memoryview(key_data).cast("B"),
        key_valid,
        value_end_view,
        memoryview(value_data).cast("B"),
        value_valid,
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


def _decode_headers(sections: list[codec.Section], headers: int, name_bytes: int, content_bytes: int) -> pa.Array:
    """All headers, one after another, as structs of key and value."""
    if headers == 0:
        return _NO_HEADERS
    name_ends, content_ends = pa.allocate_buffer(4 * headers + 4), pa.allocate_buffer(4 * headers + 4)
    name_data, content_data = pa.allocate_buffer(name_bytes), pa.allocate_buffer(content_bytes)
    valid = bytearray(headers // 8 + 1)
    nulls = codec.decode_header_columns(
        sections,
        memoryview(name_ends).cast("B").cast("i"),
        memoryview(name_data).cast("B"),
        memoryview(content_ends).cast("B").cast("i"),
        memoryview(content_data).cast("B"),
        valid,
    )
    names = pa.Array.from_buffers(pa.binary(), headers, [None, name_ends, name_data])
    try:
        keys = names.cast(pa.string())
    except pa.ArrowInvalid:
        keys = pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    contents = _binary(headers, content_ends, content_data, valid, nulls)
    return pa.StructArray.from_arrays([keys, contents], fields=list(HEADER))


def build_batches(
    columns: pa.RecordBatch | pa.Table,
    *,
    now_ms: int,
    max_batch_bytes: int = 1_000_000,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> list[Batch]:
    """The rows as batches, in order, each with at most `max_batch_bytes` before compression or with a single record.

    The batches are writable memory allocated by Arrow. Its pool reuses freed memory; a fresh megabyte from the kernel
    would cost four times as much in page faults as the encoding does.

    Columns are found by name: `value` and `key` (binary or string), `timestamp` (a timestamp, or milliseconds),
    `headers` (as in `SCHEMA`). A missing column is null; a null timestamp is `now_ms`. Other columns, such as `offset`,
    are ignored: offsets and sequence numbers are consecutive from batch to batch.
    """
    if isinstance(columns, pa.Table):
        parts = columns.combine_chunks().to_batches()
    else:
        parts = [columns]
    batches: list[Batch] = []
    for part in parts:
        for records, count, base_timestamp, max_timestamp in _encode(part, now_ms, max_batch_bytes):
            header = BatchHeader(
                base_offset=base_offset,
                batch_length=0,
                partition_leader_epoch=leader_epoch,
                magic=MAGIC,
                crc=0,
                attributes=attributes_of(compression, TimestampType.CREATE, is_transactional),
                last_offset_delta=count - 1,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                records_count=count,
            )
            batches.append(seal(records, header, compression_level))
            base_offset += count
            if base_sequence != NO_SEQUENCE:
                base_sequence = advance_sequence(base_sequence, count)
    return batches


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
        key_ends, value_ends, tail_ends = self._key[0], self._value[0], self._tails[0]
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
            for ends in (self._key[0], self._value[0], self._tails[0])
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
            out, HEADER_SIZE, first, self.rows, self._timestamps, *self._key, *self._value, *self._tails
        )
        return end, following, self._timestamps[first], max_timestamp


def _encode(part: pa.RecordBatch, now_ms: int, max_bytes: int) -> Iterator[tuple[memoryview, int, int, int]]:
    """Batches whose headers are not written yet: (buffer, records, base timestamp, max timestamp)."""
    rows = part.num_rows
    if rows == 0:
        return
    encoder = RowEncoder(part, now_ms)
    first = 0
    room = max(max_bytes, HEADER_SIZE)
    while first < rows:
        out = memoryview(pa.allocate_buffer(min(room, HEADER_SIZE + encoder.bytes_from(first)))).cast("B")
        end, following, base_timestamp, max_timestamp = encoder.encode(out, first)
        if following == first:
            # A record larger than `max_bytes` gets a batch of its own.
            room = HEADER_SIZE + encoder.bytes_from(first, first + 1)
            continue
        room = max(max_bytes, HEADER_SIZE)
        yield out[:end], following - first, base_timestamp, max_timestamp
        first = following


def key_partitions(column: pa.Array, partitions: int, without_key: int) -> tuple[memoryview, memoryview]:
    """Rows by the partition of their key: (row numbers in the order of partitions, and where each partition's begin).
    Rows without a key go to the partition `without_key`."""
    rows = len(column)
    ends, data, valid, bit = _bytes_column(column, rows)
    order = memoryview(bytearray(8 * rows)).cast("q")
    starts = memoryview(bytearray(8 * (partitions + 1))).cast("q")
    appending.group_rows(ends, data, valid, bit, partitions, without_key, order, starts)
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


def _bytes_column(column: pa.Array | None, rows: int) -> tuple[memoryview, memoryview, memoryview, int]:
    """(ends, data, validity bitmap or empty, position of the first row in the bitmap)."""
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
        return end_view, data_view, _EMPTY, 0
    return end_view, data_view, memoryview(valid).cast("B"), column.offset


def _tails(column: pa.Array | None, rows: int) -> tuple[memoryview, memoryview]:
    """(ends, data) of each record's headers as they are on the wire, for `encode_columns`; both empty where no record
    has headers."""
    if column is None or pa.types.is_null(column.type):
        return _NO_ENDS, _EMPTY
    if column.null_count or not pa.types.is_list(column.type):
        column = pa.array([row or [] for row in column.to_pylist()], SCHEMA.field("headers").type)
    header_ends = memoryview(column.buffers()[1]).cast("B").cast("i")[column.offset : column.offset + rows + 1]
    entries = column.values
    if header_ends[0] == header_ends[rows]:
        return _NO_ENDS, _EMPTY
    codec.check_columns(len(entries), header_ends, rows)
    keys, contents = entries.field("key"), entries.field("value")
    if keys.null_count:
        raise ValueError("a header's key may not be null")
    name_ends, name_data, _, _ = _bytes_column(keys, len(entries))
    content_ends, content_data, content_valid, content_bit = _bytes_column(contents, len(entries))
    headers = header_ends[rows] - header_ends[0]
    room = 5 * rows + 10 * headers + len(name_data) + len(content_data)
    if room > _MAX_COLUMN_BYTES:
        raise ValueError(f"{room} bytes of headers are too many for one record batch")
    tail_ends = memoryview(bytearray(4 * rows + 4)).cast("i")
    tail_data = memoryview(bytearray(room))
    codec.encode_headers(
        header_ends,
        name_ends,
        name_data,
        content_ends,
        content_data,
        content_valid,
        content_bit,
        tail_ends,
        tail_data,
    )
    return tail_ends, tail_data
