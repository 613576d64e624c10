"""The metrics messages of OpenTelemetry (`opentelemetry.proto.metrics.v1`), as far as clients of Kafka use them.

    MetricsData -> ResourceMetrics -> ScopeMetrics -> Metric -> Gauge | Sum | Histogram -> data points

Decoding is bounded whatever the bytes are: in data points, in attributes, in fields of any kind, in the length of each
text. `opentelemetry-proto` would decode these messages too, but it makes an object of every field before anything can
be counted, and it is a dependency of its own for three messages. Metrics of other kinds are skipped. A codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

MAX_POINTS: Final = 10_000
MAX_ATTRIBUTES: Final = 100_000
"""Over all data points of one message."""
MAX_ATTRIBUTES_OF_ONE: Final = 128
"""Of a data point, or of a resource, as in OpenTelemetry's own limits; those after them are left out."""
MAX_FIELDS: Final = 500_000
_FIELDS_PER_PAUSE: Final = 16
MAX_TEXT: Final = 1_024
"""Bytes of a name or a value; what is longer is cut."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_double = Struct("<d")
_sfixed64 = Struct("<q")
_fixed64 = Struct("<Q")

Attributes: TypeAlias = tuple[tuple[str, str], ...]


class MetricKind(IntEnum):
    """The kinds of metrics, by their field in `Metric`."""

    GAUGE = 5
    SUM = 7
    HISTOGRAM = 9


class Temporality(IntEnum):
    """What a sum covers: the time since the last one, or since its start."""

    UNSPECIFIED = 0
    DELTA = 1
    CUMULATIVE = 2


class DataPoint(NamedTuple):
    """One measured value."""

    name: str
    kind: MetricKind
    value: float
    """Of a histogram, the sum of its values. An int where it was sent as one."""
    time_ns: int
    """Unix time."""
    start_ns: int = 0
    """When the value of a sum began; 0 where that is not known."""
    attributes: Attributes = ()
    resource: Attributes = ()
    """Attributes of the whole client."""
    unit: str = ""
    temporality: Temporality = Temporality.UNSPECIFIED
    is_monotonic: bool = False
    """Whether the value of the sum never decreases."""
    value_count: int | None = None
    """Of a histogram, how many values it has."""


class BadMetrics(ValueError):
    """Bytes that are no metrics message, or one that is too large."""


# -- decoding


class _Budget:
    """What one message may still hold."""

    __slots__ = ("attributes", "fields", "pause", "points")

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pause = pause
        """Called every `_FIELDS_PER_PAUSE` fields."""
        self.points = MAX_POINTS
        self.attributes = MAX_ATTRIBUTES
        self.fields = MAX_FIELDS


_Value: TypeAlias = "int | tuple[int, int]"
"""An integer; or where the bytes of a value are: from, up to."""


def decode(data: bytes, pause: Callable[[], None] = lambda: None) -> list[DataPoint]:
    """The data points of a `MetricsData`. `pause` is called again and again meanwhile. Raises `BadMetrics`."""
    try:
        return list(_points(data, _Budget(pause)))
    except (IndexError, ValueError) as error:
        raise error if isinstance(error, BadMetrics) else BadMetrics(f"the message is malformed: {error}") from error


def _points(data: bytes, budget: _Budget) -> Iterator[DataPoint]:
    for resource_metrics in _messages(data, (0, len(data)), 1, budget):
        resource: Attributes = ()
        for message in _messages(data, resource_metrics, 1, budget):
            resource = (resource + _attributes(data, message, 1, budget))[:MAX_ATTRIBUTES_OF_ONE]
        for scope_metrics in _messages(data, resource_metrics, 2, budget):
            for metric in _messages(data, scope_metrics, 2, budget):
                yield from _metric(data, metric, resource, budget)


def _metric(data: bytes, at: tuple[int, int], resource: Attributes, budget: _Budget) -> Iterator[DataPoint]:
    name = unit = ""
    found: list[tuple[MetricKind, tuple[int, int]]] = []
    for number, value in _fields(data, at, budget):
        if isinstance(value, int):
            continue
        if number == 1:
            name = _text(data, value)
        elif number == 3:
            unit = _text(data, value)
        elif number in _KINDS:
            found = [(MetricKind(number), value)]  # of a oneof the last field counts
    for kind, body in found:
        temporality, is_monotonic = Temporality.UNSPECIFIED, False
        points = []
        for number, value in _fields(data, body, budget):
            if number == 1 and not isinstance(value, int):
                points.append(value)
            elif number == 2 and kind is not MetricKind.GAUGE and value in (1, 2):
                temporality = Temporality(value)
            elif number == 3 and kind is MetricKind.SUM:
                is_monotonic = value == 1
        budget.points -= len(points)
        if budget.points < 0:
            raise BadMetrics(f"more than {MAX_POINTS} data points")
        for point in points:
            decoded = (
                _histogram_point(data, point, budget) if kind is MetricKind.HISTOGRAM else _point(data, point, budget)
            )
            if decoded is not None:
                measured, count, start_ns, time_ns, attributes = decoded
                yield DataPoint(
                    name,
                    kind,
                    measured,
                    time_ns,
                    start_ns,
                    attributes,
                    resource,
                    unit,
                    temporality,
                    is_monotonic,
                    count,
                )


_KINDS: Final = frozenset(map(int, MetricKind))
_Decoded: TypeAlias = tuple[float, int | None, int, int, Attributes]
"""Value, count, start, time, attributes."""


def _point(data: bytes, at: tuple[int, int], budget: _Budget) -> _Decoded | None:
    """A `NumberDataPoint`; None where it has no value."""
    start_ns = time_ns = 0
    measured: float | None = None
    for number, value in _fields(data, at, budget):
        if not isinstance(value, int):
            continue
        if number == 2:
            start_ns = value
        elif number == 3:
            time_ns = value
        elif number == 4:
            measured = _double.unpack(_fixed64.pack(value))[0]
        elif number == 6:
            measured = _sfixed64.unpack(_fixed64.pack(value))[0]
    return None if measured is None else (measured, None, start_ns, time_ns, _attributes(data, at, 7, budget))


def _histogram_point(data: bytes, at: tuple[int, int], budget: _Budget) -> _Decoded:
    start_ns = time_ns = count = 0
    total = 0.0
    for number, value in _fields(data, at, budget):
        if not isinstance(value, int):
            continue
        if number == 2:
            start_ns = value
        elif number == 3:
            time_ns = value
        elif number == 4:
            count = value
        elif number == 5:
            total = _double.unpack(_fixed64.pack(value))[0]
    return total, count, start_ns, time_ns, _attributes(data, at, 9, budget)


def _attributes(data: bytes, at: tuple[int, int], number: int, budget: _Budget) -> Attributes:
    """The `KeyValue` fields of that number in a message."""
    found: list[tuple[str, str]] = []
    for pair in _messages(data, at, number, budget):
        budget.attributes -= 1
        if budget.attributes < 0:
            raise BadMetrics(f"more than {MAX_ATTRIBUTES} attributes")
        if len(found) == MAX_ATTRIBUTES_OF_ONE:
            continue
        key = shown = ""
        for field, value in _fields(data, pair, budget):
            if isinstance(value, int):
                continue
            if field == 1:
                key = _text(data, value)
            elif field == 2:
                shown = _any_value(data, value, budget)
        found.append((key, shown))
    return tuple(found)


def _any_value(data: bytes, at: tuple[int, int], budget: _Budget) -> str:
    """An `AnyValue` as text; that of arrays and maps is empty."""
    shown = ""
    for number, value in _fields(data, at, budget):
        if number == 1 and not isinstance(value, int):
            shown = _text(data, value)
        elif number == 7 and not isinstance(value, int):
            shown = data[value[0] : min(value[1], value[0] + MAX_TEXT // 2)].hex()
        elif isinstance(value, int):
            if number == 2:
                shown = "true" if value else "false"
            elif number == 3:
                shown = str(value - (1 << 64) if value >> 63 else value)
            elif number == 4:
                shown = str(_double.unpack(_fixed64.pack(value))[0])
    return shown


def _messages(data: bytes, at: tuple[int, int], number: int, budget: _Budget) -> list[tuple[int, int]]:
    """Where the submessages of one field are."""
    return [value for found, value in _fields(data, at, budget) if found == number and not isinstance(value, int)]


def _text(data: bytes, at: tuple[int, int]) -> str:
    start, end = at
    return data[start : min(end, start + MAX_TEXT)].decode("utf-8", "replace")


def _fields(data: bytes, at: tuple[int, int], budget: _Budget) -> Iterator[tuple[int, _Value]]:
    """The fields of a message, in order: number, and value."""
    pos, end = at
    while pos < end:
        budget.fields -= 1
        if budget.fields < 0:
            raise BadMetrics(f"more than {MAX_FIELDS} fields")
        if not budget.fields % _FIELDS_PER_PAUSE:
            budget.pause()
        tag, pos = _varint(data, pos, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _BYTES:
            size, pos = _varint(data, pos, end)
            if size > end - pos:
                raise BadMetrics(f"a field of {size} bytes where {end - pos} are left")
            yield number, (pos, pos + size)
            pos += size
        elif wire_type == _VARINT:
            value, pos = _varint(data, pos, end)
            yield number, value
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
            if size > end - pos:
                raise BadMetrics(f"a field of {size} bytes where {end - pos} are left")
            yield number, int.from_bytes(data[pos : pos + size], "little")
            pos += size
        else:
            raise BadMetrics(f"wire type {wire_type} at position {pos}")


def _varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """The value, and the position after it."""
    value = data[pos]
    pos += 1
    if value >= 0x80:
        value &= 0x7F
        shift = 7
        while True:
            byte = data[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise BadMetrics(f"a varint of more than ten bytes at position {pos}")
        value &= (1 << 64) - 1
    if pos > end:
        raise BadMetrics(f"a message ends inside a field, at position {end}")
    return value, pos


# -- encoding


def encode(points: Iterable[DataPoint], resource: Attributes = ()) -> bytes:
    """One `MetricsData` of one resource and one scope. Data points of the same name, kind and unit are one metric."""
    metrics: dict[tuple[object, ...], list[DataPoint]] = {}
    for point in points:
        identity = (point.name, point.kind, point.unit, point.temporality, point.is_monotonic)
        metrics.setdefault(identity, []).append(point)
    encoded = b"".join([_message(2, _encoded_metric(each)) for each in metrics.values()])
    body = _message(1, _encoded_attributes(1, resource)) if resource else b""
    return _message(1, body + _message(2, encoded))


def _encoded_metric(points: Sequence[DataPoint]) -> bytes:
    first = points[0]
    body = b"".join([_message(1, _encoded_point(each)) for each in points])
    if first.kind is not MetricKind.GAUGE and first.temporality:
        body += bytes((0x10, first.temporality))
    if first.kind is MetricKind.SUM and first.is_monotonic:
        body += b"\x18\x01"
    unit = _message(3, first.unit.encode()) if first.unit else b""
    return _message(1, first.name.encode("utf-8", "replace")) + unit + _message(first.kind, body)


def _encoded_point(point: DataPoint) -> bytes:
    times = (
        (b"\x11" + _fixed64.pack(point.start_ns) if point.start_ns else b"") + b"\x19" + _fixed64.pack(point.time_ns)
    )
    if point.kind is MetricKind.HISTOGRAM:
        counted = b"\x21" + _fixed64.pack(point.value_count or 0) + b"\x29" + _double.pack(point.value)
        return times + counted + _encoded_attributes(9, point.attributes)
    value = point.value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        packed = b"\x31" + _sfixed64.pack(value)
    else:
        packed = b"\x21" + _double.pack(value)
    return times + packed + _encoded_attributes(7, point.attributes)


def _encoded_attributes(number: int, attributes: Sequence[tuple[str, str]]) -> bytes:
    return b"".join(
        [
            _message(
                number,
                _message(1, key.encode("utf-8", "replace"))
                + _message(2, _message(1, value.encode("utf-8", "replace"))),
            )
            for key, value in attributes
        ]
    )


def _message(number: int, body: bytes) -> bytes:
    size = len(body)
    if size < 0x80:
        return bytes((number << 3 | _BYTES, size)) + body
    head = bytearray((number << 3 | _BYTES,))
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body
