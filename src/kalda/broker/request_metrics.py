"""Requests by API: how many, of which version, how large, and for how long they are under way.

Under Kafka's names, `kafka.network:type=RequestMetrics`. A node has one event loop, so a request has no queue of its
own and no thread that writes its response: of Kafka's times there are

    LocalTimeMs     for how long the request's frame holds the event loop: decoding, handling, encoding
    RemoteTimeMs    for how long its answer waits: for followers, for bytes, for the controller
    TotalTimeMs     both

The pipeline counts every request. Times and sizes are measured only where `kalda.metrics.listener` is set, and of one
request in `EVERY`: of a Fetch that finds nothing, two readings of the clock would be a noticeable part. Durations fall
into buckets, four to a power of two of microseconds; whoever reads them gets quantiles of the last minute or two, up to
the width of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kalda.base.pending import Pending
from kalda.base.sensors import Counter, Gauge, Measurable, SensorName
from kalda.broker.context import RequestContext
from kalda.broker.pipeline import RequestPipeline
from kalda.network.connection import Answer, Connection
from kalda.protocol.apis import API

GROUP: Final = "kafka.network:type=RequestMetrics"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
EVERY: Final = 17
"""A prime: clients repeat requests in patterns."""
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

    def recent(self, now_ms: int) -> list[int]:
        """The counts of the last one or two windows."""
        if now_ms - self._then_ms >= _WINDOW_MS:
            self._then_counts, self._now_counts, self._then_ms = self._now_counts, list(self.counts), now_ms
        return [count - then for count, then in zip(self.counts, self._then_counts, strict=True)]


def quantiles_ms(counts: list[int]) -> list[float]:
    """Milliseconds by `QUANTILES`; empty where nothing was counted."""
    total = sum(counts)
    if not total:
        return []
    found = []
    seen = bucket = 0
    for quantile in QUANTILES:
        while bucket < _BUCKETS - 1 and seen + counts[bucket] < quantile * total:
            seen += counts[bucket]
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
    """Of one API: some of its requests."""

    __slots__ = ("at_once", "bytes", "local", "measured", "remote", "total")

    def __init__(self) -> None:
        self.measured = 0
        """How many requests were measured."""
        self.bytes = 0
        """Of these."""
        self.at_once = Durations()
        """Of requests that were answered at once: their local time, and their total time."""
        self.local = Durations()
        """These three are of requests that have waited."""
        self.remote = Durations()
        self.total = Durations()


class RequestMetrics:
    """The requests of a node, through all its pipelines."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """`now_ns` is the clock of `Host.busy_ns`."""
        self._now_ns = now_ns
        self._pipelines: list[RequestPipeline] = []
        self._by_api: dict[int, _ApiMetrics] = {}

    def measured(self, pipeline: RequestPipeline) -> Callable[[Connection, memoryview], Answer]:
        """The frame handler of a pipeline, measured."""
        self._pipelines.append(pipeline)
        now_ns, on_frame, take = self._now_ns, pipeline.on_frame, self._take
        left = 1

        def measured_on_frame(connection: Connection, frame: memoryview) -> Answer:
            nonlocal left
            left -= 1
            if left:
                return on_frame(connection, frame)
            left = EVERY
            began_ns = now_ns()
            answer = on_frame(connection, frame)
            context = pipeline.handling
            if context is not None:
                take(context, answer, len(frame), began_ns)
            return answer

        return measured_on_frame

    def _take(self, context: RequestContext, answer: Answer, size_bytes: int, began_ns: int) -> None:
        local_us = (self._now_ns() - began_ns) // 1000
        metrics = self._by_api.get(context.header.api_key)
        if metrics is None:
            metrics = self._by_api[context.header.api_key] = _ApiMetrics()
        metrics.measured += 1
        metrics.bytes += size_bytes
        if not isinstance(answer, Pending):
            metrics.at_once.counts[bucket_of(local_us)] += 1
            return
        metrics.local.counts[bucket_of(local_us)] += 1

        def settled(_: object, __: object) -> None:
            total_us = (self._now_ns() - began_ns) // 1000
            metrics.remote.counts[bucket_of(total_us - local_us)] += 1
            metrics.total.counts[bucket_of(total_us)] += 1

        answer.then(settled)

    def sensors(self, now_ms: int) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        requests: dict[tuple[int, int], int] = {}
        for pipeline in self._pipelines:
            for key, counter in list(pipeline.requests.items()):
                requests[key] = requests.get(key, 0) + counter.value
        for (api_key, version), count in requests.items():
            total = Counter()
            total.value = count
            tags = (("request", API[api_key].name), ("version", str(version)))
            yield SensorName(GROUP, "RequestsPerSec", tags), total
        for api_key, metrics in list(self._by_api.items()):
            tag = ("request", API[api_key].name)
            yield SensorName(GROUP, "RequestBytes", (tag,)), _value(metrics.bytes / metrics.measured)
            at_once = metrics.at_once.recent(now_ms)
            no_wait = [sum(at_once)] + [0] * (_BUCKETS - 1)
            for name, others, waited in (
                ("LocalTimeMs", at_once, metrics.local),
                ("RemoteTimeMs", no_wait, metrics.remote),
                ("TotalTimeMs", at_once, metrics.total),
            ):
                counts = [one + other for one, other in zip(others, waited.recent(now_ms), strict=True)]
                for quantile, value in zip(QUANTILES, quantiles_ms(counts), strict=False):
                    yield SensorName(GROUP, name, (tag, ("quantile", str(quantile)))), _value(value)


def _value(value: float) -> Gauge:
    gauge = Gauge()
    gauge.value = value
    return gauge
