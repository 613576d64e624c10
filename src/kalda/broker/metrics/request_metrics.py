"""Requests by API: how many, of which version, how large, and for how long they are under way.

Under Kafka's names, `kafka.network:type=RequestMetrics`. A node has one event loop, so a request has no queue of its
own and no thread that writes its response: of Kafka's times there are

    LocalTimeMs     for how long the request's frame holds the event loop: decoding, handling, encoding
    RemoteTimeMs    for how long its answer waits: for followers, for bytes, for the controller
    TotalTimeMs     both

The pipeline counts every request; where `kalda.metrics.listener` is set, also every error code of its responses but
NONE. Responses that are encoded in pieces, such as those of Metadata, are not searched, and one that the controller has
made for a broker is counted by the controller. Times and sizes are measured only where the listener is set, and of one
request in `EVERY`: timing each one cost 6 to 10 % of a request's CPU. Quantiles are of the last minute or two
(`kalda.base.sensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.sensors import (
    BUCKETS,
    QUANTILES,
    Counter,
    Durations,
    Measurable,
    SensorName,
    bucket_of,
    gauged,
    quantiles_ms,
)
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.network.server.connection import Answer, Connection
from kalda.protocol.apis import API
from kalda.protocol.encoder import ErrorCounts

GROUP: Final = "kafka.network:type=RequestMetrics"
EVERY: Final = 17
"""A prime: clients repeat requests in patterns."""


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
        pipeline.errors = {}
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
        for api_key, codes in self._errors().items():
            for code, count in codes.items():
                total = Counter()
                total.value = count
                tags = (("request", API[api_key].name), ("error", ErrorCode(code).name))
                yield SensorName(GROUP, "ErrorsPerSec", tags), total
        for api_key, metrics in list(self._by_api.items()):
            tag = ("request", API[api_key].name)
            yield SensorName(GROUP, "RequestBytes", (tag,)), gauged(metrics.bytes / metrics.measured)
            at_once = metrics.at_once.recent(now_ms)
            no_wait = [sum(at_once)] + [0] * (BUCKETS - 1)
            for name, others, waited in (
                ("LocalTimeMs", at_once, metrics.local),
                ("RemoteTimeMs", no_wait, metrics.remote),
                ("TotalTimeMs", at_once, metrics.total),
            ):
                counts = [one + other for one, other in zip(others, waited.recent(now_ms), strict=True)]
                for quantile, value in zip(QUANTILES, quantiles_ms(counts), strict=False):
                    yield SensorName(GROUP, name, (tag, ("quantile", str(quantile)))), gauged(value)

    def _errors(self) -> dict[int, ErrorCounts]:
        """Error codes of all responses so far, by API."""
        found: dict[int, ErrorCounts] = {}
        for pipeline in self._pipelines:
            for api_key, codes in list((pipeline.errors or {}).items()):
                sums = found.setdefault(api_key, ErrorCounts(int))
                for code, count in list(codes.items()):
                    sums[code] += count
        return found
