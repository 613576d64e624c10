"""Data points of clients as records of the topic `__client_metrics`: one record a data point, keyed by the client's
instance id in text form.

The value is a JSON object with the fields of `SPARK_SCHEMA`, or an OTLP `MetricsData` with that one data point, whose
resource has the client's properties. The timestamp of a record is the broker's time: a client's clock may be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Final, NamedTuple

from kalda.base.ids import CLIENT_METRICS_TOPIC, Uuid, uuid_to_text
from kalda.telemetry.client_instances import Client
from kalda.telemetry.otlp import Attributes, DataPoint, MetricKind, Temporality, encode

TOPIC: Final = CLIENT_METRICS_TOPIC
JSON: Final = "json"
PROTOBUF: Final = "protobuf"
MAX_RECORD_BYTES: Final = 64 * 1024
"""A larger record is left out."""
MAX_PUSH_BYTES: Final = 16 * 1024 * 1024
"""Of the records of one push; the data points after them are left out. Each record has the attributes of the whole
client, so that a small push may become very much."""
_LARGEST_INT64: Final = 2**63 - 1
SPARK_SCHEMA: Final = (
    "time_ms BIGINT, start_ms BIGINT, client_instance_id STRING, client_id STRING, client_software_name STRING, "
    "client_software_version STRING, client_address STRING, client_port INT, principal STRING, broker_id INT, "
    "name STRING, kind STRING, temporality STRING, is_monotonic BOOLEAN, unit STRING, value DOUBLE, "
    "value_count BIGINT, attributes MAP<STRING, STRING>, resource MAP<STRING, STRING>"
)
"""The fields of a JSON record, as the schema of Spark's `from_json`."""
_NS_PER_MS = 1_000_000
_KINDS = {MetricKind.GAUGE: "gauge", MetricKind.SUM: "sum", MetricKind.HISTOGRAM: "histogram"}
_TEMPORALITIES = {Temporality.UNSPECIFIED: None, Temporality.DELTA: "delta", Temporality.CUMULATIVE: "cumulative"}


class PointSource(NamedTuple):
    """Where data points came from."""

    instance_id: Uuid
    client: Client
    principal: str
    broker_id: int
    """The broker that they were pushed to."""


def to_records(source: PointSource, points: Iterable[DataPoint], form: str) -> list[tuple[bytes, bytes]]:
    """Key and value of a record for each data point, in the form `JSON` or `PROTOBUF`."""
    key = uuid_to_text(source.instance_id).encode()
    moderate = (point for point in points if _text_bytes(point) <= MAX_RECORD_BYTES)
    values = _protobuf_values(source, moderate) if form == PROTOBUF else _json_values(source, moderate)
    records: list[tuple[bytes, bytes]] = []
    left = MAX_PUSH_BYTES
    for value in values:
        left -= len(value)
        if left < 0:
            break
        if len(value) <= MAX_RECORD_BYTES:
            records.append((key, value))
    return records


def _text_bytes(point: DataPoint) -> int:
    """At least so long is a record of it. What is surely too long is not encoded."""
    return sum(len(name) + len(value) for each in (point.attributes, point.resource) for name, value in each)


def _json_values(source: PointSource, points: Iterable[DataPoint]) -> Iterator[bytes]:
    client = source.client
    common = {
        "client_instance_id": uuid_to_text(source.instance_id),
        "client_id": client.client_id,
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
        "client_address": client.address,
        "client_port": client.port,
        "principal": source.principal,
        "broker_id": source.broker_id,
    }
    for point in points:
        yield json.dumps(
            {
                "time_ms": point.time_ns // _NS_PER_MS,
                "start_ms": point.start_ns // _NS_PER_MS if point.start_ns else None,
                **common,
                "name": point.name,
                "kind": _KINDS[point.kind],
                "temporality": _TEMPORALITIES[point.temporality],
                "is_monotonic": point.is_monotonic,
                "unit": point.unit,
                "value": point.value if isfinite(point.value) else None,
                "value_count": None if point.value_count is None else min(point.value_count, _LARGEST_INT64),
                "attributes": dict(point.attributes),
                "resource": dict(point.resource),
            },
            separators=(",", ":"),
        ).encode()


def _protobuf_values(source: PointSource, points: Iterable[DataPoint]) -> Iterator[bytes]:
    client = source.client
    properties: Attributes = (
        ("client_instance_id", uuid_to_text(source.instance_id)),
        ("client_id", client.client_id),
        ("client_software_name", client.software_name),
        ("client_software_version", client.software_version),
        ("client_source_address", client.address),
        ("client_source_port", str(client.port)),
        ("principal", source.principal),
        ("broker_id", str(source.broker_id)),
    )
    for point in points:
        yield encode((point,), point.resource + properties)
