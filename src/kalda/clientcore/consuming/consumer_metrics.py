"""A consumer's metrics, by the names of Kafka's Java client: of its fetches, its group, its polls, and each assigned
partition. What that client measures of the queues between its threads does not exist here."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from kalda.base.ids import TopicPartition
from kalda.base.sensors import Tags
from kalda.base.stats import MetricConfig
from kalda.clientcore.connections.client_metrics import ClientMetrics, Stats

if TYPE_CHECKING:
    from kalda.clientcore.consuming.subscription import PartitionState, Subscription

FETCH_GROUP = "consumer-fetch-manager-metrics"
COORDINATOR_GROUP = "consumer-coordinator-metrics"


class _Sizes:
    """Of what was returned to the application, of all topics or one."""

    def __init__(self, metrics: ClientMetrics, tags: Tags) -> None:
        self.size_bytes = metrics.series(metrics.stats("bytes-consumed", "rate", "total", group=FETCH_GROUP, tags=tags))
        self.records = metrics.series(metrics.stats("records-consumed", "rate", "total", group=FETCH_GROUP, tags=tags))
        self._fetch_bytes = metrics.stats("fetch-size", "avg", "max", group=FETCH_GROUP, tags=tags)
        self._fetch_records = metrics.stats("records-per-request", "avg", group=FETCH_GROUP, tags=tags)

    def on_fetched(self, size_bytes: int, records: int, now_ms: int) -> None:
        """All of a Fetch was returned, or dropped."""
        self._fetch_bytes.add((size_bytes,), now_ms)
        self._fetch_records.add((records,), now_ms)


class Fetched:
    """What one response has brought, until all of it is returned or dropped; bytes and records by topic."""

    __slots__ = ("chunks", "taken")

    def __init__(self) -> None:
        self.chunks = 0
        """Those that are still buffered."""
        self.taken: dict[str, tuple[int, int]] = {}

    def take(self, topic: str, size_bytes: int, records: int) -> None:
        """So much was returned."""
        before_bytes, before = self.taken.get(topic, (0, 0))
        self.taken[topic] = before_bytes + size_bytes, before + records


class _PartitionMetrics:
    """Of an assigned partition: how many records are behind the position, and before it."""

    def __init__(self, metrics: ConsumerMetrics, state: PartitionState, tags: Tags) -> None:
        self._metrics = metrics
        self.state = state
        self._lags = metrics.stats("records-lag", "avg", "max", group=FETCH_GROUP, tags=tags)
        self._leads = metrics.stats("records-lead", "avg", "min", group=FETCH_GROUP, tags=tags)
        for name, read in (
            ("records-lag", lambda _now_ms: self._lag),
            ("records-lead", lambda _now_ms: self._lead),
            ("preferred-read-replica", lambda _now_ms: state.replica),
        ):
            metrics.gauge(name, read, group=FETCH_GROUP, tags=tags)

    @property
    def _lag(self) -> float:
        state = self.state
        end = state.last_stable_offset if self._metrics.read_committed else state.high_watermark
        return max(0, end - state.offset) if end >= 0 <= state.offset else nan

    @property
    def _lead(self) -> float:
        state = self.state
        return max(0, state.offset - state.log_start_offset) if state.log_start_offset >= 0 <= state.offset else nan

    def on_position(self, now_ms: int) -> None:
        """The position has moved, by records that were returned."""
        lag, lead = self._lag, self._lead
        if lag == lag:
            self._lags.add((lag,), now_ms)
            self._metrics.lags.add((lag,), now_ms)
        if lead == lead:
            self._leads.add((lead,), now_ms)
            self._metrics.leads.add((lead,), now_ms)


class CoordinatorMetrics:
    """Of the membership in a group, and its commits."""

    def __init__(self, metrics: ConsumerMetrics, subscription: Subscription, is_classic: bool) -> None:
        def stats(name: str, *endings: str, counts: bool = False) -> Stats:
            return metrics.stats(name, *endings, counts=counts, group=COORDINATOR_GROUP)  # type: ignore[arg-type]

        if is_classic:
            self.joins = metrics.series(stats("join-time", "avg", "max"), stats("join", "rate", "total", counts=True))
            """Latencies of JoinGroup, in ms; likewise the others."""
            self.syncs = metrics.series(stats("sync-time", "avg", "max"), stats("sync", "rate", "total", counts=True))
        self.heartbeats = metrics.series(
            stats("heartbeat-response-time", "max"), stats("heartbeat", "rate", "total", counts=True)
        )
        self.commits = metrics.series(
            stats("commit-latency", "avg", "max"), stats("commit", "rate", "total", counts=True)
        )
        self._rebalances = metrics.series(
            stats("rebalance-latency", "avg", "max", "total"),
            stats("rebalance", "total", "rate-per-hour", counts=True),
        )
        self._failed = metrics.series(stats("failed-rebalance", "total", "rate-per-hour", counts=True))
        self.callbacks = {
            call: metrics.series(stats(f"partition-{call}-latency", "avg", "max"))
            for call in ("revoked", "assigned", "lost")
        }
        """Latencies of the listener's calls, in ms."""
        self._started_ms = self._ended_ms = -1
        """The last rebalance."""
        self.heartbeat_sent_ms = -1
        for name, read in (
            ("assigned-partitions", lambda _now_ms: len(subscription.partitions)),
            ("last-heartbeat-seconds-ago", lambda now_ms: seconds_ago(self.heartbeat_sent_ms, now_ms)),
            ("last-rebalance-seconds-ago", lambda now_ms: seconds_ago(self._ended_ms, now_ms)),
        ):
            metrics.gauge(name, read, group=COORDINATOR_GROUP)

    def on_rebalance_started(self, now_ms: int) -> None:
        """A rebalance has begun."""
        self._started_ms = now_ms

    def on_rebalance_ended(self, now_ms: int) -> None:
        """Its assignment is in force."""
        self._rebalances.append(now_ms - self._started_ms)
        self._ended_ms = now_ms

    def on_rebalance_failed(self) -> None:
        """It has failed."""
        self._failed.append(1)


