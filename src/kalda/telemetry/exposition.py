"""Sensors as OpenMetrics text, for Prometheus: in pieces, since a node may have a hundred thousand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, isnan
from typing import Any

from kalda.base.sensors import Measurable, SensorName, Tags
from kalda.telemetry.names import HELP, family_of, is_counter, jmx_name, label_of, value_of

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PIECE_LINES = 500
"""Lines in a piece at most, and sensors that are listed at once."""
_PIECE_CHARACTERS = 50_000


class PagePiece:
    """Lines of a page that are sent together. Clients make up names of 32 KB."""

    __slots__ = ("_lines", "_size")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def append(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)

    @property
    def is_long(self) -> bool:
        return self._size >= _PIECE_CHARACTERS or len(self._lines) >= _PIECE_LINES

    def take(self) -> str:
        """The lines, which are forgotten."""
        text = "\n".join(self._lines) + "\n"
        self._lines, self._size = [], 0
        return text


def openmetrics(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[str]:
    """The text, about `_PIECE_CHARACTERS` at a time. A sensor without a value, as an average of nothing, is left out.

    All samples of a family stand together, as the format demands. So the sensors are listed before the first line: the
    pieces that are made meanwhile are empty.
    """
    families: dict[str, list[tuple[SensorName, Measurable]]] = {}
    for number, (name, sensor) in enumerate(sensors, 1):
        if number % _PIECE_LINES == 0:
            yield ""
        families.setdefault(family_of(name, is_counter(sensor)), []).append((name, sensor))
    lines = PagePiece()
    for family, members in families.items():
        counter = is_counter(members[0][1])
        lines.append(f"# TYPE {family} {'counter' if counter else 'gauge'}")
        if members[0][0].name in HELP:
            lines.append(f"# HELP {family} {HELP[members[0][0].name]}")
        for name, sensor in members:
            value = sensor.measure(now_ms)
            if not isnan(value):
                lines.append(f"{family}{'_total' if counter else ''}{_labels(name.tags)} {_number(value)}")
            if lines.is_long:
                yield lines.take()
    lines.append("# EOF")
    yield lines.take()


def jmx_text(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[str]:
    """The same under the names of the JMX exporter, for dashboards that were made for Apache Kafka behind it. As from
    the exporter, no sample says whether it is a counter."""
    families: dict[str, list[tuple[Tags, Measurable]]] = {}
    for number, (name, sensor) in enumerate(sensors, 1):
        if number % _PIECE_LINES == 0:
            yield ""
        family, labels = jmx_name(name, is_counter(sensor))
        families.setdefault(family, []).append((labels, sensor))
    lines = PagePiece()
    for family, members in families.items():
        lines.append(f"# TYPE {family} unknown")
        for labels, sensor in members:
            value = sensor.measure(now_ms)
            if not isnan(value):
                lines.append(f"{family}{_labels(labels)} {_number(value)}")
            if lines.is_long:
                yield lines.take()
    lines.append("# EOF")
    yield lines.take()


def _labels(tags: Tags) -> str:
    if not tags:
        return ""
    return "{" + ",".join(f'{label_of(tag)}="{value_of(value)}"' for tag, value in tags) + "}"


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def as_json(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[dict[str, Any]]:
    """The same as values, under Kafka's own names."""
    for name, sensor in sensors:
        value = sensor.measure(now_ms)
        if not isnan(value):
            yield {
                "group": name.group,
                "name": name.name,
                "tags": dict(name.tags),
                "value": value if abs(value) != inf else None,
                "counter": is_counter(sensor),
            }
