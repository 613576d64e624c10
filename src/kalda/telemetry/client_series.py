"""The newest values of the metrics that clients push, as OpenMetrics text for Prometheus.

Sums of which clients push the difference to the last push are added up, so that Prometheus reads counters. What clients
push is made up by them: series are bounded in number and in bytes, for one client and for all. Where there is no room
for another, the clients that pushed least recently are removed. A store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

from kalda.base.ids import Uuid, uuid_to_text
from kalda.telemetry.client_instances import Client
from kalda.telemetry.exposition import PagePiece
from kalda.telemetry.names import value_of
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality

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
    """The series of all clients of a broker."""

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
