"""Where goes what a node measures: its own listener, and an OpenTelemetry collector.

The listener of `kalda.metrics.listener`: what a node measures, and why its clients wait.

- `/metrics`: all sensors, as OpenMetrics text for Prometheus
- `/metrics.json`: the same under Kafka's own names
- `/client-metrics`: the newest values that clients have pushed (KIP-714), as OpenMetrics text
- `/quotas`: who uses how much of which quota
- `/explain/access?principal=P&operation=O&type=T&resource=R&host=H`: what allows or denies a request, and why
- `/explain/locks?group=G`: records of a share group that are in flight where this node leads
- `/explain/rebalance?group=G`: who waits for whom in a group, and what caused its last rebalances
- `/explain/throttle?user=U&client=ID`: whose quota applies to a client, and why, and what it has used
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kalda.base.background import ITEMS_A_STEP, Background, Priority, Steps
from kalda.base.errors import ApiError
from kalda.base.scheduling import Clock, Jobs, Pending, Timer, Timers
from kalda.base.sensors import Measurable, SensorName, Sensors
from kalda.network.server.http import HttpServer, Page
from kalda.quota.explanation import explain, usage
from kalda.quota.managers import QuotaManagers
from kalda.telemetry.exposition import CONTENT_TYPE, as_json, family_of, is_counter, jmx_text, openmetrics
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality, encode

if TYPE_CHECKING:
    from kalda.telemetry.client_metrics import ClientSeries

log = logging.getLogger("kalda.node")

LISTENER = "kalda.metrics.listener"
_JSON = "application/json; charset=utf-8"
_PIECE_CHARACTERS = 50_000


class MetricsListener:
    """Serves the sensors and quotas of one node."""

    def __init__(
        self,
        node_id: int,
        sensors: Sensors,
        managers: QuotaManagers,
        clock: Clock,
        client_series: Callable[[], ClientSeries | None],
        names: str,
        explain_rebalance: Callable[[str, int], dict[str, Any]] | None,
        explain_locks: Callable[[str], dict[str, Any]] | None,
        authorizer: object | None = None,
    ) -> None:
        """`client_series()` is what clients have pushed, None where none has. `names`: `kalda.metrics.names`.
        `explain_rebalance(group, now_ms)` answers for the group coordinator of this node, `explain_locks(group)` for
        the share partitions that it leads; None where it is no broker.
        `authorizer`: None where everyone may do everything."""
        self._explain_rebalance = explain_rebalance
        self._explain_locks = explain_locks
        self._authorizer = authorizer
        self._node_id = node_id
        self._sensors = sensors
        self._managers = managers
        self._clock = clock
        self._client_series = client_series
        self._text = jmx_text if names == "jmx" else openmetrics
        self._server = HttpServer(self._page)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._server.port

    async def open(self, listener: str) -> None:
        """Listen on `host:port`. Raises `OSError`, and `ValueError` for another text."""
        host, port = parse_listener(listener)
        await self._server.open(host, port)
        log.info("metrics are on http://%s:%d/metrics", host or "*", self.port)

    async def close(self) -> None:
        """Serve nothing more."""
        await self._server.close()

    def _explain_access(self, query: dict[str, str]) -> dict[str, Any]:
        """The decision, or what is wrong with the question."""
        from kalda.base.errors import ApiError
        from kalda.protocol.messages.security import AclOperation, AclResourceType
        from kalda.security.standard_authorizer import StandardAuthorizer
        from kalda.security.standard_authorizer import explain as explain_access

        if not isinstance(self._authorizer, StandardAuthorizer):
            what = "no authorizer" if self._authorizer is None else "an authorizer of its own, which explains nothing"
            return {"error": f"this node has {what}"}
        operation, resource = query.get("operation", "").upper(), query.get("type", "").upper()
        if operation not in AclOperation.__members__ or resource not in AclResourceType.__members__:
            return {"error": "operation and type are names of Kafka, as READ and TOPIC"}
        principal, host, name = query.get("principal", ""), query.get("host", ""), query.get("resource", "")
        try:
            return explain_access(
                self._authorizer, principal, host, AclOperation[operation], AclResourceType[resource], name
            )
        except ApiError as error:
            return {"error": error.message}

    def _page(self, path: str, query: dict[str, str]) -> Page | None:
        now_ms = self._clock.mono_ms()
        if path == "/metrics":
            return Page(CONTENT_TYPE, self._text(self._sensors.everything(), now_ms))
        if path == "/metrics.json":
            return Page(_JSON, _pieces(as_json(self._sensors.everything(), now_ms)))
        if path == "/client-metrics":
            series = self._client_series()
            return Page(CONTENT_TYPE, ["# EOF\n"] if series is None else series.openmetrics())
        if path == "/quotas":
            head = f'{{"node": {self._node_id}, "usage": '
            return Page(_JSON, chain([head], _pieces(usage(self._managers, now_ms)), ["}"]))
        if path == "/explain/access":
            return Page(_JSON, [json.dumps({"node": self._node_id, **self._explain_access(query)})])
        if path == "/explain/locks" and self._explain_locks is not None:
            locks = self._explain_locks(query.get("group", ""))
            return Page(_JSON, [json.dumps({"node": self._node_id, **locks})])
        if path == "/explain/rebalance" and self._explain_rebalance is not None:
            explained = self._explain_rebalance(query.get("group", ""), now_ms)
            return Page(_JSON, [json.dumps({"node": self._node_id, **explained})])
        if path == "/explain/throttle":
            found = explain(self._managers, query.get("user", "ANONYMOUS"), query.get("client", ""), now_ms)
            return Page(_JSON, [json.dumps({"node": self._node_id, "now_ms": now_ms, **found})])
        return None


def _pieces(rows: Iterable[dict[str, Any] | None]) -> Iterator[str]:
    """An array, some rows at a time. None is no row: nothing was made for a while."""
    piece, separator = "[", ""
    for row in rows:
        if row is not None:
            piece += separator + json.dumps(row)
            separator = ","
        if row is None or len(piece) >= _PIECE_CHARACTERS:
            yield piece
            piece = ""
    yield piece + "]"


def parse_listener(text: str) -> tuple[str, int]:
    """`host:port`, with or without `http://`. Raises `ValueError`."""
    host, colon, port = text.strip().removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{LISTENER}={text}: HOST:PORT is expected, as in 127.0.0.1:9404")
    return host.strip("[]"), int(port)


# Posts what a node measures to an OpenTelemetry collector: `kalda.metrics.otlp.endpoint`, OTLP over HTTP (protobuf).
#
# The sensors are read in the background of the event loop; they are encoded, compressed and posted by a job. At most
# one post is under way, and one that fails is dropped: the next one has newer totals. A collector that hangs or
# refuses therefore costs a thread for a while, and nothing else. The messages are those that clients push, so no
# library is needed.

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
