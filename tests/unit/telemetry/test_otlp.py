"""OpenTelemetry's metrics messages: what clients send, and what hostile ones do."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.ids import Uuid, uuid_from_text
from kalda.telemetry import otlp
from kalda.telemetry.client_instances import Client
from kalda.telemetry.client_metrics import MAX_PUSH_BYTES, MAX_RECORD_BYTES, SPARK_SCHEMA, PointSource, to_records
from kalda.telemetry.otlp import BadMetrics, DataPoint, MetricKind, Temporality, decode, encode

GAUGE = DataPoint("org.apache.kafka.producer.a.avg", MetricKind.GAUGE, 1.5, 2_000_000, 1_000_000, (("node.id", "1"),))
SUM = DataPoint(
    "org.apache.kafka.producer.b.total",
    MetricKind.SUM,
    7,
    2_000_000,
    unit="1",
    temporality=Temporality.DELTA,
    is_monotonic=True,
)
HISTOGRAM = DataPoint("h", MetricKind.HISTOGRAM, 10.0, 5, temporality=Temporality.CUMULATIVE, value_count=4)
SOURCE = PointSource(Uuid(bytes(15) + b"\xff"), Client(3, "cli\n", "sw", "1", "10.0.0.1", 99), "User:a", 5)


def test_what_is_encoded_is_decoded() -> None:
    resource = (("client_rack", "r1"),)
    points = [GAUGE, SUM, HISTOGRAM]
    assert decode(encode(points, resource)) == [each._replace(resource=resource) for each in points]


def test_data_points_of_the_same_metric_are_one_metric() -> None:
    """A collector may refuse a metric that comes twice in one message."""
    other = GAUGE._replace(attributes=(("node.id", "2"),))
    message = encode([GAUGE, SUM, other])
    assert message.count(GAUGE.name.encode()) == 1
    assert decode(message) == [GAUGE, other, SUM]


def expect_points_or_refusal(message: bytes) -> None:
    """What is decoded is within all bounds, and means the same when it is encoded again."""
    try:
        points = decode(message)
    except BadMetrics:
        return
    assert len(points) <= len(message)
    for point in points:
        assert len(point.name) <= otlp.MAX_TEXT
        assert all(len(name) <= otlp.MAX_TEXT for name, _ in point.attributes + point.resource)
        (again,) = decode(encode([point], point.resource))
        assert repr(again) == repr(point), "NaN equals nothing"


@given(st.binary(max_size=200))
def test_random_bytes_are_decoded_or_refused(data: bytes) -> None:
    expect_points_or_refusal(data)


@given(st.data())
def test_damaged_messages_are_decoded_or_refused(data: st.DataObject) -> None:
    message = bytearray(encode([GAUGE, SUM, HISTOGRAM], (("a", "b"),)))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    expect_points_or_refusal(bytes(message))


def test_the_number_of_points_attributes_and_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    message = encode([GAUGE] * 20)
    monkeypatch.setattr(otlp, "MAX_POINTS", 19)
    with pytest.raises(BadMetrics, match="more than 19 data points"):
        decode(message)
    monkeypatch.setattr(otlp, "MAX_POINTS", 20)
    monkeypatch.setattr(otlp, "MAX_ATTRIBUTES", 19)
    with pytest.raises(BadMetrics, match="more than 19 attributes"):
        decode(message)
    monkeypatch.setattr(otlp, "MAX_ATTRIBUTES", 20)
    monkeypatch.setattr(otlp, "MAX_FIELDS", 100)
    with pytest.raises(BadMetrics, match="more than 100 fields"):
        decode(message)


def test_long_texts_are_cut_and_unknown_kinds_are_skipped() -> None:
    long = GAUGE._replace(name="n" * 5_000)
    assert decode(encode([long]))[0].name == "n" * otlp.MAX_TEXT
    summary = b"\x0a\x08\x12\x06\x12\x04\x5a\x02\x0a\x00"
    assert decode(summary) == []


def test_a_data_point_and_a_client_have_a_bounded_number_of_attributes() -> None:
    many = tuple((f"k{number}", "v") for number in range(2 * otlp.MAX_ATTRIBUTES_OF_ONE))
    (point,) = decode(encode([GAUGE._replace(attributes=many)], many))
    assert point.attributes == point.resource == many[: otlp.MAX_ATTRIBUTES_OF_ONE]
    (point,) = decode(encode([], many) + encode([], many) + encode([GAUGE], many[:1]))
    assert point.resource == many[:1]


def test_values_at_the_ends_of_their_types() -> None:
    largest = 2**64 - 1
    points = [
        HISTOGRAM._replace(value_count=largest, time_ns=largest, start_ns=largest, value=math.inf),
        SUM._replace(value=-(2**63), time_ns=0),
    ]
    for point, record in zip(points, to_records(SOURCE, decode(encode(points)), "json"), strict=True):
        found = json.loads(record[1])
        assert found["time_ms"] == point.time_ns // 1_000_000
        assert found["value_count"] in (None, 2**63 - 1), "the column is a signed integer"
        assert found["value"] in (None, -(2**63))
    assert len(to_records(SOURCE, decode(encode(points)), "protobuf")) == 2


def test_records_have_the_fields_of_the_schema() -> None:
    ((key, value), (_, second)) = to_records(SOURCE, [GAUGE, SUM._replace(value=math.nan)], "json")
    assert uuid_from_text(key.decode()) == SOURCE.instance_id
    found = json.loads(value)
    assert list(found) == [column.split()[0] for column in SPARK_SCHEMA.replace("STRING, STRING", "").split(", ")]
    assert (found["client_id"], found["value"], found["time_ms"], found["attributes"]) == (
        "cli\n",
        1.5,
        2,
        {"node.id": "1"},
    )
    assert json.loads(second)["value"] is None, "JSON has no such numbers"


def test_records_in_protobuf_are_messages_of_their_own() -> None:
    ((_, value),) = to_records(SOURCE, [SUM], "protobuf")
    (point,) = decode(value)
    assert point._replace(resource=()) == SUM
    assert dict(point.resource)["principal"] == "User:a"


def test_a_record_that_is_too_large_is_left_out() -> None:
    attributes = tuple((f"k{number}", "v" * 1_000) for number in range(70))
    assert to_records(SOURCE, [GAUGE._replace(attributes=attributes), SUM], "json") == to_records(SOURCE, [SUM], "json")
    assert MAX_RECORD_BYTES < 70_000


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_a_small_push_becomes_no_more_than_a_bounded_size(form: str) -> None:
    """Each of its records has all attributes of the client."""
    resource = tuple((f"k{number}", "v" * 1_000) for number in range(50))
    points = decode(encode([GAUGE] * 2_000, resource))
    sizes = [len(value) for _, value in to_records(SOURCE, points, form)]
    assert MAX_PUSH_BYTES - 60_000 < sum(sizes) <= MAX_PUSH_BYTES
    assert max(sizes) < MAX_RECORD_BYTES
