"""Posts what a node measures to an OpenTelemetry collector: `kalda.metrics.otlp.endpoint`, OTLP over HTTP (protobuf).

The sensors are read in the background of the event loop; they are encoded, compressed and posted by a job. At most one
post is under way, and one that fails is dropped: the next one has newer totals. A collector that hangs or refuses
therefore costs a thread for a while, and nothing else. The messages are those that clients push, so no library is
needed.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterable
from itertools import islice
from math import isfinite
from typing import Final
from urllib.parse import urlsplit

from kalda.base.background import ITEMS_A_STEP, Background, Priority, Steps
from kalda.base.errors import ApiError
from kalda.base.scheduling import Clock, Jobs, Pending, Timer, Timers
from kalda.base.sensors import Measurable, SensorName, Sensors
from kalda.telemetry.names import family_of, is_counter
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality, encode

# What a node measures, as OTLP data points for a collector.

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
                MetricKind.SUM if counts else MetricKind.GAUGE,
                value,
                wall_ms * _NS_PER_MS,
                start_ms * _NS_PER_MS if counts else 0,
                name.tags,
                temporality=Temporality.CUMULATIVE if counts else Temporality.UNSPECIFIED,
                is_monotonic=counts,
            )
        )
    return points


log = logging.getLogger("kalda.node")

ENDPOINT: Final = "kalda.metrics.otlp.endpoint"
_TIMEOUT_S: Final = 10


def check_endpoint(endpoint: str) -> None:
    """Raises `ValueError` for another URL than one of HTTP."""
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise ValueError(f"{ENDPOINT}={endpoint}: http://HOST:PORT/PATH is expected")


class MetricsPush:
    """One node's."""

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        endpoint: str,
        interval_ms: int,
        sensors: Sensors,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        """Raises `ValueError` for another URL than one of HTTP."""
        check_endpoint(endpoint)
        self._endpoint = endpoint
        self._interval_ms = interval_ms
        self._sensors = sensors
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._resource = (
            ("service.name", "kalda"),
            ("service.instance.id", str(node_id)),
            ("kafka.cluster.id", cluster_id),
        )
        self._start_ms = clock.wall_ms()
        self._timer: Timer | None = None
        """For the next post; None while one is made."""
        self._reading: Pending[list[DataPoint]] | None = None
        """The values of the next post; None while none are read."""
        self.posted = 0
        """Posts so far that the collector has taken."""
        self.failed = 0
        """And those that it has not. Each that is a power of two is logged."""
        self._closed = False

    def start(self) -> None:
        """Post from now on, the first time after an interval."""
        self._timer = self._timers.call_later_ms(self._interval_ms, self._begin)

    def close(self) -> None:
        """Post no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.abandon()

    def _begin(self) -> None:
        self._timer = None
        self._reading = self._background.run(self._read(), Priority.MAINTENANCE)
        self._reading.then(self._on_read)

    def _read(self) -> Steps[list[DataPoint]]:
        left = self._sensors.everything()
        points: list[DataPoint] = []
        while some := list(islice(left, ITEMS_A_STEP)):
            points.extend(node_points(some, self._clock.mono_ms(), self._clock.wall_ms(), self._start_ms))
            yield
        return points

    def _on_read(self, points: list[DataPoint] | None, error: ApiError | None) -> None:
        self._reading = None
        if points is None:
            self._posted(None, error)
        else:
            self._jobs.run(lambda: post_metrics(self._endpoint, encode(points, self._resource)), self._posted)

    def _posted(self, _: None, error: BaseException | None) -> None:
        if error is None:
            self.posted += 1
        else:
            self.failed += 1
            if self.failed & (self.failed - 1) == 0:
                log.warning(
                    "%s=%s has not taken metrics, %d times now: %s", ENDPOINT, self._endpoint, self.failed, error
                )
        if not self._closed:
            self.start()


def post_metrics(endpoint: str, payload: bytes) -> None:
    """One message to a collector; blocks. Raises `OSError`."""
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    request = Request(endpoint, gzip.compress(payload), headers, method="POST")
    with urlopen(request, timeout=_TIMEOUT_S) as answer:
        answer.read(64 * 1024)
