"""Whole tables of Arrow as batches, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kalda.records.arrow import SCHEMA, RowEncoder, iter_record_batches
from kalda.records.batch import HEADER_SIZE, Buffer, read_header
from kalda.records.builder import build_batch, seal
from kalda.records.compression import Compression


def to_record_batch(buf: Buffer, **options: Any) -> pa.RecordBatch:
    """All records in one record batch; `options` as for `iter_record_batches`."""
    batches = list(iter_record_batches(buf, **options))
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=SCHEMA)


def build_batches(
    columns: pa.RecordBatch,
    now_ms: int,
    max_batch_bytes: int = 1_000_000,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
) -> list[bytearray | memoryview]:
    """All rows, in batches of that size before compression; a larger record has one of its own."""
    encoder, first = RowEncoder(columns, now_ms), 0
    batches = []
    while first < encoder.rows:
        one = HEADER_SIZE + encoder.bytes_from(first, first + 1)
        out = memoryview(bytearray(max(one, min(max_batch_bytes, HEADER_SIZE + encoder.bytes_from(first)))))
        end, following, base_timestamp, max_timestamp = encoder.encode(out, first)
        header = read_header(
            build_batch([(0, None, None, ())], base_offset=base_offset + first, compression=compression)
        )
        count = following - first
        header = header._replace(
            last_offset_delta=count - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            records_count=count,
        )
        batches.append(seal(out[:end], header))
        first = following
    return batches
