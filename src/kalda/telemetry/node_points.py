"""What a node measures, as OTLP data points for a collector."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from kalda.base.sensors import Measurable, SensorName
from kalda.telemetry.names import family_of, is_counter
from kalda.telemetry.otlp import DataPoint, Kind, Temporality

_NS_PER_MS = 1_000_000


def node_points(
    sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int, wall_ms: int, start_ms: int
) -> list[DataPoint]:
    """Counters as totals since `start_ms`, all else as gauges, under the names that Prometheus gets. `now_ms` is of
    the clock of the sensors, the others are Unix time."""
    points = []
    for name, sensor in sensors:
        value = sensor.measure(now_ms)
        if not isfinite(value):
            continue
        counts = is_counter(sensor)
        points.append(
            DataPoint(
                family_of(name, counts),
                Kind.SUM if counts else Kind.GAUGE,
                value,
                wall_ms * _NS_PER_MS,
                start_ms * _NS_PER_MS if counts else 0,
                name.tags,
                temporality=Temporality.CUMULATIVE if counts else Temporality.UNSPECIFIED,
                is_monotonic=counts,
            )
        )
    return points
