"""Requests by API: how many, of which version, how large, and for how long they are under way.

Under Kafka's names, `kafka.network:type=RequestMetrics`. A node has one event loop, so a request has no queue of its
own and no thread that writes its response: of Kafka's times there are

    LocalTimeMs     for how long the request's frame holds the event loop: decoding, handling, encoding
    RemoteTimeMs    for how long its answer waits: for followers, for bytes, for the controller
    TotalTimeMs     both

Measured only where `kalda.metrics.listener` is set, around the whole pipeline: two readings of the clock, one look-up
and a few additions of integers for each request. Durations fall into buckets, four to a power of two of microseconds;
whoever reads them gets quantiles of the last minute or two, up to the width of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kalda.base.pending import Pending
from kalda.base.sensors import Counter, Gauge, Measurable, SensorName
from kalda.broker.context import RequestContext
from kalda.broker.pipeline import RequestPipeline
from kalda.network.connection import Answer, Connection
from kalda.protocol.apis import API

GROUP: Final = "kafka.network:type=RequestMetrics"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
_BUCKETS: Final = 160
"""Four for each bit of a duration in microseconds, up to 2^40."""
_WINDOW_MS: Final = 60_000


class Durations:
    """How many durations fell into each bucket, since the start."""

    __slots__ = ("_now_counts", "_then_counts", "_then_ms", "counts")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        """Add to these in place, at `bucket_of`."""
        self._then_counts = self._now_counts = [0] * _BUCKETS
        """What `counts` was when two windows began: one to two windows ago, and at most one."""
        self._then_ms = 0

    def quantiles(self, now_ms: int) -> list[float]:
        """Milliseconds by `QUANTILES`, of the last one or two windows; empty where there were none."""
        if now_ms - self._then_ms >= _WINDOW_MS:
            self._then_counts, self._now_counts, self._then_ms = self._now_counts, list(self.counts), now_ms
        recent = [count - then for count, then in zip(self.counts, self._then_counts, strict=True)]
        total = sum(recent)
        if not total:
            return []
        found = []
        seen = bucket = 0
        for quantile in QUANTILES:
            while bucket < _BUCKETS - 1 and seen + recent[bucket] < quantile * total:
                seen += recent[bucket]
                bucket += 1
            found.append(upper_end_us(bucket) / 1000)
        return found


def bucket_of(duration_us: int) -> int:
    """The bucket that a duration falls into."""
    if duration_us < 4:
        return max(0, duration_us)
    bits = duration_us.bit_length()
    return min((bits - 2 << 2) | (duration_us >> bits - 3 & 3), _BUCKETS - 1)


def upper_end_us(bucket: int) -> int:
    """The largest duration in a bucket."""
    if bucket < 4:
        return bucket
    shift = (bucket >> 2) - 1
    return ((4 | bucket & 3) + 1 << shift) - 1


class _ApiMetrics:
    """Of one version of one API."""

    __slots__ = ("bytes", "local", "name", "remote", "requests", "total", "version")

    def __init__(self, api_key: int, version: int, shared: _ApiMetrics | None) -> None:
        """`shared` is of another version of the API, which has the same durations."""
        self.name = API[api_key].name
        self.version = version
        self.requests = Counter()
        self.bytes: Counter = Counter() if shared is None else shared.bytes
        self.local: Durations = Durations() if shared is None else shared.local
        self.remote: Durations = Durations() if shared is None else shared.remote
        self.total: Durations = Durations() if shared is None else shared.total


class RequestMetrics:
    """The requests of a node, through all its pipelines."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """`now_ns` is the clock of `Host.busy_ns`."""
        self._now_ns = now_ns
        self._by_version: dict[tuple[int, ...], _ApiMetrics] = {}
        """By API key and version. Only pairs that a pipeline serves, so their number is bounded."""

    def measured(self, pipeline: RequestPipeline) -> Callable[[Connection, memoryview], Answer]:
        """The frame handler of a pipeline, measured."""
        now_ns, by_version, on_frame = self._now_ns, self._by_version, pipeline.on_frame

        def measured_on_frame(connection: Connection, frame: memoryview) -> Answer:
            began_ns = now_ns()
            answer = on_frame(connection, frame)
            local_ns = now_ns() - began_ns
            context: RequestContext | None = pipeline.handling
            if context is None:
                return answer
            metrics = by_version.get(context.header[:2])
            if metrics is None:
                metrics = self._new(context.header[:2])
            metrics.requests.value += 1
            metrics.bytes.value += len(frame)
            local = bucket_of(local_ns // 1000)
            metrics.local.counts[local] += 1
            if isinstance(answer, Pending):
                self._await(metrics, answer, began_ns, local_ns)
            else:
                metrics.remote.counts[0] += 1
                metrics.total.counts[local] += 1
            return answer

        return measured_on_frame

    def _await(self, metrics: _ApiMetrics, answer: Pending[Any], began_ns: int, local_ns: int) -> None:
        def settled(_: object, __: object) -> None:
            total_ns = self._now_ns() - began_ns
            metrics.remote.counts[bucket_of((total_ns - local_ns) // 1000)] += 1
            metrics.total.counts[bucket_of(total_ns // 1000)] += 1

        answer.then(settled)

    def _new(self, key: tuple[int, ...]) -> _ApiMetrics:
        api_key, version = key
        shared = next((each for (other, _), each in self._by_version.items() if other == api_key), None)
        made = self._by_version[key] = _ApiMetrics(api_key, version, shared)
        return made

    def sensors(self, now_ms: int) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        described: set[str] = set()
        for metrics in list(self._by_version.values()):
            tags = (("request", metrics.name), ("version", str(metrics.version)))
            yield SensorName(GROUP, "RequestsPerSec", tags), metrics.requests
        for metrics in list(self._by_version.values()):
            if metrics.name in described:
                continue
            described.add(metrics.name)
            tag = ("request", metrics.name)
            yield SensorName(GROUP, "RequestBytes", (tag,)), metrics.bytes
            for name, durations in (
                ("LocalTimeMs", metrics.local),
                ("RemoteTimeMs", metrics.remote),
                ("TotalTimeMs", metrics.total),
            ):
                for quantile, value in zip(QUANTILES, durations.quantiles(now_ms), strict=False):
                    gauge = Gauge()
                    gauge.value = value
                    yield SensorName(GROUP, name, (tag, ("quantile", str(quantile)))), gauge
