"""GetTelemetrySubscriptions (71) and PushTelemetry (72), KIP-714.

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

from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import Uuid, uuid_to_text
from kalda.base.pending import Pending
from kalda.base.printable import printable
from kalda.base.scheduling import Jobs
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kalda.telemetry.client_instances import (
    ACCEPTED_CODECS,
    MAX_ATTRIBUTE_LENGTH,
    Client,
    ClientInstance,
    ClientInstances,
)

if TYPE_CHECKING:
    from kalda.telemetry.client_records import PointSource
    from kalda.telemetry.client_series import SeriesPoint
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
            Row(
                ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
                self.get_subscriptions,
                get_telemetry_subscriptions_failed,
                Authorization.ANYONE,
            ),
            Row(ApiKey.PUSH_TELEMETRY, self.push, push_telemetry_failed, Authorization.ANYONE),
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
    from kalda.telemetry.client_records import PointSource, to_records
    from kalda.telemetry.otlp import BadMetrics, decode

    try:
        payload = bytes(decompress(Compression(codec), data, MAX_DECOMPRESSED_BYTES))
    except CorruptRecord as error:
        raise BadMetrics(error.message) from error
    points, source = decode(payload, pause), PointSource(*whose)
    series = []
    if makes_series:
        from kalda.telemetry.client_series import to_series

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


def get_telemetry_subscriptions_failed(
    request: GetTelemetrySubscriptionsRequest, version: int, error: ApiError
) -> GetTelemetrySubscriptionsResponse:
    """The error alone."""
    return GetTelemetrySubscriptionsResponse(error_code=error.code)


def push_telemetry_failed(request: PushTelemetryRequest, version: int, error: ApiError) -> PushTelemetryResponse:
    """The error alone."""
    return PushTelemetryResponse(error_code=error.code)