class PollMetrics(ClientMetrics):
    """What a consumer of any kind counts of its polls."""

    def _count_polls(self, group: str | None = None) -> None:
        """`group`: of the sensors' names, where it is not the client's own."""
        self._between_polls = self.series(self.stats("time-between-poll", "avg", "max", group=group))
        self._idle = self.series(self.stats("poll-idle-ratio", "avg", group=group))
        self._polled_ms = self._between_ms = -1
        self.gauge("last-poll-seconds-ago", lambda now_ms: seconds_ago(self._polled_ms, now_ms), group=group)

    def on_poll(self, now_ms: int) -> None:
        """The application polls."""
        self._between_ms = now_ms - self._polled_ms if self._polled_ms >= 0 else 0
        self._polled_ms = now_ms
        self._between_polls.append(self._between_ms)

    def on_poll_ended(self, now_ms: int) -> None:
        """The poll returns."""
        polling_ms = now_ms - self._polled_ms
        if polling_ms + self._between_ms > 0:
            self._idle.append(polling_ms / (polling_ms + self._between_ms))


class ConsumerMetrics(PollMetrics):
    """The sensors of one consumer."""

    def __init__(
        self,
        client_id: str,
        subscription: Subscription,
        config: MetricConfig | None = None,
        *,
        read_committed: bool = False,
        version: str = "",
    ) -> None:
        super().__init__("consumer", client_id, config, version=version)
        self.read_committed = read_committed
        self._subscription = subscription
        self._assigned: object = None
        """The subscription's partitions of which `_partitions` has the metrics."""
        group = FETCH_GROUP
        self._latency = (
            self.stats("fetch-latency", "avg", "max", group=group),
            self.stats("fetch", "rate", "total", counts=True, group=group),
        )
        self.throttle = self.series(self.stats("fetch-throttle-time", "avg", "max", group=group))
        self._sizes = _Sizes(self, self._tags)
        self._topics: dict[str, _Sizes] = {}
        self.lags = self.stats("records-lag", "max", group=group)
        self.leads = self.stats("records-lead", "min", group=group)
        self._partitions: dict[TopicPartition, _PartitionMetrics] = {}
        self._count_polls()
        self.commit_sync_ns = self.counter("commit-sync-time-ns-total")
        self.committed_ns = self.counter("committed-time-ns-total")

    # -- fetches

    def on_returned(self, partition: TopicPartition, size_bytes: int, records: int, now_ms: int) -> None:
        """Records of a partition were returned."""
        for sizes in (self._sizes, self._topic(partition.topic)):
            sizes.size_bytes.append(size_bytes)
            sizes.records.append(records)
        self._follow_assignment()
        found = self._partitions.get(partition)
        if found is not None:
            found.on_position(now_ms)

    def on_fetched(self, fetched: Fetched, now_ms: int) -> None:
        """Nothing of a response is buffered any more."""
        if fetched.taken:
            sizes, records = zip(*fetched.taken.values(), strict=True)
            self._sizes.on_fetched(sum(sizes), sum(records), now_ms)
            for name, (size_bytes, of_topic) in fetched.taken.items():
                self._topic(name).on_fetched(size_bytes, of_topic, now_ms)

    def _topic(self, name: str) -> _Sizes:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = _Sizes(self, (*self._tags, ("topic", name)))
        return found

    def _flush(self, now_ms: int) -> None:
        self._follow_assignment()
        super()._flush(now_ms)

    def _follow_assignment(self) -> None:
        current = self._subscription.partitions
        if self._assigned is current:
            return
        self._assigned = current
        for partition in [each for each, found in self._partitions.items() if current.get(each) is not found.state]:
            del self._partitions[partition]
            self.sensors.remove(self._partition_tags(partition))
        for partition, state in current.items():
            if partition not in self._partitions:
                tags = self._partition_tags(partition)
                self._partitions[partition] = _PartitionMetrics(self, state, tags)

    def _partition_tags(self, partition: TopicPartition) -> Tags:
        return (*self._tags, ("topic", partition.topic), ("partition", str(partition.partition)))


def seconds_ago(at_ms: int, now_ms: int) -> float:
    """Whole seconds since a moment; -1 where that has not come."""
    return -1 if at_ms < 0 else (now_ms - at_ms) // 1000
