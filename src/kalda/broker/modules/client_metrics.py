"""Metrics that clients push (KIP-714): subscriptions, and where the metrics go.

Serves GetTelemetrySubscriptions and PushTelemetry. Clients learn from ApiVersions whether a broker receives metrics;
Kafka announces both APIs where a receiver is configured, Kalda where a subscription or a plugin is. What is pushed
goes to the topic `__client_metrics`, to the metrics listener, and to the operator's own classes. Each of these is
bounded and contained: the clients' requests do not wait for them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid
from kalda.base.scheduling import Timer
from kalda.broker.channels.broker_channels import BrokerChannels
from kalda.broker.handlers.telemetry import Decoded, TelemetryHandlers
from kalda.broker.modules.auto_topics import AutoTopics
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.manifest import Manifest, Publisher
from kalda.network.connection import Connection
from kalda.protocol.apis import ApiKey
from kalda.replication.replica_manager import ReplicaManager
from kalda.telemetry.client_instances import ClientInstance, ClientInstances

if TYPE_CHECKING:
    from kalda.broker.metrics.client_metrics_plugins import PluginRunner
    from kalda.broker.metrics.client_metrics_topic import ClientMetricsTopic
    from kalda.telemetry.client_series import ClientSeries

log = logging.getLogger("kalda.client_metrics")

_APIS: Final = frozenset((ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY))
_GROUP: Final = "kafka.server:type=client-metrics"
_EXPIRY_INTERVAL_MS: Final = 5_000
_EVICTIONS_LOGGED_EVERY_MS: Final = 300_000
_ADMIN_CLIENT_ID: Final = "__admin_client"
"""By this client id brokers may write to internal topics."""


class ClientMetricsModule(Module):
    """Rests on the replicas, to which it appends. A publisher: it applies the subscriptions of the metadata."""

    name = "ClientMetrics"

    def __init__(self, context: BrokerContext, replicas: ReplicaManager) -> None:
        """Raises `ValueError` where a plugin cannot be loaded."""
        config = context.config
        self._context = context
        self._replicas = replicas
        self._clock = context.host.clock
        self.instances = ClientInstances(context.host.new_uuid, config["telemetry.max.bytes"])
        self.instances.on_removed = self._on_removed
        self._handlers = TelemetryHandlers(
            config.node_id,
            self.instances,
            config["telemetry.max.bytes"],
            config["kalda.client.metrics.format"],
            self,
            context.jobs,
            self._clock.mono_ms,
            makes_series=bool(config["kalda.metrics.listener"]),
            now_ns=context.host.busy_ns,
            pause_thread=context.host.pause_thread,
        )
        self._channels = BrokerChannels(
            "client-metrics",
            config,
            context.cache,
            context.host.rng.random,
            context.host.route,
            context.to_brokers,
            client_id=_ADMIN_CLIENT_ID,
        )
        self._topic: ClientMetricsTopic | None = None
        """Made with the first push."""
        self.series: ClientSeries | None = None
        """For the metrics listener; made with the first push, where there is a listener."""
        self._plugins: list[PluginRunner] = _plugins(config)
        self._timer: Timer | None = None
        """For the expiry of instances."""
        self._evicted = 0
        """Instances that were evicted when a line about them was logged last."""
        self._logged_ms = -_EVICTIONS_LOGGED_EVERY_MS
        self._closed = False
        gauges = {
            "instance-count": lambda: len(self.instances),
            "unknown-subscription-request-count": lambda: self.instances.unknown_subscriptions,
            "throttle-count": lambda: self.instances.throttled,
            "plugin-export-count": lambda: self._handlers.exported,
            "plugin-error-count": lambda: (
                self._handlers.unreadable + sum(each.failures + each.dropped for each in self._plugins)
            ),
        }
        for name, read in gauges.items():
            context.sensors.gauge(_GROUP, name, read=read)
        context.sensors.gauge(_GROUP, "topic-record-count", read=lambda: self._topic.written if self._topic else 0)
        context.sensors.gauge(_GROUP, "topic-dropped-count", read=lambda: self._topic.dropped if self._topic else 0)

    def rows(self) -> list[Row]:
        """Both APIs of telemetry."""
        return self._handlers.rows()

    def hidden_apis(self) -> frozenset[ApiKey]:
        """The APIs that ApiVersions does not announce now: those of telemetry, where there is no subscription and no
        plugin. A client that connects then pushes nothing over this connection, some clients nothing until they start
        again."""
        return frozenset() if self._plugins or self.instances.has_subscriptions else _APIS

    def publishers(self) -> Sequence[Publisher]:
        """Subscriptions; and the channels to other brokers, which are closed when a broker is fenced."""
        return (self, self._channels)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Apply the subscriptions that have changed. A client gets its new one with its next request."""
        if delta.configs is None:
            return
        for resource in delta.configs.changes:
            if resource.type == ConfigResourceType.CLIENT_METRICS:
                why = self.instances.set_subscription(resource.name, image.configs.of(resource))
                if why is not None:
                    log.warning(
                        "client-metrics subscription %s cannot be read, and is not used: %s", resource.name, why
                    )

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No effect."""

    def start(self) -> None:
        """Remove instances that are silent, or whose connections end, from now on."""
        for listener in self._context.config.broker_listeners:
            self._context.server.listeners[listener.listener].on_close = self._on_close
        self._arm()

    async def close(self) -> None:
        """Append what waits, and stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for plugin in self._plugins:
            plugin.close()
        if self._topic is not None:
            self._topic.close()
        await self._channels.close()

    # -- the sink

    def take(self, instance: ClientInstance, push: Decoded) -> None:
        """Hand a decoded push to every sink."""
        if self._closed:
            return
        try:
            if self._topic is None:
                self._topic = self._new_topic()
            self._topic.put(push.records)
            self._topic.dropped += len(push.points) - len(push.records)  # those that are too large
            if push.series:
                self._take_series(instance, push)
            if self._plugins:
                from kalda.broker.metrics.client_metrics_plugins import Push

                for plugin in self._plugins:
                    plugin.put(Push(push.source, push.is_terminating, push.points, push.payload))
        except Exception:
            log.exception("metrics of a client are lost")

    def _take_series(self, instance: ClientInstance, push: Decoded) -> None:
        if self.series is None:
            from kalda.telemetry.client_series import ClientSeries

            self.series = ClientSeries()
        if instance.id in self.instances:
            self.series.take(instance.id, instance.client, push.series)

    def _new_topic(self) -> ClientMetricsTopic:
        from kalda.broker.metrics.client_metrics_topic import PLAN, ClientMetricsTopic

        context = self._context
        topics = AutoTopics(context.channel, False, lambda name: PLAN, context.config["request.timeout.ms"])
        return ClientMetricsTopic(
            context.config.node_id,
            self._replicas,
            context.cache,
            topics,
            self._channels.send,
            self._clock,
            context.timers,
        )

    # -- instances

    def _arm(self) -> None:
        def expire() -> None:
            now_ms = self._clock.mono_ms()
            self.instances.expire(now_ms)
            evicted = self.instances.evicted - self._evicted
            if evicted and now_ms - self._logged_ms >= _EVICTIONS_LOGGED_EVERY_MS:
                self._evicted, self._logged_ms = self.instances.evicted, now_ms
                log.warning("%d clients were removed because too many others push metrics", evicted)
            self._arm()

        self._timer = self._context.timers.call_later_ms(_EXPIRY_INTERVAL_MS, expire)

    def _on_close(self, connection: Connection) -> None:
        self.instances.disconnected(connection.id)

    def _on_removed(self, instance_id: Uuid) -> None:
        if self.series is not None:
            self.series.remove(instance_id)


def _plugins(config: ServerConfig) -> list[PluginRunner]:
    """The operator's classes. Raises `ValueError`."""
    paths = config["kalda.client.metrics.plugins"]
    if not paths:
        return []
    from kalda.broker.metrics.client_metrics_plugins import PluginRunner

    return [PluginRunner(path) for path in paths]
