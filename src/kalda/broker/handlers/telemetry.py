"""GetTelemetrySubscriptions (71) and PushTelemetry (72), KIP-714: metrics that clients push, and where they go.

Clients learn from ApiVersions whether a broker receives metrics; Kafka announces both APIs where a receiver is
configured, Kalda where a subscription or a plugin is. What is pushed goes to the topic `__client_metrics`, to the
metrics listener, and to the operator's own classes. Each of these is bounded and contained.

What is pushed is decompressed, decoded and turned into records by a job, with a bound on each step: the event loop
copies the bytes, and no more. Where too many pushes wait to be decoded, the next ones are refused as if they came too
early. The answer waits for the job, since a client has to learn that its metrics cannot be read (INVALID_RECORD); it
does not wait for the sinks.

Not obvious:

- Pushed metrics are decoded one push at a time, since decoding holds the interpreter.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kalda.base.background import Priority
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import Uuid, uuid_to_text
from kalda.base.scheduling import Jobs, Pending, Timer
from kalda.base.texts import printable
from kalda.broker.channels.auto_topics import AutoTopics
from kalda.broker.channels.node_channels import BrokerChannels
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.module import BrokerContext, Module
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.server.connection import Connection
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kalda.replication.replica_manager import ReplicaManager
from kalda.telemetry.client_instances import (
    ACCEPTED_CODECS,
    MAX_ATTRIBUTE_LENGTH,
    Client,
    ClientInstance,
    ClientInstances,
)

if TYPE_CHECKING:
    from kalda.broker.metrics.client_metrics_receivers import ClientMetricsTopic, PluginRunner
    from kalda.telemetry.client_metrics import ClientSeries, PointSource, SeriesPoint
    from kalda.telemetry.otlp import DataPoint

log = logging.getLogger("kalda.client_metrics")

MAX_DECOMPRESSED_BYTES: Final = 8 * 1024 * 1024
"""What a push may decompress to; more than that is refused before it is in memory."""
MAX_DECODING: Final = 16
"""Pushes that are decoded, one after the other."""
_WORK_NS: Final = 50_000
"""So long decoding holds the interpreter before it pauses, which the event loop may wait for."""
_PAUSE_MS: Final = 0.5
"""A push of a usual client takes some 2 ms of work, so 20 ms: those of 16,384 clients, each every five minutes, fit."""


class Decoded(NamedTuple):
    """An accepted push, decoded."""

    source: PointSource
    points: list[DataPoint]
    records: list[tuple[bytes, bytes]]
    """For the topic: keys and values."""
    payload: bytes
    series: list[SeriesPoint]
    """For the metrics listener; empty where there is none."""
    is_terminating: bool


class Sink(Protocol):
    """Where decoded pushes go. It must not raise."""

    def take(self, instance: ClientInstance, push: Decoded) -> None:
        """Called on the event loop."""
        ...


class Pauses:
    """Called again and again by a job: suspends its thread for a while whenever it has worked for `_WORK_NS`. The event
    loop would wait for the interpreter's switch interval, 5 ms, each time it needs the interpreter otherwise."""

    def __init__(self, now_ns: Callable[[], int], pause_thread: Callable[[float], None]) -> None:
        self._now_ns = now_ns
        self._pause_thread = pause_thread
        self._since_ns = 0
        """When the last pause ended."""

    def __call__(self) -> None:
        """Pause, if it is time."""
        if self._now_ns() - self._since_ns >= _WORK_NS:
            self._pause_thread(_PAUSE_MS)
            self._since_ns = self._now_ns()


class TelemetryHandlers:
    """Both APIs, over the clients of this broker."""

    def __init__(
        self,
        broker_id: int,
        instances: ClientInstances,
        max_bytes: int,
        form: str,
        sink: Sink,
        jobs: Jobs,
        now_ms: Callable[[], int],
        *,
        makes_series: bool,
        now_ns: Callable[[], int],
        pause_thread: Callable[[float], None],
    ) -> None:
        """`max_bytes` is `telemetry.max.bytes`; `form` that of records, `kalda.client.metrics.format`. `makes_series`:
        whether there is a metrics listener. `now_ns` is a monotonic clock; `pause_thread` suspends the thread of a job
        for so many milliseconds."""
        self._broker_id = broker_id
        self._instances = instances
        self._max_bytes = max_bytes
        self._form = form
        self._sink = sink
        self._jobs = jobs
        self._now_ms = now_ms
        self._makes_series = makes_series
        self._pause = Pauses(now_ns, pause_thread)
        self._decoding: deque[tuple[Callable[[], Decoded], Callable[[Decoded | None, object], None]]] = deque()
        """Pushes that are not decoded yet: the first one is in a job. Decoding takes the interpreter's lock, for which
        the event loop would have to wait behind each thread that decodes."""
        self.exported = 0
        """Pushes so far whose metrics went to the sinks."""
        self.unreadable = 0
        """Pushes so far that were refused with INVALID_RECORD."""

    def rows(self) -> list[Row]:
        """Every client may push its metrics, as in Kafka."""
        return [
            Row(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, self.get_subscriptions, error_on_top, Authorization.ANYONE),
            Row(ApiKey.PUSH_TELEMETRY, self.push, error_on_top, Authorization.ANYONE),
        ]

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """What the client is to push, and how often."""
        instance = self._instances.get(request.client_instance_id, _client_of(context), self._now_ms())
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(map(int, ACCEPTED_CODECS)),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._max_bytes,
            delta_temporality=True,
            requested_metrics=list(instance.metrics),
        )

    def push(
        self, context: RequestContext, request: PushTelemetryRequest
    ) -> PushTelemetryResponse | Pending[PushTelemetryResponse]:
        """Take the metrics of a client."""
        client = _client_of(context)
        codec, terminating = request.compression_type, request.terminating
        instance = self._instances.push(
            request.client_instance_id,
            client,
            self._now_ms(),
            subscription_id=request.subscription_id,
            is_terminating=terminating,
            codec=codec,
            size_bytes=len(request.metrics),
        )
        if not request.metrics:
            self._instances.finish_push(instance, ErrorCode.NONE)
            return PushTelemetryResponse()
        if len(self._decoding) >= MAX_DECODING:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{MAX_DECODING} other pushes are being decoded")
        whose = instance.id, client, context.principal, self._broker_id
        work = partial(
            _decode,
            bytes(request.metrics),
            codec,
            whose,
            self._form,
            self._makes_series,
            self._pause,
            is_terminating=terminating,
        )
        pending: Pending[PushTelemetryResponse] = Pending()

        def finish(decoded: Decoded | None, error: object) -> None:
            self._decoding.popleft()
            if self._decoding:
                self._jobs.run(*self._decoding[0])
            if decoded is None:
                self._refuse_unreadable(context, instance, error)
                pending.complete(PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD))
                return
            self.exported += 1
            self._instances.finish_push(instance, ErrorCode.NONE)
            self._sink.take(instance, decoded)
            pending.complete(PushTelemetryResponse())

        self._decoding.append((work, finish))
        if len(self._decoding) == 1:
            self._jobs.run(work, finish)
        return pending

    def _refuse_unreadable(self, context: RequestContext, instance: ClientInstance, error: object) -> None:
        self.unreadable += 1
        self._instances.finish_push(instance, ErrorCode.INVALID_RECORD)
        if self.unreadable & (self.unreadable - 1) == 0:
            log.warning(
                "metrics of client %s (instance %s, %s) cannot be read: %s; %d pushes were refused so far",
                printable(instance.client.client_id),
                uuid_to_text(instance.id),
                context.connection,
                printable(str(error)),
                self.unreadable,
            )


