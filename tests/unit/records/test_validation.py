"""Validation of produced batches: Kafka's own results for a sample of valid and invalid ones, then single rules."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from kafka_batches import lines

from kalda.base.errors import CorruptRecord, ErrorCode
from kalda.records.batch import HEADER_SIZE, TimestampType, check_crc, read_header, write_header
from kalda.records.builder import build_batch, read_records, seal
from kalda.records.compression import Compression
from kalda.records.validation import (
    MAX_RECORD_ERRORS,
    InspectionUnfinished,
    ReadRecords,
    RecordRules,
    RecordsRefused,
    compression_of_config,
    validate_produced,
)

NOW = 1_700_000_000_000
# Which versions of Produce may use zstd is checked before validation, in the request handler.
PRODUCED = [item for item in lines("produced.jsonl.gz") if item.get("error") != "UNSUPPORTED_COMPRESSION_TYPE"]


def rows(count: int, key: bytes | None = b"k", timestamp: int = NOW) -> list[Any]:
    return [(timestamp + i, key, b"value %d" % i, ()) for i in range(count)]


def validate(buf: bytearray, rules: RecordRules | None = None, **keywords: Any) -> Any:
    return validate_produced(buf, rules or RecordRules(), first_offset=50, leader_epoch=4, now_ms=NOW, **keywords)


@pytest.mark.parametrize("item", PRODUCED, ids=lambda i: f"{PRODUCED.index(i)}-{i.get('error', 'OK')}")
def test_the_result_is_kafkas(item: dict[str, Any]) -> None:
    rules = RecordRules(
        compression=compression_of_config(item["compression_type"]),
        timestamp_type=TimestampType.LOG_APPEND if item["log_append"] else TimestampType.CREATE,
        timestamp_before_max_ms=item["before_max_ms"],
        timestamp_after_max_ms=item["after_max_ms"],
        compacted=item["compacted"],
        max_message_bytes=item["max_message_bytes"],
    )
    keywords = {
        "first_offset": item["first_offset"],
        "leader_epoch": item["leader_epoch"],
        "now_ms": item["now_ms"],
    }
    buf = bytearray.fromhex(item["hex"])
    if "error" in item:
        with pytest.raises((RecordsRefused, CorruptRecord)) as caught:
            validate_produced(buf, rules, **keywords)
        assert caught.value.code.name == item["error"]
        errors = caught.value.record_errors if isinstance(caught.value, RecordsRefused) else []
        assert [e.batch_index for e in errors] == item["record_errors"]
        return
    validated = validate_produced(buf, rules, **keywords)
    check_crc(validated.records, 0, validated.header)
    assert read_header(validated.records) == validated.header
    assert validated.max_timestamp == item["max_timestamp"]
    assert [[r.offset, r.timestamp] for r in read_records(validated.records)] == item["records"]
    if "stamped" in item:
        assert bytes(validated.records).hex() == item["stamped"]


def test_the_common_path_writes_only_offset_and_epoch() -> None:
    buf = build_batch(rows(3))
    before = bytes(buf)
    validated = validate(buf)
    assert buf[8:12] + buf[16:] == before[8:12] + before[16:]
    assert validated.header.base_offset == 50
    assert validated.header.partition_leader_epoch == 4
    assert validated.max_timestamp == NOW + 2
    assert validated.last_offset == 52
    assert validated.log_append_time_ms == -1
    assert validated.records.obj is buf


def test_log_append_time_stamps_the_batch() -> None:
    validated = validate(build_batch(rows(3, timestamp=5)), RecordRules(timestamp_type=TimestampType.LOG_APPEND))
    assert validated.log_append_time_ms == validated.max_timestamp == NOW
    check_crc(validated.records, 0, validated.header)
    assert {r.timestamp for r in read_records(validated.records)} == {NOW}


@pytest.mark.parametrize("target", list(Compression), ids=lambda c: c.name)
@pytest.mark.parametrize("source", list(Compression), ids=lambda c: c.name)
def test_a_batch_gets_the_codec_of_the_topic(source: Compression, target: Compression) -> None:
    buf = build_batch(rows(20), compression=source, producer_id=9, producer_epoch=1, base_sequence=3)
    validated = validate(buf, RecordRules(compression=target))
    assert (validated.records.obj is buf) == (source is target)
    assert validated.header.compression is target
    assert validated.header.producer_id == 9
    check_crc(validated.records, 0, validated.header)
    assert [r[1:] for r in read_records(validated.records)] == [r[1:] for r in read_records(buf)]


def test_record_errors_of_a_compacted_topic_list_the_records_without_a_key() -> None:
    records = [(NOW, None if i in (1, 3) else b"k", b"v", ()) for i in range(5)]
    with pytest.raises(RecordsRefused) as caught:
        validate(build_batch(records, compression=Compression.ZSTD), RecordRules(compacted=True))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in caught.value.record_errors] == [1, 3]


def test_a_batch_that_decompresses_beyond_the_bound_is_refused() -> None:
    buf = build_batch([(NOW, b"k", bytes(1_000_000), ())], compression=Compression.ZSTD)
    with pytest.raises(RecordsRefused) as caught:
        validate(buf, RecordRules(compacted=True, max_batch_decompressed_bytes=1000))
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("target", [None, Compression.ZSTD])
def test_a_record_of_a_compressed_batch_has_a_bound_of_its_own(codec: Compression, target: Compression | None) -> None:
    """As in Apache Kafka 4.4.0, with which the bounds were compared: a value of 990 bytes has a record of 997."""

    def outcome(most: int, *sizes: int, read: ReadRecords = ReadRecords.NONE) -> str:
        values = [(NOW, None, b"x" * size, ()) for size in sizes]
        rules = RecordRules(max_record_bytes=most, checks_config=read, compression=target)
        try:
            validate(build_batch(values, compression=codec), rules)
        except RecordsRefused as refused:
            return refused.code.name
        return "NONE"

    refused = "NONE" if codec is Compression.NONE else "INVALID_RECORD"
    assert outcome(997, 990) == "NONE"
    assert outcome(996, 990) == refused
    assert outcome(997, *[989] * 300) == "NONE", "it is no bound of the batch"
    assert outcome(997, *[989] * 300, 991, 1) == refused
    assert outcome(1000, 1, 200_000, 1) == refused


def test_the_brokers_own_batches_may_be_control_batches() -> None:
    marker = build_batch(rows(1), is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
    with pytest.raises(RecordsRefused):
        validate(bytearray(marker))
    validated = validate(marker, RecordRules(compression=Compression.GZIP), from_client=False)
    assert validated.header.compression is Compression.NONE


def altered(buf: bytearray, **fields: int) -> bytearray:
    """The same batch with other values in its header, and the CRC for them."""
    write_header(buf, 0, read_header(buf)._replace(**fields))
    return buf


def hand_made(deltas: list[int], codec: Compression, key: bytes | None = b"") -> bytearray:
    """A batch of records with these offset deltas, whatever its header says of them."""
    record = b"".join(
        bytes([12, 0, 0, (delta << 1 ^ delta >> 7) & 0xFF, 1 if key is None else 0, 1, 0]) for delta in deltas
    )
    header = read_header(build_batch(rows(len(deltas)), compression=codec))
    return seal(bytearray(HEADER_SIZE) + record, header._replace(max_timestamp=NOW))


@pytest.mark.parametrize("codec", list(Compression), ids=lambda c: c.name)
class TestBodiesThatTheHeaderDoesNotDescribe:
    """What Apache Kafka refuses; misplaced offsets of uncompressed batches, which it stores, are refused as well."""

    def refused(self, buf: bytearray, rules: RecordRules | None = None) -> RecordsRefused:
        with pytest.raises(RecordsRefused) as caught:
            validate(buf, rules)
        assert caught.value.code is ErrorCode.INVALID_RECORD
        return caught.value

    def test_fewer_records_than_the_header_counts(self, codec: Compression) -> None:
        self.refused(altered(build_batch(rows(1), compression=codec), records_count=5, last_offset_delta=4))

    def test_more_records_than_the_header_counts(self, codec: Compression) -> None:
        self.refused(altered(build_batch(rows(2), compression=codec), records_count=1, last_offset_delta=0))

    def test_no_records_for_two_thousand_million_offsets(self, codec: Compression) -> None:
        empty = altered(build_batch(rows(1), compression=codec), records_count=2**31 - 1, last_offset_delta=2**31 - 2)
        self.refused(empty)

    @pytest.mark.parametrize("deltas", [[-5], [0, 0], [0, 2], [1, 0]], ids=str)
    def test_offset_deltas_other_than_a_records_index(self, codec: Compression, deltas: list[int]) -> None:
        buf = hand_made(deltas, codec)
        assert "offset delta" in self.refused(buf).message
        assert "offset delta" in self.refused(buf, RecordRules(compacted=True)).message

    def test_offset_deltas_in_their_order(self, codec: Compression) -> None:
        assert validate(hand_made([0, 1, 2], codec)).last_offset == 52

    def test_nothing_is_read_where_that_is_configured(self, codec: Compression) -> None:
        buf = hand_made([-5], codec)
        assert validate(bytearray(buf), RecordRules(checks_config=ReadRecords.NONE)).last_offset == 50
        uncompressed_only = RecordRules(checks_config=ReadRecords.UNCOMPRESSED)
        if codec is Compression.NONE:
            self.refused(buf, uncompressed_only)
        else:
            assert validate(buf, uncompressed_only).last_offset == 50

    def test_the_largest_timestamp_is_the_records_own(self, codec: Compression) -> None:
        validated = validate(altered(build_batch(rows(3), compression=codec), max_timestamp=NOW - 50))
        assert validated.max_timestamp == validated.header.max_timestamp == NOW + 2
        check_crc(validated.records, 0, validated.header)

    def test_errors_of_records_are_bounded(self, codec: Compression) -> None:
        buf = build_batch([(NOW + 10**9, b"k", b"", ())] * 20_000, compression=codec)
        with pytest.raises(RecordsRefused) as caught:
            validate(buf)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in caught.value.record_errors] == list(range(MAX_RECORD_ERRORS))


@pytest.mark.parametrize("target", [None, Compression.SNAPPY])
@pytest.mark.parametrize("codec", list(Compression), ids=lambda c: c.name)
def test_a_batch_that_takes_long_to_read_is_read_in_parts(codec: Compression, target: Compression | None) -> None:
    buf = build_batch([(NOW, b"k", bytes(100_000), ())] * 25, compression=codec)
    rules = RecordRules(compression=target, max_message_bytes=10**7)
    with pytest.raises(InspectionUnfinished) as caught:
        validate(bytearray(buf), rules)
    inspection = caught.value.inspection
    assert not inspection.run(100_000)
    assert inspection.run()
    validated = validate(buf, rules, inspection=inspection)
    assert validated.last_offset == 74
    assert [r[1:] for r in read_records(validated.records)] == [(NOW, b"k", bytes(100_000), ())] * 25


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD], ids=lambda c: c.name)
def test_a_bomb_costs_neither_time_here_nor_memory(codec: Compression) -> None:
    section = bytes([12, 0, 0, 0, 1, 1, 0]) * 2_000_000
    header = read_header(build_batch(rows(1), compression=codec))
    buf = seal(bytearray(HEADER_SIZE) + section, header._replace(records_count=2_000_000, last_offset_delta=1_999_999))
    tracemalloc.start()
    try:
        with pytest.raises(InspectionUnfinished) as caught:
            validate(buf)
        with pytest.raises(RecordsRefused, match="offset delta of record 1"):
            caught.value.inspection.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
