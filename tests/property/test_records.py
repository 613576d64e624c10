"""Batches of arbitrary records: decoding inverts encoding, as values and as columns; malformed batches are refused."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pyarrow as pa
import pytest
from column_batches import build_batches, to_record_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.base.errors import CorruptRecord
from kalda.records.arrow import SCHEMA
from kalda.records.batch import HEADER_SIZE, TimestampType, check_crc, iter_batches, read_header, write_crc
from kalda.records.builder import Record, build_batch, read_records, rebuild_batch
from kalda.records.compression import Compression, compress, decompress
from kalda.records.validation import RecordRules, RecordsRefused, validate_produced

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMESTAMPS = st.one_of(st.integers(-1, 2**41), st.integers(1_700_000_000_000, 1_700_000_100_000), st.just(-1))
DATA = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=60, max_size=300))
HEADERS = st.lists(st.tuples(st.text(max_size=12), st.one_of(st.none(), st.binary(max_size=20))), max_size=4)
ROWS = st.lists(st.tuples(TIMESTAMPS, DATA, DATA, HEADERS), min_size=1, max_size=40)
CODECS = st.sampled_from(list(Compression))


def as_records(rows: list[Any], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(rows)]


def as_columns(rows: list[Any]) -> pa.RecordBatch:
    columns = {
        "offset": list(range(len(rows))),
        "timestamp": pa.array([row[0] for row in rows], pa.int64()).cast(SCHEMA.field("timestamp").type),
        "key": [row[1] for row in rows],
        "value": [row[2] for row in rows],
        "headers": [[{"key": k, "value": v} for k, v in row[3]] for row in rows],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name], f.type) for f in SCHEMA],
        schema=SCHEMA,
    )


def from_columns(batch: pa.RecordBatch) -> list[Record]:
    batch.validate(full=True)
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Record(row["offset"], t, row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"]))
        for row, t in zip(batch.drop_columns("timestamp").to_pylist(), timestamps, strict=True)
    ]


@given(ROWS, CODECS, st.integers(0, 2**40), st.sampled_from([-1, 0, 7]))
def test_records_survive_a_batch(rows: list[Any], codec: Compression, base_offset: int, epoch: int) -> None:
    buf = build_batch(rows, base_offset=base_offset, leader_epoch=epoch, compression=codec)
    header = read_header(buf)
    assert header.size_bytes == len(buf)
    assert header.partition_leader_epoch == epoch
    assert header.next_offset == base_offset + len(rows)
    assert header.max_timestamp == max(row[0] for row in rows)
    check_crc(buf, 0, header)
    assert read_records(buf) == as_records(rows, base_offset)


@given(st.lists(st.tuples(INT64, DATA, DATA, HEADERS), min_size=1, max_size=5), INT64)
def test_any_64_bit_timestamp_and_offset_survives(rows: list[Any], base_offset: int) -> None:
    read = read_records(build_batch(rows, base_offset=base_offset))
    assert [r.timestamp for r in read] == [row[0] for row in rows]
    wrapped = [(base_offset + i + 2**63) % 2**64 - 2**63 for i in range(len(rows))]
    assert [r.offset for r in read] == wrapped


@given(ROWS, CODECS, st.randoms(use_true_random=False))
def test_a_rebuilt_batch_keeps_offsets_producer_and_the_given_records(
    rows: list[Any], codec: Compression, rng: random.Random
) -> None:
    buf = build_batch(rows, base_offset=100, compression=codec, producer_id=3, producer_epoch=1, base_sequence=9)
    header = read_header(buf)
    left = [record for record in read_records(buf) if rng.random() < 0.5]
    rebuilt = rebuild_batch(header, left, delete_horizon_ms=rng.choice([None, 1_800_000_000_000]))
    after = read_header(rebuilt)
    check_crc(rebuilt, 0, after)
    assert read_records(rebuilt) == left
    assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
    assert (after.producer_id, after.last_sequence) == (header.producer_id, header.last_sequence)


@given(ROWS, CODECS, st.integers(0, 3000))
def test_columns_survive_batches(rows: list[Any], codec: Compression, max_batch_bytes: int) -> None:
    bufs = build_batches(as_columns(rows), now_ms=0, compression=codec, max_batch_bytes=max_batch_bytes, base_offset=7)
    joined = b"".join(bufs)
    for pos, header in iter_batches(joined):
        check_crc(joined, pos, header)
    read = [record for pos, _ in iter_batches(joined) for record in read_records(joined, pos)]
    assert read == as_records(rows, 7)
    assert from_columns(to_record_batch(joined)) == read


@given(ROWS, st.data())
def test_a_slice_of_columns_is_encoded_as_its_rows(rows: list[Any], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first + 1, len(rows)))
    (buf,) = build_batches(as_columns(rows).slice(first, last - first), now_ms=0)
    assert buf == build_batch(rows[first:last])


@given(ROWS, st.lists(st.integers(1, 10), min_size=1, max_size=4), st.integers(0, 60))
def test_columns_begin_at_the_start_offset(rows: list[Any], cuts: list[int], start: int) -> None:
    bufs, at = [], 0
    for cut in [*cuts, len(rows)]:
        if rows[at : at + cut]:
            bufs.append(build_batch(rows[at : at + cut], base_offset=at))
        at += cut
    read = from_columns(to_record_batch(b"".join(bufs), start_offset=start, chunk_bytes=200))
    assert read == as_records(rows)[start:]


@given(ROWS, st.sampled_from(list(TimestampType)), st.integers(0, 2**41))
def test_append_time_is_every_records_timestamp(rows: list[Any], kind: TimestampType, now: int) -> None:
    buf = build_batch(rows, timestamp_type=kind, append_time_ms=now)
    expected = [now] * len(rows) if kind is TimestampType.LOG_APPEND else [row[0] for row in rows]
    assert [r.timestamp for r in read_records(buf)] == expected
    assert [r.timestamp for r in from_columns(to_record_batch(buf))] == expected


@given(st.binary(max_size=200_000), CODECS)
def test_decompression_inverts_compression_and_is_bounded(data: bytes, codec: Compression) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    if len(data) and codec is not Compression.NONE:
        with pytest.raises(CorruptRecord):
            decompress(codec, packed, len(data) - 1)


@given(st.sampled_from([c for c in Compression if c]), st.binary(max_size=300), st.randoms(use_true_random=False))
def test_malformed_compressed_bytes_raise_corrupt_record(codec: Compression, noise: bytes, rng: random.Random) -> None:
    broken = bytearray(compress(codec, noise * 3))
    for _ in range(rng.randrange(4)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    for hostile in (noise, bytes(broken), bytes(broken[: rng.randrange(len(broken) + 1)])):
        with contextlib.suppress(CorruptRecord):
            assert len(decompress(codec, hostile, 10_000)) <= 10_000


@settings(max_examples=500)
@given(ROWS, CODECS, st.randoms(use_true_random=False))
def test_mutated_batches_raise_corrupt_record_and_nothing_else(
    rows: list[Any], codec: Compression, rng: random.Random
) -> None:
    buf = build_batch(rows, compression=codec)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(HEADER_SIZE, len(buf)) if rng.random() < 0.7 else rng.randrange(len(buf))
        buf[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.2:
        del buf[rng.randrange(len(buf)) :]
    if len(buf) > HEADER_SIZE and rng.random() < 0.5:
        write_crc(buf, 0, len(buf))
    rules = RecordRules(compacted=True, compression=rng.choice(list(Compression)))
    for attempt in (
        lambda: read_records(buf),
        lambda: [check_crc(buf, pos, header) for pos, header in iter_batches(buf)],
        lambda: to_record_batch(buf).validate(full=True),
        lambda: validate_produced(bytearray(buf), rules, first_offset=3, leader_epoch=1, now_ms=1_700_000_000_000),
    ):
        with contextlib.suppress(CorruptRecord, RecordsRefused):
            attempt()