def _decode(
    data: bytes,
    codec: int,
    whose: tuple[Uuid, Client, str, int],
    form: str,
    makes_series: bool,
    pause: Callable[[], None],
    *,
    is_terminating: bool,
) -> Decoded:
    """Runs on a thread: it touches nothing that the loop changes. `whose`: the fields of a `PointSource`."""
    # A node whose clients push nothing does not import these.
    from kalda.records.compression import Compression, decompress
    from kalda.telemetry.client_metrics import PointSource, to_records
    from kalda.telemetry.otlp import BadMetrics, decode

    try:
        payload = bytes(decompress(Compression(codec), data, MAX_DECOMPRESSED_BYTES))
    except CorruptRecord as error:
        raise BadMetrics(error.message) from error
    points, source = decode(payload, pause), PointSource(*whose)
    series = []
    if makes_series:
        from kalda.telemetry.client_metrics import to_series

        series = to_series(_each(points, pause))
    records = to_records(source, _each(points, pause), form)
    return Decoded(source, points, records, payload, series, is_terminating)


def _each(points: Iterable[DataPoint], pause: Callable[[], None]) -> Iterator[DataPoint]:
    for point in points:
        yield point
        pause()


def _client_of(context: RequestContext) -> Client:
    connection = context.connection
    return Client(
        connection.id,
        context.client_id[:MAX_ATTRIBUTE_LENGTH],
        connection.client_software_name[:MAX_ATTRIBUTE_LENGTH],
        connection.client_software_version[:MAX_ATTRIBUTE_LENGTH],
        context.client_host,
        connection.peer_port,
    )


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
        self.channels = BrokerChannels(
            "client-metrics",
            config,
            context.cache,
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
            self._context.server.listeners[listener.listener].on_close.append(self._on_close)
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
        await self.channels.close()

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
                from kalda.broker.metrics.client_metrics_receivers import Push

                for plugin in self._plugins:
                    plugin.put(Push(push.source, push.is_terminating, push.points, push.payload))
        except Exception:
            log.exception("metrics of a client are lost")

    def _take_series(self, instance: ClientInstance, push: Decoded) -> None:
        if self.series is None:
            from kalda.telemetry.client_metrics import ClientSeries

            self.series = ClientSeries()
        if instance.id in self.instances:
            self.series.take(instance.id, instance.client, push.series)

    def _new_topic(self) -> ClientMetricsTopic:
        from kalda.broker.metrics.client_metrics_receivers import PLAN, ClientMetricsTopic

        context = self._context
        topics = AutoTopics(context.channel, False, lambda name: PLAN, context.config["request.timeout.ms"])
        return ClientMetricsTopic(
            context.config.node_id,
            self._replicas,
            context.cache,
            topics,
            self.channels.send,
            self._clock,
            context.timers,
        )

    # -- instances

    def _arm(self) -> None:
        if not self._closed:
            self._timer = self._context.timers.call_later_ms(_EXPIRY_INTERVAL_MS, self._expire)

    def _expire(self) -> None:
        expired = self.instances.expire(self._clock.mono_ms())
        self._context.background.run(expired, Priority.MAINTENANCE).then(self._on_expired)

    def _on_expired(self, _: None, error: ApiError | None) -> None:
        if error is not None:
            log.error("clients that push no metrics any more could not be removed", exc_info=error.__cause__ or error)
        now_ms, evicted = self._clock.mono_ms(), self.instances.evicted - self._evicted
        if evicted and now_ms - self._logged_ms >= _EVICTIONS_LOGGED_EVERY_MS:
            self._evicted, self._logged_ms = self.instances.evicted, now_ms
            log.warning("%d clients were removed because too many others push metrics", evicted)
        self._arm()

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
    from kalda.broker.metrics.client_metrics_receivers import PluginRunner

    return [PluginRunner(path) for path in paths]
