"""A producer's metrics, by Kafka's names. Counted for each batch, never for each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kalda.base.sensors import Counter, Gauge, MetricConfig, Rate, Sensors, Tags
from kalda.client.core.producer_batch import ProducerBatch
from kalda.protocol.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from kalda.client.core.buffer_pool import BufferPool

GROUP = "producer-metrics"
TOPIC_GROUP = "producer-topic-metrics"
NODE_GROUP = "producer-node-metrics"


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
    """One topic's."""

    def __init__(self, sensors: Sensors, tags: Tags, config: MetricConfig) -> None:
        self.sends = sensors.counter(TOPIC_GROUP, "record-send-total", tags)
        self.send_rate = sensors.rate(TOPIC_GROUP, "record-send-rate", tags, config)
        self.bytes = sensors.counter(TOPIC_GROUP, "byte-total", tags)
        self.byte_rate = sensors.rate(TOPIC_GROUP, "byte-rate", tags, config)
        self.retries = sensors.counter(TOPIC_GROUP, "record-retry-total", tags)
        self.errors = sensors.counter(TOPIC_GROUP, "record-error-total", tags)


class ProducerMetrics:
    """The sensors of one producer."""

    def __init__(self, client_id: str, config: MetricConfig | None = None) -> None:
        self.sensors = Sensors()
        self._config = config = config or MetricConfig()
        self._tags: Tags = (("client-id", client_id),)
        self._now_ms: Callable[[], int] = lambda: 0
        self._topics: dict[str, _TopicMetrics] = {}
        counter, rate = self._counter, self._rate
        self._sends, self._send_rate = counter("record-send-total"), rate("record-send-rate")
        self._retries, self._retry_rate = counter("record-retry-total"), rate("record-retry-rate")
        self._errors, self._error_rate = counter("record-error-total"), rate("record-error-rate")
        self._splits, self._split_rate = counter("batch-split-total"), rate("batch-split-rate")
        self._bytes, self._byte_rate = counter("outgoing-byte-total"), rate("outgoing-byte-rate")
        self._requests, self._request_rate = counter("request-total"), rate("request-rate")
        self._responses, self._response_rate = counter("response-total"), rate("response-rate")
        self._averages: dict[str, _Average] = {}
        self._batch_size = self._average("batch-size-avg", "batch-size-max")
        self._queue_time = self._average("record-queue-time-avg", "record-queue-time-max")
        self._latency = self._average("request-latency-avg", "request-latency-max")
        self._records_per_request = self._average("records-per-request-avg", None)
        self._compression = self._average("compression-rate-avg", None)
        self._record_size = self._average("record-size-avg", "record-size-max")
        self._throttle = self._average("produce-throttle-time-avg", "produce-throttle-time-max")
        self.in_flight = self._gauge("requests-in-flight")
        self.exhausted = counter("buffer-exhausted-total")
        self.exhausted_rate = rate("buffer-exhausted-rate")
        self.wait_time_ns = counter("bufferpool-wait-time-ns-total")
        self.flush_time_ns = counter("flush-time-ns-total")
        self.metadata_wait_ns = counter("metadata-wait-time-ns-total")

    def _counter(self, name: str) -> Counter:
        return self.sensors.counter(GROUP, name, self._tags)

    def _rate(self, name: str) -> Rate:
        return self.sensors.rate(GROUP, name, self._tags, self._config)

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
        found = {}
        for name, sensor in self.sensors:
            tags = dict(name.tags)
            prefix = f"{tags['topic']}." if "topic" in tags else ""
            found[prefix + name.name] = sensor.measure(now_ms)
        return found

    # -- events

    def on_request(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """A request with these batches is sent."""
        records = size = 0
        for batch in batches:
            records += batch.count
            sealed = batch.size_bytes
            size += sealed
            topic = self._topic(batch.topic_partition.topic)
            topic.sends.value += batch.count
            topic.bytes.value += sealed
            topic.send_rate.record(batch.count, now_ms)
            topic.byte_rate.record(sealed, now_ms)
        # The averages are of the last batch of each request: the others are much like it.
        self._batch_size.record(batch.size_bytes, now_ms)
        self._queue_time.record(batch.drained_ms - batch.created_ms, now_ms)
        self._compression.record(batch.size_bytes / max(1, batch.position), now_ms)
        self._record_size.record(batch.position / max(1, batch.count), now_ms)
        self._records_per_request.record(records, now_ms)
        self._sends.value += records
        self._send_rate.record(records, now_ms)
        self._bytes.value += size
        self._byte_rate.record(size, now_ms)
        self._requests.value += 1
        self._request_rate.record(1, now_ms)
        self.in_flight.value += 1

    def on_response(self, node_id: int, latency_ms: int, response: ProduceResponse | None, now_ms: int) -> None:
        """A request has ended."""
        self.in_flight.value -= 1
        self._responses.value += 1
        self._response_rate.record(1, now_ms)
        self._latency.record(latency_ms, now_ms)
        if response is not None:
            self._throttle.record(response.throttle_time_ms, now_ms)

    def on_retry(self, batch: ProducerBatch) -> None:
        """A batch is sent again."""
        self._retries.value += batch.count
        self._retry_rate.record(batch.count, self._now_ms())
        self._topic(batch.topic_partition.topic).retries.value += batch.count

    def on_error(self, batch: ProducerBatch) -> None:
        """A batch has failed."""
        self._errors.value += batch.count
        self._error_rate.record(batch.count, self._now_ms())
        self._topic(batch.topic_partition.topic).errors.value += batch.count

    def on_split(self, batch: ProducerBatch) -> None:
        """A batch was split."""
        self._splits.value += 1
        self._split_rate.record(1, self._now_ms())

    def _topic(self, topic: str) -> _TopicMetrics:
        found = self._topics.get(topic)
        if found is None:
            tags = (*self._tags, ("topic", topic))
            found = self._topics[topic] = _TopicMetrics(self.sensors, tags, self._config)
        return found
