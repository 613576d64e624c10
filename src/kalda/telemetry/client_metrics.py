"""The metrics that clients push (KIP-714): as records of a topic, and their newest values as OpenMetrics text.

Data points of clients as records of the topic `__client_metrics`: one record a data point, keyed by the client's
instance id in text form.

The value is a JSON object with the fields of `SPARK_SCHEMA`, or an OTLP `MetricsData` with that one data point, whose
resource has the client's properties. The timestamp of a record is the broker's time: a client's clock may be wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

from kalda.base.ids import CLIENT_METRICS_TOPIC, Uuid, uuid_to_text
from kalda.telemetry.client_instances import Client
from kalda.telemetry.exposition import PagePiece, value_of
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


MAX_BYTES: Final = 32 * 1024 * 1024
MAX_CLIENT_BYTES: Final = 1024 * 1024
MAX_LABELS: Final = 16
_SERIES_BYTES: Final = 300
"""Of a series, besides its labels."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


SeriesKey: TypeAlias = tuple[str, bool, str]
"""Family, whether it is a counter, and own labels."""


class SeriesPoint(NamedTuple):
    """A data point under the name and the labels that Prometheus gets."""

    key: SeriesKey
    value: float
    adds: bool
    """Whether the value is the difference to the last one."""


def to_series(points: Iterable[DataPoint]) -> list[SeriesPoint]:
    """These data points, as far as they have values and one client has room for their texts. It takes long, and may run
    on any thread."""
    found: list[SeriesPoint] = []
    left = MAX_CLIENT_BYTES
    for point in points:
        if not isfinite(point.value):
            continue
        labels = ",".join(
            f'{name}="{value}"'
            for name, value in {_name(key): value_of(value) for key, value in point.attributes[:MAX_LABELS]}.items()
        )
        key = _name(point.name).removesuffix("_total"), point.kind is MetricKind.SUM and point.is_monotonic, labels
        left -= len(key[0]) + len(labels)
        if left < 0:
            break
        adds = point.kind is not MetricKind.GAUGE and point.temporality is Temporality.DELTA
        found.append(SeriesPoint(key, point.value, adds))
    return found


class _ClientValues:
    """What one client has pushed."""

    __slots__ = ("label", "size_bytes", "values")

    def __init__(self, label: str) -> None:
        self.label = label
        """The labels that all its series have."""
        self.values: dict[SeriesKey, float] = {}
        self.size_bytes = len(label) + _SERIES_BYTES


class ClientSeries:
    """The newest values of the metrics that clients push, as OpenMetrics text for Prometheus.

    Sums of which clients push the difference to the last push are added up, so that Prometheus reads counters. What
    clients push is made up by them: series are bounded in number and in bytes, for one client and for all. Where there
    is no room for another, the clients that pushed least recently are removed. A store.

    The series of all clients of a broker.
    """

    def __init__(self) -> None:
        self._clients: dict[Uuid, _ClientValues] = {}
        """The one that pushed least recently first."""
        self._size_bytes = 0
        self.left_out = 0
        """Data points so far for which their client had no more room."""

    def __len__(self) -> int:
        return sum(len(client.values) for client in self._clients.values())

    def take(self, instance_id: Uuid, client: Client, points: Sequence[SeriesPoint]) -> None:
        """Replace the values of these metrics."""
        found = self._clients.pop(instance_id, None)
        if found is None:
            found = _ClientValues(_labels_of(instance_id, client))
            self._size_bytes += found.size_bytes
        self._clients[instance_id] = found
        before = found.size_bytes
        for point in points:
            self._put(found, point)
        self._size_bytes += found.size_bytes - before
        while self._size_bytes > MAX_BYTES and len(self._clients) > 1:
            self.remove(next(iter(self._clients)))

    def remove(self, instance_id: Uuid) -> None:
        """A client is not connected any more."""
        found = self._clients.pop(instance_id, None)
        if found is not None:
            self._size_bytes -= found.size_bytes

    def _put(self, client: _ClientValues, point: SeriesPoint) -> None:
        key, value, adds = point
        former = client.values.get(key)
        if former is None:
            size = len(key[0]) + len(key[2]) + _SERIES_BYTES
            if client.size_bytes + size > MAX_CLIENT_BYTES:
                self.left_out += 1
                return
            client.size_bytes += size
            former = 0.0
        total = former + value if adds else value
        if isfinite(total):
            client.values[key] = total

    def openmetrics(self) -> Iterator[str]:
        """All series, a piece at a time; empty ones while they are listed. Of two clients that use one name for a
        counter and for a gauge, the first one is shown."""
        families: dict[str, tuple[bool, list[tuple[_ClientValues, str, float]]]] = {}
        for client in list(self._clients.values()):
            yield ""
            for (family, is_counter, labels), value in client.values.items():
                kept = families.setdefault(family, (is_counter, []))
                if kept[0] is is_counter:
                    kept[1].append((client, labels, value))
        lines = PagePiece()
        for family, (is_counter, members) in families.items():
            lines.append(f"# TYPE {family} {'counter' if is_counter else 'gauge'}")
            suffix = "_total" if is_counter else ""
            for client, labels, value in members:
                own = f",{labels}" if labels else ""
                lines.append(f"{family}{suffix}{{{client.label}{own}}} {value!r}")
                if lines.is_long:
                    yield lines.take()
        lines.append("# EOF")
        yield lines.take()


def _labels_of(instance_id: Uuid, client: Client) -> str:
    return (
        f'client_instance_id="{uuid_to_text(instance_id)}",client_id="{value_of(client.client_id)}",'
        f'client_software="{value_of(client.software_name)}"'
    )


def _name(text: str) -> str:
    """A name that OpenMetrics allows, and that is none of the labels of all series."""
    name = _NOT_IN_NAMES.sub("_", text).strip("_") or "unnamed"
    return f"_{name}" if name[0].isdigit() or name in ("client_instance_id", "client_id", "client_software") else name
