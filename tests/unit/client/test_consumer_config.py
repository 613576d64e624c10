"""The consumer's configuration, and deserializers by name, as objects and as functions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kalda.base.configs.consumer import consumer_config
from kalda.base.configs.definition import InvalidConfig
from kalda.clientcore.serdes import deserializer_of

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_defaults_are_kafkas() -> None:
    config = consumer_config(SERVERS, {})
    assert config.auto_offset_reset == "latest"
    assert (config.max_poll_records, config.fetch_max_wait_ms, config.max_partition_fetch_bytes) == (
        500,
        500,
        1_048_576,
    )
    assert config.assignors == ("range", "cooperative-sticky")
    assert not config.enable_auto_commit  # there is no group
    assert consumer_config(SERVERS, {"group_id": "g"}).enable_auto_commit


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "bootstrap.servers is missing"),
        ({**SERVERS, "auto.offset.rest": "latest"}, "nearest is auto.offset.reset"),
        ({**SERVERS, "auto.offset.reset": "newest"}, "earliest, latest, none"),
        ({**SERVERS, "auto.offset.reset": "by_duration:P"}, "by_duration:PnDTnHnMn.nS"),
        ({**SERVERS, "enable.auto.commit": True}, "default group id"),
        ({**SERVERS, "group.instance.id": "i"}, "needs a group.id"),
        ({**SERVERS, "partition.assignment.strategy": "ranges"}, "Invalid value ranges"),
        ({**SERVERS, "group.id": "g", "group.protocol": "consumer", "session.timeout.ms": 9}, "cannot be set"),
        ({**SERVERS, "group.id": "g", "group.remote.assignor": "range"}, "CLASSIC"),
        ({**SERVERS, "heartbeat.interval.ms": 50_000}, "lower than session.timeout.ms"),
        ({**SERVERS, "security.protocol": "TLS"}, "security.protocol"),
    ],
)
def test_what_is_wrong_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        consumer_config(keys, {})


def test_a_reset_by_duration() -> None:
    config = consumer_config({**SERVERS, "auto.offset.reset": "by_duration:P1DT2H3M4.5S"}, {})
    assert config.reset_duration_ms == (((24 + 2) * 60 + 3) * 60 + 4) * 1_000 + 500


class Upper:
    def deserialize(self, topic: str, headers: Any, data: bytes) -> str:
        return topic + data.decode().upper()


@pytest.mark.parametrize(
    ("given", "data", "value"),
    [
        ("str", "é".encode(), "é"),
        ("int", (-2).to_bytes(8, "big", signed=True), -2),
        ("int", b"\x00\x07", 7),
        ("float", bytes.fromhex("3ff8000000000000"), 1.5),
        ("float", bytes.fromhex("3fc00000"), 1.5),
        ("uuid", b"12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        ("json", b'{"a": [1]}', {"a": [1]}),
        (Upper(), b"x", "tX"),
        (len, b"abc", 3),
    ],
)
def test_deserializers(given: object, data: bytes, value: object) -> None:
    read = deserializer_of("value.deserializer", given)
    assert read is not None
    assert read("t", (), data) == value


def test_bytes_need_no_deserializer_and_others_are_refused() -> None:
    assert deserializer_of("key.deserializer", "bytes") is None
    for wrong in ("avro", 7):
        with pytest.raises(InvalidConfig, match=r"key\.deserializer"):
            deserializer_of("key.deserializer", wrong)
