"""What every client measures, by the names of Kafka's Java client: its connections, each node's, its I/O, and itself.

    series.append(value)     an event: the value is kept, and nothing is computed
    run(now)                 report what was kept to the stats, where the last time is `FLUSH_MS` ago
    snapshot(now)            every metric's value
    measured(now)            name, value and kind of every metric, for KIP-714

A value counts in all stats of its quantity: a maximum is that of all values in the windows. What costs time is done for
many values at once. `append` may be called on one thread while `snapshot` is on another; `lock` keeps flushes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

from kalda.base.sensors import Counter, Gauge, SensorName, Sensors, Tags
from kalda.base.stats import MetricConfig, Rate, SampledStat

FLUSH_MS: Final = 100
"""Values wait for their stats that long at most, where the client runs."""
_NS_PER_S: Final = 1e9
_SECONDS_PER_HOUR: Final = 3600
_MS_PER_HOUR: Final = 3_600_000
_FETCH_BASE: Final = 2**31
_COORDINATOR_BASE: Final = 2**32
_FIRST_COORDINATOR: Final = 3 * 2**30
Ending = Literal["avg", "max", "min", "rate", "total", "rate-per-hour"]


def metric_config(values: Mapping[str, Any]) -> MetricConfig:
    """The windows of `metrics.sample.window.ms` and `metrics.num.samples`."""
    return MetricConfig(max(1, values["metrics.sample.window.ms"]), values["metrics.num.samples"])


class Stats:
    """The stats of one quantity."""

    __slots__ = ("_counts", "_rate", "_sampled", "_total")

    def __init__(self, sampled: Sequence[SampledStat], rate: Rate | None, total: Counter | None, counts: bool) -> None:
        """`rate` and `total` get the values, or where `counts` how many there are."""
        self._sampled = sampled
        self._rate = rate
        self._total = total
        self._counts = counts

    def add(self, values: Sequence[float], now_ms: int) -> None:
        """Count values, of which there is one at least."""
        for stat in self._sampled:
            stat.record_all(values, now_ms)
        amount = len(values) if self._counts else sum(values)
        if self._rate is not None:
            self._rate.record(amount, now_ms)
        if self._total is not None:
            self._total.value += int(amount)


class Series:
    """Values that were appended since the last flush."""

    __slots__ = ("_stats", "_values", "append")

    def __init__(self, *stats: Stats) -> None:
        self._stats = stats
        self._values: list[float] = []
        self.append = self._values.append

    def flush(self, now_ms: int) -> None:
        """Report the values to the stats."""
        values = self._values[:]
        if values:
            del self._values[: len(values)]  # others may have been appended meanwhile
            for stats in self._stats:
                stats.add(values, now_ms)


class NodeTraffic:
    """What was sent to one node and received from it: requests and responses with their sizes, and the latency of those
    that the client is made for."""

    __slots__ = ("latency", "received", "sent")

    def __init__(self, sent: Series, received: Series, latency: Series) -> None:
        self.sent = sent
        self.received = received
        self.latency = latency


class ClientMetrics:
    """The sensors of one client."""

    def __init__(
        self,
        kind: str,
        client_id: str,
        config: MetricConfig | None = None,
        *,
        version: str = "",
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`kind` begins the groups of the names: `producer`, `consumer`, `admin-client`."""
        self.sensors = Sensors()
        self.kind, self.group = kind, f"{kind}-metrics"
        self.started_at_ms = 0
        """By the wall clock; set by the shell."""
        self._version = version
        self.config = config or MetricConfig()
        self._tags: Tags = (("client-id", client_id),)
        self._lock: AbstractContextManager[Any] = lock or nullcontext()
        self._read_ms = 0
        """The time of the snapshot that is being read."""
        self._flushed_ms = -FLUSH_MS
        self._series: list[Series] = []
        self._rates: list[tuple[Counter, Rate, float]] = []
        """Totals, the rates at which they grow, and the unit of these."""
        self._reported: dict[Counter, float] = {}
        """How much of each total its rate has got."""
        self._nodes: dict[int, NodeTraffic] = {}
        self._sent, self._received = self._traffic(self.group, self._tags)
        io = self.stats("network-io", "rate", "total", counts=True)
        self._sent, self._received = (*self._sent, io), (*self._received, io)
        self._latency: tuple[Stats, ...] = ()
        """Of responses of all nodes."""
        self._add_connections()
        self._add_io()

    def _add_connections(self) -> None:
        self.connections_created = self.counter_with_rate("connection-creation-total", "connection-creation-rate")
        self.connections_closed = self.counter_with_rate("connection-close-total", "connection-close-rate")
        self.logins = self.counter_with_rate("successful-authentication-total", "successful-authentication-rate")
        self.gauge("successful-authentication-no-reauth-total", lambda _now_ms: self.logins.value)
        self.failed_logins = self.counter_with_rate("failed-authentication-total", "failed-authentication-rate")
        self.renewals = self.series(
            self.stats("successful-reauthentication", "rate", "total", counts=True),
            self.stats("reauthentication-latency", "avg", "max"),
        )
        self.failed_renewals = self.counter_with_rate("failed-reauthentication-total", "failed-reauthentication-rate")

    def _add_io(self) -> None:
        """Nanoseconds of waiting for sockets, and of reading and writing."""
        self.io_wait_ns = self._io("io-wait", self.stats("select", "rate", "total", counts=True))
        self.io_ns = self._io("io")

    def _io(self, name: str, *others: Stats) -> Series:
        total = self.counter_with_rate(f"{name}-time-ns-total", f"{name}-ratio", unit=_NS_PER_S)
        return self.series(self.stats(f"{name}-time-ns", "avg"), Stats((), None, total, False), *others)

    # -- made once

    def stats(
        self, name: str, *endings: Ending, counts: bool = False, group: str | None = None, tags: Tags | None = None
    ) -> Stats:
        """The stats of one quantity, `name` with each of the endings."""
        group, tags, config = group or self.group, self._tags if tags is None else tags, self.config
        sampled: list[SampledStat] = []
        rate = total = None
        for ending in endings:
            full = f"{name}-{ending}"
            if ending == "avg":
                sampled.append(self.sensors.average(group, full, tags, config))
            elif ending == "max":
                sampled.append(self.sensors.maximum(group, full, tags, config))
            elif ending == "min":
                sampled.append(self.sensors.minimum(group, full, tags, config))
            elif ending == "total":
                total = self.sensors.counter(group, full, tags)
            elif ending == "rate":
                rate = self.sensors.rate(group, full, tags, config)
            else:
                rate = self._hourly(group, full, tags)
        return Stats(sampled, rate, total, counts)

    def _hourly(self, group: str, name: str, tags: Tags) -> Rate:
        rate = Rate(self.config._replace(window_ms=_MS_PER_HOUR))
        self._read_with(group, name, tags, lambda now_ms: rate.measure(now_ms) * _SECONDS_PER_HOUR)
        return rate

    def series(self, *stats: Stats) -> Series:
        """Values for these stats."""
        series = Series(*stats)
        self._series.append(series)
        return series

    def gauge(
        self, name: str, read: Callable[[int], float], *, group: str | None = None, tags: Tags | None = None
    ) -> Gauge:
        """A value that `read(now_ms)` returns."""
        return self._read_with(group or self.group, name, self._tags if tags is None else tags, read)

    def _read_with(self, group: str, name: str, tags: Tags, read: Callable[[int], float]) -> Gauge:
        return self.sensors.gauge(group, name, tags, lambda: read(self._read_ms))

    def counter(self, name: str) -> Counter:
        """A total."""
        return self.sensors.counter(self.group, name, self._tags)

    def counter_with_rate(
        self, total: str, rate: str, *, unit: float = 1, group: str | None = None, tags: Tags | None = None
    ) -> Counter:
        """A total, and how many units it grows by in a second."""
        group, tags = group or self.group, self._tags if tags is None else tags
        counter = self.sensors.counter(group, total, tags)
        self._rates.append((counter, self.sensors.rate(group, rate, tags, self.config), unit))
        return counter

    def _traffic(self, group: str, tags: Tags) -> tuple[tuple[Stats, ...], tuple[Stats, ...]]:
        """The stats of requests and of responses, whose values are their sizes."""
        sent = (
            self.stats("request", "rate", "total", counts=True, group=group, tags=tags),
            self.stats("request-size", "avg", "max", group=group, tags=tags),
            self.stats("outgoing-byte", "rate", "total", group=group, tags=tags),
        )
        received = (
            self.stats("response", "rate", "total", counts=True, group=group, tags=tags),
            self.stats("incoming-byte", "rate", "total", group=group, tags=tags),
        )
        return sent, received

    def node(self, node_id: int) -> NodeTraffic:
        """The traffic with a node, by the id of its connection."""
        known = self._nodes.get(node_id)
        if known is None and node_id >= _FETCH_BASE:
            known = self._nodes[node_id] = self.node(_kafkas_id(node_id))
        if known is None:
            group, tags = f"{self.kind}-node-metrics", (*self._tags, ("node-id", f"node-{node_id}"))
            sent, received = self._traffic(group, tags)
            latency = self.stats("request-latency", "avg", "max", group=group, tags=tags)
            known = self._nodes[node_id] = NodeTraffic(
                self.series(*sent, *self._sent),
                self.series(*received, *self._received),
                self.series(latency, *self._latency),
            )
        return known

    # -- in use

    def run(self, now_ms: int) -> None:
        """Time has passed."""
        if now_ms - self._flushed_ms >= FLUSH_MS:
            with self._lock:
                self._flush(now_ms)

    def _flush(self, now_ms: int) -> None:
        self._flushed_ms = now_ms
        for series in self._series:
            series.flush(now_ms)
        for total, rate, unit in self._rates:
            grown = total.value - self._reported.get(total, 0)
            if grown:
                self._reported[total] = total.value
                rate.record(grown / unit, now_ms)

    def snapshot(self, now_ms: int) -> dict[str, Any]:
        """Every metric's value. That of a topic, a partition or a node stands behind its name and a dot."""
        found: dict[str, Any] = {}
        for name, value, _ in self.measured(now_ms):
            tags = dict(name.tags)
            place = "-".join(tags[tag] for tag in ("topic", "partition", "node-id") if tag in tags)
            found[f"{place}.{name.name}" if place else name.name] = value
        # Of the groups app-info and kafka-metrics-count.
        found |= {"version": self._version, "commit-id": "unknown", "start-time-ms": self.started_at_ms}
        found["count"] = len(found) + 1
        return found

    def measured(self, now_ms: int) -> list[tuple[SensorName, float, bool]]:
        """Name and value of every metric of what the client does, and whether it only grows."""
        with self._lock:
            self._flush(now_ms)
            self._read_ms = now_ms
            return [(name, sensor.measure(now_ms), name.name.endswith("-total")) for name, sensor in self.sensors]


def _kafkas_id(node_id: int) -> int:
    """The id that the Java client has for the connection: that of the broker, and 2147483647 minus that where the
    connection is the coordinator's."""
    if node_id >= _FIRST_COORDINATOR:
        return 2**31 - 1 - (_COORDINATOR_BASE - node_id)
    return node_id - _FETCH_BASE if node_id >= _FETCH_BASE else node_id
