"""Bytes that Apache Kafka's own classes wrote: they decode to Kafka's values, which encode to the same bytes."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from kafka_golden import frames, from_json, message_classes, records

from kalda.protocol import apis, codec, framing, record_framing
from kalda.protocol.messages.headers import RequestHeader, ResponseHeader

FRAMES = {name: list(rows) for name, rows in groupby(frames(), key=lambda row: f"{row['api']}-{row['kind']}")}
RECORDS = {name: list(rows) for name, rows in groupby(records(), key=lambda row: row["record"])}
API_BY_NAME = {api.name: api for api in apis.API.values()}
COORDINATORS = {
    "group-coordinator": "group_records",
    "transaction-coordinator": "transaction_records",
    "share-coordinator": "share_records",
}
FRAMED = {"metadata": "metadata_records", "remote-log-metadata": "remote_log_records"}


def where(row: Any) -> str:
    return f"v{row['version']} {row['variant']}"


@pytest.mark.parametrize("name", FRAMES)
def test_bodies_of_frames(name: str) -> None:
    for row in FRAMES[name]:
        cls = message_classes()[row["api"] + row["kind"].capitalize()]
        body = bytes.fromhex(row["frame"])[4 + row["header_size"] :]
        message, end = codec.decode_at(cls, memoryview(bytearray(body)), row["version"])
        assert end == len(body), where(row)
        assert message == from_json(cls, row["version"], row["body"]), where(row)
        if row["variant"] != "unknown_tags":
            assert codec.encode(message, row["version"]) == body, where(row)


@pytest.mark.parametrize("name", FRAMES)
def test_headers_of_frames(name: str) -> None:
    for row in FRAMES[name]:
        frame = bytes.fromhex(row["frame"])[4:]
        version, header = row["version"], row["header"]
        api = API_BY_NAME[row["api"]]
        cls = message_classes()[row["api"] + row["kind"].capitalize()]
        body = codec.decode(cls, frame, version, row["header_size"])
        if row["kind"] == "response":
            correlation_id, body_at = framing.decode_response_header(api, version, frame)
            assert (correlation_id, body_at) == (header["correlationId"], row["header_size"]), where(row)
            full = codec.decode(ResponseHeader, frame, api.response_header_version(version))
            written = b"".join(framing.encode_response(correlation_id, body, version))
        else:
            read = framing.decode_request_header(frame)
            client_id = header["clientId"]
            assert read == (api.key, version, header["correlationId"], client_id, row["header_size"]), where(row)
            full = codec.decode(RequestHeader, frame, 2 if api.is_flexible(version) else 1)
            assert full.client_id == client_id
            written = b"".join(framing.encode_request(body, version, read.correlation_id, client_id))
        assert full.correlation_id == header["correlationId"]
        if row["variant"] != "unknown_tags":
            assert written == frame, where(row)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_internal_topics(name: str) -> None:
    for row in RECORDS[name]:
        check = _check_framed if row["framing"] in FRAMED else _check_body
        (_check_coordinator if row["framing"] in COORDINATORS else check)(row)


def _check_framed(row: Any) -> None:
    raw = bytes.fromhex(row["hex"])
    record, version = record_framing.decode_metadata_record(raw, FRAMED[row["framing"]])
    assert (version, record.RECORD_TYPE) == (row["version"], row["type"])
    assert record == from_json(type(record), version, row["value"]), where(row)
    if row["variant"] != "unknown_tags":
        assert record_framing.encode_metadata_record(record, version) == raw, where(row)


def _check_coordinator(row: Any) -> None:
    module = COORDINATORS[row["framing"]]
    raw_key, raw_value = bytes.fromhex(row["key_hex"]), bytes.fromhex(row["hex"])
    key = record_framing.decode_coordinator_key(module, raw_key)
    assert row["type"] == key.RECORD_TYPE
    assert key == from_json(type(key), 0, row["key"])
    value, version = record_framing.decode_coordinator_value(module, key.RECORD_TYPE, raw_value)
    assert version == row["version"]
    assert value == from_json(type(value), version, row["value"]), where(row)
    written_key, written_value = record_framing.encode_coordinator_record(key, value, version)
    assert written_key == raw_key
    if row["variant"] != "unknown_tags":
        assert written_value == raw_value, where(row)


def _check_body(row: Any) -> None:
    cls, version = message_classes()[row["record"]], row["version"]
    raw = bytes.fromhex(row["hex"])
    body, end = codec.decode_at(cls, raw, version)
    assert end == len(raw)
    assert body == from_json(cls, version, row["value"]), where(row)
    if row["variant"] != "unknown_tags":
        assert codec.encode(body, version) == raw, where(row)
