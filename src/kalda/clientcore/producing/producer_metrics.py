"""A producer's metrics, by the names of Kafka's Java client. An event costs an append for each batch or request, and
nothing for a record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kalda.base.allocation import new_tuple
from kalda.base.sensors import Tags
from kalda.base.stats import MetricConfig
from kalda.clientcore.connections.client_metrics import _NS_PER_S, ClientMetrics, NodeTraffic
from kalda.clientcore.producing.producer_batch import ProducerBatch
from kalda.records.batch import HEADER_SIZE

if TYPE_CHECKING:
    from kalda.clientcore.producing.producer_batch import BufferPool

TOPIC_GROUP = "producer-topic-metrics"
_MS_PER_S = 1000.0


class Throttling(Protocol):
    """A response with a throttle time."""

    @property
    def throttle_time_ms(self) -> int:
        """How long the node asks for a pause."""
        ...


class _Sent(NamedTuple):
    """A batch that was sent."""

    topic: str
    records: int
    size_bytes: int
    plain_bytes: int
    queue_ms: int
    largest_record: int


class _TopicMetrics:
    """One topic's."""

    def __init__(self, metrics: ProducerMetrics, tags: Tags) -> None:
        self.sends = metrics.stats("record-send", "rate", "total", group=TOPIC_GROUP, tags=tags)
        self.bytes = metrics.stats("byte", "rate", "total", group=TOPIC_GROUP, tags=tags)
        self.compression = metrics.sensors.average(TOPIC_GROUP, "compression-rate", tags, metrics.config)
        self.retries = metrics.counter_with_rate(
            "record-retry-total", "record-retry-rate", group=TOPIC_GROUP, tags=tags
        )
        self.errors = metrics.counter_with_rate("record-error-total", "record-error-rate", group=TOPIC_GROUP, tags=tags)


class ProducerMetrics(ClientMetrics):
    """The sensors of one producer."""

    def __init__(
        self,
        client_id: str,
        config: MetricConfig | None = None,
        *,
        version: str = "",
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        super().__init__("producer", client_id, config, version=version, lock=lock)
        self._topics: dict[str, _TopicMetrics] = {}
        self._batches: list[_Sent] = []
        """Sent since the last flush."""
        self._latency = (self.stats("request-latency", "avg", "max"),)
        self._records = self.series(
            self.stats("record-send", "rate", "total"), self.stats("records-per-request", "avg")
        )
        self._throttle = self.series(self.stats("produce-throttle-time", "avg", "max"))
        self._batch_size = self.stats("batch-size", "avg", "max")
        self._queue_time = self.stats("record-queue-time", "avg", "max")
        self._compression = self.stats("compression-rate", "avg")
        self._record_size = self.stats("record-size", "avg", "max")
        self._retries = self.counter_with_rate("record-retry-total", "record-retry-rate")
        self.errors = self.counter_with_rate("record-error-total", "record-error-rate")
        """Records that have failed, those that did not get into a batch included."""
        self._splits = self.counter_with_rate("batch-split-total", "batch-split-rate")
        self.exhausted = self.counter_with_rate("buffer-exhausted-total", "buffer-exhausted-rate")
        self.wait_time_ns = self.counter_with_rate(
            "bufferpool-wait-time-ns-total", "bufferpool-wait-ratio", unit=_NS_PER_S
        )
        self.flush_time_ns = self.counter("flush-time-ns-total")
        self.metadata_wait_ns = self.counter("metadata-wait-time-ns-total")
        self.init_ns = self.counter("txn-init-time-ns-total")
        self.begin_ns = self.counter("txn-begin-time-ns-total")
        self.send_offsets_ns = self.counter("txn-send-offsets-time-ns-total")
        self.prepare_ns = self.counter("txn-prepare-time-ns-total")
        self.commit_ns = self.counter("txn-commit-time-ns-total")
        self.abort_ns = self.counter("txn-abort-time-ns-total")

    def watch(self, pool: BufferPool, in_flight: Callable[[], int], metadata_ms: Callable[[], int]) -> None:
        """What is read when the metrics are: the memory, requests without a response, and when the last metadata
        came."""
        self.gauge("buffer-total-bytes", lambda _now_ms: pool.total_bytes)
        self.gauge("buffer-available-bytes", lambda _now_ms: pool.available_bytes)
        self.gauge("waiting-threads", lambda _now_ms: pool.waiting)
        self.gauge("requests-in-flight", lambda _now_ms: in_flight())
        self.gauge("metadata-age", lambda now_ms: (now_ms - metadata_ms()) / _MS_PER_S)

    # -- events

    def on_request(self, batches: Sequence[ProducerBatch]) -> None:
        """A request with these batches is sent."""
        records = 0
        for batch in batches:
            count = batch.count
            records += count
            size_bytes, queue_ms = batch.size_bytes, batch.drained_ms - batch.created_ms
            sent = batch.topic_partition.topic, count, size_bytes, batch.position, queue_ms, batch.largest_record
            self._batches.append(new_tuple(_Sent, sent))
        self._records.append(records)

    def on_response(self, node: NodeTraffic, latency_ms: int, response: Throttling) -> None:
        """A response has come."""
        node.latency.append(latency_ms)
        self._throttle.append(response.throttle_time_ms)

    def on_retry(self, batch: ProducerBatch) -> None:
        """A batch is sent again."""
        self._retries.value += batch.count
        self._topic(batch.topic_partition.topic).retries.value += batch.count

    def on_error(self, batch: ProducerBatch) -> None:
        """A batch has failed."""
        self.errors.value += batch.count
        self._topic(batch.topic_partition.topic).errors.value += batch.count

    def on_split(self, batch: ProducerBatch) -> None:
        """A batch was split."""
        self._splits.value += 1

    def _flush(self, now_ms: int) -> None:
        sent = self._batches[:]
        if sent:
            del self._batches[: len(sent)]
            by_topic: defaultdict[str, list[_Sent]] = defaultdict(list)
            for each in sent:
                by_topic[each[0]].append(each)
            for name, of_topic in by_topic.items():
                topic = self._topic(name)
                _, records, sizes, plain_sizes, queue_ms, largest = zip(*of_topic, strict=True)
                ratios = list(map(_ratio, sizes, plain_sizes))
                self._batch_size.add(sizes, now_ms)
                self._queue_time.add(queue_ms, now_ms)
                self._compression.add(ratios, now_ms)
                self._record_size.add(largest, now_ms)
                topic.sends.add(records, now_ms)
                topic.bytes.add(sizes, now_ms)
                topic.compression.record_all(ratios, now_ms)
        super()._flush(now_ms)

    def _topic(self, topic: str) -> _TopicMetrics:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _TopicMetrics(self, (*self._tags, ("topic", topic)))
        return found


def _ratio(size_bytes: int, plain_bytes: int) -> float:
    """Compressed bytes of a batch's records to uncompressed ones."""
    return (size_bytes - HEADER_SIZE) / (plain_bytes - HEADER_SIZE) if plain_bytes > HEADER_SIZE else 1.0
