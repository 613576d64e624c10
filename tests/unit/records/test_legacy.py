"""Batches of the message formats 0 and 1, as Apache Kafka 4.3.1 wrote, decoded and compacted them."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from column_batches import to_record_batch
from kafka_batches import lines, unbase64
from legacy_batches import message

from kalda.base.errors import CorruptRecord, CrcMismatch, UnsupportedFormat
from kalda.records.batch import BatchHeader, TimestampType, check_crc, iter_batches, read_header
from kalda.records.builder import Record, _xxhash32, in_current_format, read_records, rebuild_legacy_batch, with_range
from kalda.records.compression import Compression, compress

TYPES = {
    "NoTimestampType": TimestampType.NONE,
    "CreateTime": TimestampType.CREATE,
    "LogAppendTime": TimestampType.LOG_APPEND,
}
CASES = lines("legacy.jsonl.gz")


def name_of(case: dict[str, Any]) -> str:
    return f"{case['magic']}-{case['codec']}-{case['type']}-{case['kind']}"


def assert_records(records: list[Record], expected: list[Any]) -> None:
    assert [(r.offset, r.timestamp, r.key) for r in records] == [(o, t, unbase64(k)) for o, t, k, _ in expected]
    for record, (*_, value) in zip(records, expected, strict=True):
        if isinstance(value, int):  # of long values the golden data has the length
            assert len(record.value or b"") == value
        else:
            assert record.value == unbase64(value)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_each_batch_decodes_to_the_records_that_kafka_decoded(case: dict[str, Any]) -> None:
    raw = unbase64(case["bytes"])
    assert raw is not None
    found = list(iter_batches(raw))
    for (pos, header), expected in zip(found, case["batches"], strict=True):
        check_crc(raw, pos, header)
        assert (header.magic, header.size_bytes, header.crc) == (
            expected["magic"],
            expected["size"],
            expected["crc"],
        )
        assert header.last_offset == expected["last_offset"]
        assert header.max_timestamp == expected["max_timestamp"]
        assert header.compression is Compression[expected["codec"].upper()]
        assert header.timestamp_type is TYPES[expected["timestamp_type"]]
        assert_records(read_records(raw, pos, header), expected["records"])
        whole = with_range(header, raw, pos)
        assert (whole.base_offset, whole.last_offset) == (expected["base_offset"], expected["last_offset"])
        assert whole.records_count == len(expected["records"])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_in_the_current_format_the_records_are_the_same(case: dict[str, Any]) -> None:
    raw = unbase64(case["bytes"])
    assert raw is not None
    for (pos, old), expected in zip(iter_batches(raw), case["batches"], strict=True):
        for known in (old, with_range(old, raw, pos)):
            header, current = in_current_format(known, raw, pos)
            check_crc(current, 0, header)
            assert (header.magic, header.compression) == (2, Compression.NONE)
            assert (header.base_offset, header.last_offset) == (expected["base_offset"], expected["last_offset"])
            assert header.max_timestamp == expected["max_timestamp"]
            assert_records(read_records(current, 0, header), expected["records"])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_columns_have_the_same_records(case: dict[str, Any]) -> None:
    raw = unbase64(case["bytes"])
    assert raw is not None
    rows = to_record_batch(raw, check_crcs=True).to_pylist()
    whole = [row for batch in case["batches"] for row in batch["records"]]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    found = [
        Record(r["offset"], (r["timestamp"] - epoch) // timedelta(milliseconds=1), r["key"], r["value"], ())
        for r in rows
    ]
    assert_records(found, whole)
    later = to_record_batch(raw, start_offset=whole[1][0]).to_pylist()
    assert [row["offset"] for row in later] == [row[0] for row in whole[1:]]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_what_is_kept_of_a_batch_is_rebuilt_as_kafka_rebuilds_it(case: dict[str, Any]) -> None:
    raw = unbase64(case["bytes"])
    assert raw is not None
    rebuilt = []
    for pos, header in iter_batches(raw):
        kept = [r for r in read_records(raw, pos, header) if r.key is not None and r.offset % 2 == 0]
        if kept:
            horizon = 1_800_086_400_000 if any(r.value is None for r in kept) else None
            rebuilt.append(
                rebuild_legacy_batch(header, kept, delete_horizon_ms=horizon, compression=header.compression)
            )
    for batch, expected in zip(rebuilt, case["filtered"], strict=True):
        header = read_header(batch)
        check_crc(batch, 0, header)
        assert (header.magic, header.base_offset, header.last_offset) == (
            2,
            expected["base_offset"],
            expected["last_offset"],
        )
        assert header.max_timestamp == expected["max_timestamp"]
        assert header.compression is Compression[expected["codec"].upper()]
        assert (header.timestamp_type is TimestampType.LOG_APPEND) == (expected["timestamp_type"] == "LogAppendTime")
        assert_records(read_records(batch), expected["records"])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_changed_byte_fails_the_checksum(case: dict[str, Any]) -> None:
    raw = bytearray(unbase64(case["bytes"]) or b"")
    raw[read_header(raw).size_bytes - 1] ^= 1
    with pytest.raises(CrcMismatch):
        check_crc(raw, 0, read_header(raw))


def gzip_case(magic: int) -> tuple[bytearray, BatchHeader]:
    case = next(each for each in CASES if (each["magic"], each["codec"]) == (magic, "gzip"))
    raw = bytearray(unbase64(case["bytes"]) or b"")
    return raw, read_header(raw)


def test_a_wrapper_that_ends_below_its_last_record_is_damaged() -> None:
    raw, _ = gzip_case(1)
    raw[:8] = (1).to_bytes(8, "big")
    with pytest.raises(CorruptRecord):
        read_records(raw)


def test_a_wrapper_at_offset_0_has_the_offsets_of_its_records() -> None:
    raw, _ = gzip_case(1)
    raw[:8] = bytes(8)
    assert [record.offset for record in read_records(raw)] == [0, 1, 2]


@pytest.mark.parametrize(("offsets", "wrapper"), [((3,), 9), ((3, 30), 9), ((0, 2**31), 2**31)])
def test_a_wrapper_whose_records_are_not_where_it_says_is_damaged(offsets: tuple[int, ...], wrapper: int) -> None:
    """A reader's position would go back, or past records that follow; a batch of magic 2 cannot hold the last one."""
    inner = b"".join(message(0, offset, -1, b"k", b"v") for offset in offsets)
    raw = message(0, wrapper, -1, None, bytes(compress(Compression.GZIP, inner)), Compression.GZIP)
    check_crc(raw, 0, read_header(raw))
    with pytest.raises(CorruptRecord, match=f"holds offsets {offsets[0]} to {offsets[-1]}"):
        in_current_format(read_header(raw), raw)


