"""A share consumer's metrics, by the names of Kafka's Java client: of its polls, its fetches and acknowledgements, and
its group."""

from __future__ import annotations

from typing import Final

from kalda.base.stats import MetricConfig
from kalda.clientcore.connections.client_metrics import Stats
from kalda.clientcore.consuming.consumer_metrics import PollMetrics, seconds_ago

_POLLS: Final = "consumer-share-metrics"
_FETCHES: Final = "consumer-share-fetch-manager-metrics"
_COORDINATOR: Final = "consumer-share-coordinator-metrics"


class ShareConsumerMetrics(PollMetrics):
    """The sensors of one share consumer."""

    def __init__(self, client_id: str, config: MetricConfig | None = None, *, version: str = "") -> None:
        super().__init__("consumer", client_id, config, version=version)

        def of_fetches(name: str, *endings: str, counts: bool = False) -> Stats:
            return self.stats(name, *endings, counts=counts, group=_FETCHES)  # type: ignore[arg-type]

        self.throttle = self.series(of_fetches("fetch-throttle-time", "avg", "max"))
        self.fetches = self.series(
            of_fetches("fetch-latency", "avg", "max"), of_fetches("fetch", "rate", "total", counts=True)
        )
        """Latencies of ShareFetch, in ms."""
        self.fetched_bytes = self.series(
            of_fetches("fetch-size", "avg", "max"), of_fetches("bytes-fetched", "rate", "total")
        )
        """Of each response."""
        self.fetched_records = self.series(
            of_fetches("records-per-request", "avg", "max"), of_fetches("records-fetched", "rate", "total")
        )
        """Acquired by each response."""
        self.acknowledged = self.series(of_fetches("acknowledgements-send", "rate", "total"))
        """Offsets of each request."""
        self.refused = self.series(of_fetches("acknowledgements-error", "rate", "total"))
        self.heartbeats = self.series(
            self.stats("heartbeat-response-time", "max", group=_COORDINATOR),
            self.stats("heartbeat", "rate", "total", counts=True, group=_COORDINATOR),
        )
        self.rebalances = self.series(
            self.stats("rebalance", "total", "rate-per-hour", counts=True, group=_COORDINATOR)
        )
        self._count_polls(_POLLS)
        self.heartbeat_sent_ms = -1
        self.gauge(
            "last-heartbeat-seconds-ago",
            lambda now_ms: seconds_ago(self.heartbeat_sent_ms, now_ms),
            group=_COORDINATOR,
        )
