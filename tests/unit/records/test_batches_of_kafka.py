"""Kafka's own batches: each decodes to the records that Kafka decoded, and these encode to the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_batches import expected_records, lines

from kalda.records.batch import BatchHeader, TimestampType, check_crc, iter_batches, read_header
from kalda.records.builder import build_batch, read_records, rebuild_batch
from kalda.records.compression import Compression
from kalda.records.control import ControlType, control_batch, read_control_batch, transaction_marker_batch

BATCHES = lines("batches.jsonl.gz")
SEGMENTS = lines("segments.jsonl.gz")


def name_of(item: dict[str, Any]) -> str:
    if "partition" in item:
        return f"{item['partition']}/{item['file']}"
    return f"{item['what']} x{len(item['batches'][0]['records'])}"


def assert_header(header: BatchHeader, expected: dict[str, Any]) -> None:
    assert header.size_bytes == expected["size"]
    assert header.base_offset == expected["base_offset"]
    assert header.last_offset == expected["last_offset"]
    assert header.partition_leader_epoch == expected["partition_leader_epoch"]
    assert header.max_timestamp == expected["max_timestamp"]
    assert header.producer_id == expected["producer_id"]
    assert header.producer_epoch == expected["producer_epoch"]
    assert header.base_sequence == expected["base_sequence"]
    assert header.last_sequence == expected["last_sequence"]
    assert header.is_transactional == expected["transactional"]
    assert header.is_control == expected["control"]
    assert header.delete_horizon_ms == expected["delete_horizon_ms"]
    assert header.compression is Compression[expected["codec"].upper()]
    timestamp_type = TimestampType.LOG_APPEND if expected["timestamp_type"] == "LogAppendTime" else TimestampType.CREATE
    assert header.timestamp_type is timestamp_type


@pytest.mark.parametrize("item", BATCHES + SEGMENTS, ids=name_of)
def test_every_batch_decodes_to_the_records_that_kafka_decoded(item: dict[str, Any]) -> None:
    raw = bytes.fromhex(item["hex"])
    found = list(iter_batches(raw))
    assert [pos for pos, _ in found] == [expected["position"] for expected in item["batches"]]
    for (pos, header), expected in zip(found, item["batches"], strict=True):
        assert_header(header, expected)
        check_crc(raw, pos, header)
        assert read_records(raw, pos) == expected_records(expected["records"])


@pytest.mark.parametrize("item", BATCHES + SEGMENTS, ids=name_of)
def test_a_batch_rebuilt_with_all_its_records_has_the_same_bytes(item: dict[str, Any]) -> None:
    raw = bytes.fromhex(item["hex"])
    for pos, header in iter_batches(raw):
        records = read_records(raw, pos)
        rebuilt = rebuild_batch(header, records, delete_horizon_ms=header.delete_horizon_ms)
        assert read_records(rebuilt) == records
        # Records of a LogAppendTime batch are encoded with the append time as their timestamp, so deltas become zeros.
        if header.compression is Compression.NONE and header.timestamp_type is TimestampType.CREATE:
            assert rebuilt == raw[pos : pos + header.size_bytes]


def test_log_append_time_keeps_the_producers_deltas_in_a_fresh_batch() -> None:
    stamped = next(
        i for i in BATCHES if i["what"] == "plain none LogAppendTime" and len(i["batches"][0]["records"]) > 1
    )
    created = next(i for i in BATCHES if i["what"] == "plain none CreateTime" and len(i["batches"][0]["records"]) > 1)
    rows = [(r.timestamp, r.key, r.value, r.headers) for r in read_records(bytes.fromhex(created["hex"]))]
    built = build_batch(
        rows,
        base_offset=100,
        leader_epoch=12,
        timestamp_type=TimestampType.LOG_APPEND,
        append_time_ms=stamped["batches"][0]["max_timestamp"],
    )
    assert built == bytes.fromhex(stamped["hex"])


def test_control_batches_are_read_and_written_as_kafka_does() -> None:
    seen = set()
    for item in SEGMENTS:
        raw = bytes.fromhex(item["hex"])
        for (pos, header), expected in zip(iter_batches(raw), item["batches"], strict=True):
            if not header.is_control:
                continue
            control = read_control_batch(raw, pos)
            assert [c.type.name for c in control] == [r["control"]["type"] for r in expected["records"]]
            first = control[0]
            seen.update(c.type for c in control)
            if first.type in (ControlType.COMMIT, ControlType.ABORT):
                built = transaction_marker_batch(
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    commit=first.type is ControlType.COMMIT,
                    coordinator_epoch=first.message.coordinator_epoch,
                    timestamp_ms=first.timestamp,
                    base_offset=header.base_offset,
                    leader_epoch=header.partition_leader_epoch,
                )
            else:
                built = control_batch(
                    [c.message for c in control],
                    timestamp_ms=first.timestamp,
                    base_offset=header.base_offset,
                    leader_epoch=header.partition_leader_epoch,
                )
            assert built == raw[pos : pos + header.size_bytes]
    assert seen == set(ControlType) - {ControlType.UNKNOWN}


def test_the_last_sequence_of_a_header_wraps() -> None:
    item = next(i for i in BATCHES if i["what"] == "idempotent none CreateTime" and len(i["batches"][0]["records"]) > 1)
    header = read_header(bytes.fromhex(item["hex"]))
    assert header.base_sequence == 2**31 - 4
    assert header.last_sequence == 5