def test_records_are_decompressed_up_to_a_bound() -> None:
    raw, header = gzip_case(0)
    with pytest.raises(CorruptRecord):
        read_records(raw, 0, header, max_bytes=20)


def test_a_later_magic_is_not_supported_and_a_short_batch_is_damaged() -> None:
    raw, _ = gzip_case(1)
    raw[16] = 3
    with pytest.raises(UnsupportedFormat, match="magic 3"):
        read_header(raw)
    with pytest.raises(UnsupportedFormat, match="magic 3"):
        list(iter_batches(raw))
    raw[16] = 1
    raw[8:12] = (20).to_bytes(4, "big")
    with pytest.raises(CorruptRecord, match="20 bytes"):
        read_header(raw)


def test_the_least_batch_has_no_key_and_no_value() -> None:
    message = b"\0\0" + b"\xff" * 8  # magic 0, no attributes; key and value are null
    crc = zlib.crc32(message)
    raw = (7).to_bytes(8, "big") + (14).to_bytes(4, "big") + crc.to_bytes(4, "big") + message
    header = read_header(raw)
    check_crc(raw, 0, header)
    assert len(raw) == header.size_bytes == 26
    assert read_records(raw) == [Record(7, -1, None, None, ())]


def test_the_hash_of_frame_headers() -> None:
    """Values of the reference implementation, https://github.com/Cyan4973/xxHash."""
    assert _xxhash32(b"") == 0x02CC5D05
    assert _xxhash32(b"a") == 0x550D7456
    assert _xxhash32(b"abc") == 0x32D153FF
