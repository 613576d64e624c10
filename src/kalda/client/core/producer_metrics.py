"""A producer's metrics, by Kafka's names. Counted for each batch, never for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from kalda.base.sensors import Counter, Gauge, Sensors, Tags
from kalda.base.stats import MetricConfig, Rate
from kalda.client.core.producer_batch import ProducerBatch

if TYPE_CHECKING:
    from kalda.client.core.buffer_pool import BufferPool

GROUP = "producer-metrics"
TOPIC_GROUP = "producer-topic-metrics"
_SAMPLE_MS = 100
"""Rates and averages are fed that often: from the totals, and from one request and one response."""


class Throttling(Protocol):
    """A response with a throttle time."""

    @property
    def throttle_time_ms(self) -> int:
        """How long the node asks for a pause."""
        ...


class _Average:
    """The mean and the largest of what was recorded in the windows of a rate."""

    __slots__ = ("_count", "_largest", "_largest_before", "_sum", "_window_ms", "_window_start_ms")

    def __init__(self, config: MetricConfig) -> None:
        self._sum, self._count = Rate(config), Rate(config)
        self._largest = self._largest_before = 0.0
        self._window_ms = config.window_ms
        self._window_start_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        self._sum.record(value, now_ms)
        self._count.record(1, now_ms)
        if now_ms - self._window_start_ms >= self._window_ms:
            self._largest_before, self._largest, self._window_start_ms = self._largest, value, now_ms
        self._largest = max(self._largest, value)

    def mean(self, now_ms: int) -> float:
        count = self._count.total(now_ms)
        return self._sum.total(now_ms) / count if count else float("nan")

    @property
    def largest(self) -> float:
        return max(self._largest, self._largest_before)


class _TopicMetrics:
    """One topic's totals."""

    def __init__(self, with_rate: Callable[[str, str, str, Tags], Counter], tags: Tags) -> None:
        self.sends = with_rate("record-send-total", "record-send-rate", TOPIC_GROUP, tags)
        self.bytes = with_rate("byte-total", "byte-rate", TOPIC_GROUP, tags)
        self.retries = with_rate("record-retry-total", "record-retry-rate", TOPIC_GROUP, tags)
        self.errors = with_rate("record-error-total", "record-error-rate", TOPIC_GROUP, tags)


