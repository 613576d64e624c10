"""What the cores of all clients have in common: connections, the cluster's metadata, requests, and the metrics that are
pushed.

    at(now)            the connections, for an event at this time; their `take_actions` is what the shell has to do
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError
from kalda.clientcore.connections.client_metrics import ClientMetrics
from kalda.clientcore.connections.connections import ConnectionConfig, Connections
from kalda.clientcore.connections.errors import Backoff, Random
from kalda.clientcore.connections.metadata import ClusterMetadata, ControllerMetadata, configured_bootstrap
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.connections.telemetry_push import OwnMetrics, measured_by
from kalda.protocol.apis import ApiKey

if TYPE_CHECKING:
    from kalda.base.configs.client import ClientConfig

MAX_IN_FLIGHT = 100
"""Requests of one connection without a response, of clients that send few, and none that must keep an order."""


class ClientCore:
    """The machines of one client of any kind."""

    config: ClientConfig
    own_metrics: OwnMetrics | None = None
    """What pushes the client's metrics; None where `push_metrics` was not called, or has nothing to do."""
    refused: ApiError | None = None
    """Why the client can use no node: a login or a certificate was refused, or the bootstrap servers are no brokers."""

    def __init__(
        self,
        config: ClientConfig,
        metrics: ClientMetrics,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        now_ms: int,
        controllers: tuple[str, ...] = (),
        max_in_flight: int = MAX_IN_FLIGHT,
        max_idle_ms: int | None = None,
        creates_topics: bool = False,
        group_id: str | None = None,
        is_fetching: bool = False,
        labels: Mapping[str, str | None],
    ) -> None:
        """`controllers`: the client connects to these, instead of brokers (KIP-919). `max_idle_ms`: for how long topics
        that are not used stay in the metadata. `labels` are those of the metrics that are pushed; None: has none of
        that name. Raises `InvalidConfig`."""
        self.config = config
        self.client_id = client_id
        self.metrics = metrics
        self._retry = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        kind, servers, required_api = ClusterMetadata, config.bootstrap_servers, ApiKey.METADATA
        if controllers:
            kind, servers, required_api = ControllerMetadata, controllers, ApiKey.DESCRIBE_CLUSTER
        self.metadata = kind(
            configured_bootstrap(servers, "bootstrap.controllers" if controllers else "bootstrap.servers"),
            self._retry,
            max_age_ms=config.metadata_max_age_ms,
            max_idle_ms=max_idle_ms,
            may_rebootstrap=config.may_rebootstrap,
            rebootstrap_trigger_ms=config.rebootstrap_trigger_ms,
            checks_cluster=config.checks_cluster,
            allow_auto_topic_creation=creates_topics,
        )
        self.connections = Connections(
            ConnectionConfig.of(config, client_id, software_version, random, max_in_flight, required_api), metrics
        )
        self.connections.on_refused = self._on_refused
        self.requests = Requests(
            self.metadata, self.connections, self._retry, now_ms, group_id=group_id, is_fetching=is_fetching
        )
        self._pushes_metrics = config.enable_metrics_push and not controllers  # which receive none
        self._labels = tuple((name, value) for name, value in labels.items() if value)

    def at(self, now_ms: int) -> Connections:
        """The connections, for an event at this time."""
        self.requests.now_ms = now_ms
        return self.connections

    def _on_refused(self, error: ApiError) -> None:
        self.refused = error

    # -- its own metrics

    def push_metrics(self, wall_ms: Callable[[], int]) -> None:
        """Push what the cluster subscribes to (KIP-714), unless `enable.metrics.push` is false."""
        self.metrics.started_at_ms = wall_ms()
        if self._pushes_metrics:
            self.own_metrics = OwnMetrics(
                self.connections,
                measured_by(self.metrics),
                self._labels,
                wall_ms=wall_ms,
                now_ms=lambda: self.requests.now_ms,
                random=self._retry.random,
            )

    def _run_own_metrics(self) -> None:
        if self.own_metrics is not None and self.requests.now_ms >= self.own_metrics.due_ms:
            self.own_metrics.run(self.requests.now_ms)

    @property
    def _own_metrics_due_ms(self) -> int | None:
        return None if self.own_metrics is None else self.own_metrics.due_ms

    def metrics_have_ended(self, now_ms: int) -> bool:
        """Whether the last metrics are sent, so that the connections may be closed. The first call begins that."""
        return self.own_metrics is None or self.own_metrics.has_ended(now_ms)