class ProducerMetrics:
    """The sensors of one producer."""

    def __init__(self, client_id: str, config: MetricConfig | None = None) -> None:
        self.sensors = Sensors()
        self._config = config = config or MetricConfig()
        self._tags: Tags = (("client-id", client_id),)
        self._now_ms: Callable[[], int] = lambda: 0
        self._topics: dict[str, _TopicMetrics] = {}
        self._rates: list[tuple[Counter, Rate]] = []
        """Totals, and the rates at which they grow."""
        self._reported: dict[Counter, int] = {}
        """How much of each total its rate has got."""
        self._sampled_ms = self._responded_ms = -_SAMPLE_MS
        counter, with_rate = self._counter, self._with_rate
        self._sends = with_rate("record-send-total", "record-send-rate")
        self._retries = with_rate("record-retry-total", "record-retry-rate")
        self._errors = with_rate("record-error-total", "record-error-rate")
        self._splits = with_rate("batch-split-total", "batch-split-rate")
        self._bytes = with_rate("outgoing-byte-total", "outgoing-byte-rate")
        self._requests = with_rate("request-total", "request-rate")
        self._responses = with_rate("response-total", "response-rate")
        self._batch_size = self._average("batch-size-avg", "batch-size-max")
        self._queue_time = self._average("record-queue-time-avg", "record-queue-time-max")
        self._latency = self._average("request-latency-avg", "request-latency-max")
        self._records_per_request = self._average("records-per-request-avg", None)
        self._compression = self._average("compression-rate-avg", None)
        self._record_size = self._average("record-size-avg", "record-size-max")
        self._throttle = self._average("produce-throttle-time-avg", "produce-throttle-time-max")
        self.in_flight = self._gauge("requests-in-flight")
        self.exhausted = with_rate("buffer-exhausted-total", "buffer-exhausted-rate")
        self.wait_time_ns = counter("bufferpool-wait-time-ns-total")
        self.flush_time_ns = counter("flush-time-ns-total")
        self.metadata_wait_ns = counter("metadata-wait-time-ns-total")

    def _counter(self, name: str) -> Counter:
        return self.sensors.counter(GROUP, name, self._tags)

    def _with_rate(self, total: str, rate: str, group: str = GROUP, tags: Tags | None = None) -> Counter:
        tags = self._tags if tags is None else tags
        counter = self.sensors.counter(group, total, tags)
        self._rates.append((counter, self.sensors.rate(group, rate, tags, self._config)))
        return counter

    def _gauge(self, name: str, read: Callable[[], float] | None = None) -> Gauge:
        return self.sensors.gauge(GROUP, name, self._tags, read)

    def _average(self, mean: str, largest: str | None) -> _Average:
        average = _Average(self._config)
        self._gauge(mean, lambda: average.mean(self._now_ms()))
        if largest is not None:
            self._gauge(largest, lambda: average.largest)
        return average

    def watch(self, pool: BufferPool, now_ms: Callable[[], int]) -> None:
        """The gauges of the memory, and the clock of those that look back."""
        self._now_ms = now_ms
        self._gauge("buffer-total-bytes", lambda: pool.total_bytes)
        self._gauge("buffer-available-bytes", lambda: pool.available_bytes)
        self._gauge("waiting-threads", lambda: pool.waiting)

    def snapshot(self, now_ms: int) -> dict[str, float]:
        """Every metric's value; a topic's behind the topic's name."""
        self._sample(now_ms)
        found = {}
        for name, sensor in self.sensors:
            tags = dict(name.tags)
            prefix = f"{tags['topic']}." if "topic" in tags else ""
            found[prefix + name.name] = sensor.measure(now_ms)
        return found

    def measured(self, now_ms: int, connections: int) -> Iterator[tuple[str, str, dict[str, str], float]]:
        """Group, name, tags and value of every metric."""
        self._sample(now_ms)
        yield GROUP, "connection-creation-total", {}, connections
        for name, sensor in self.sensors:
            yield name.group, name.name, dict(name.tags), sensor.measure(now_ms)

    # -- events

    def on_request(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """A request with these batches is sent."""
        records = size = 0
        for batch in batches:
            count, sealed = batch.count, batch.size_bytes
            records += count
            size += sealed
            name = batch.topic_partition.topic
            topic = self._topics.get(name) or self._topic(name)
            topic.sends.value += count
            topic.bytes.value += sealed
        self._sends.value += records
        self._bytes.value += size
        self._requests.value += 1
        self.in_flight.value += 1
        if now_ms - self._sampled_ms < _SAMPLE_MS:
            return
        self._sample(now_ms)
        batch = batches[-1]
        self._batch_size.record(batch.size_bytes, now_ms)
        self._queue_time.record(batch.drained_ms - batch.created_ms, now_ms)
        self._compression.record(batch.size_bytes / max(1, batch.position), now_ms)
        self._record_size.record(batch.position / max(1, batch.count), now_ms)
        self._records_per_request.record(records, now_ms)

    def _sample(self, now_ms: int) -> None:
        """Report to the rates what the totals have grown by."""
        self._sampled_ms = now_ms
        for total, rate in self._rates:
            grown = total.value - self._reported.get(total, 0)
            if grown:
                self._reported[total] = total.value
                rate.record(grown, now_ms)

    def on_response(self, node_id: int, latency_ms: int, response: Throttling | None, now_ms: int) -> None:
        """A request has ended."""
        self.in_flight.value -= 1
        self._responses.value += 1
        if now_ms - self._responded_ms >= _SAMPLE_MS:
            self._responded_ms = now_ms
            self._latency.record(latency_ms, now_ms)
            if response is not None:
                self._throttle.record(response.throttle_time_ms, now_ms)

    def on_no_response(self) -> None:
        """A request has ended with an error of the connection, or could not be sent."""
        self.in_flight.value -= 1

    def on_retry(self, batch: ProducerBatch) -> None:
        """A batch is sent again."""
        self._retries.value += batch.count
        self._topic(batch.topic_partition.topic).retries.value += batch.count

    def on_error(self, batch: ProducerBatch) -> None:
        """A batch has failed."""
        self._errors.value += batch.count
        self._topic(batch.topic_partition.topic).errors.value += batch.count

    def on_split(self, batch: ProducerBatch) -> None:
        """A batch was split."""
        self._splits.value += 1

    def _topic(self, topic: str) -> _TopicMetrics:
        found = self._topics.get(topic)
        if found is None:
            tags = (*self._tags, ("topic", topic))
            found = self._topics[topic] = _TopicMetrics(self._with_rate, tags)
        return found
