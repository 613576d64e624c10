"""A client pushes its own metrics to the cluster, as far as the cluster subscribes to them (KIP-714).

    GetTelemetrySubscriptions -> nothing subscribed: again after the interval
                              -> PushTelemetry after half to one and a half of an interval, then once an interval
    UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE -> GetTelemetrySubscriptions at once
    INVALID_REQUEST, INVALID_RECORD, and errors that are not of telemetry -> nothing more is sent
    any other error, no response -> again after the interval
    the broker does not announce telemetry (it may later, when there is a subscription) -> again after the interval

At the end of the client one last, terminating push is sent, where there is a subscription; the client waits for its
answer for a moment, and no longer. Names of metrics are KIP-714's. A machine, whose codecs are imported with the first
push.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid, uuid_to_text

if TYPE_CHECKING:
    from kalda.base.sensors import SensorName
    from kalda.clientcore.connections.client_metrics import ClientMetrics
    from kalda.clientcore.connections.connections import Connections

log = logging.getLogger(__name__)

_DEFAULT_INTERVAL_MS: Final = 300_000
_RETRY_MS: Final = 1_000
"""Until the next attempt where no broker is connected."""
_SOON_MS: Final = 20
"""Likewise, where a call waits for the client's id."""
_CLOSE_MS: Final = 300
"""How long the end of a client waits for the answer to its last push."""
_AT_ONCE: Final = frozenset((ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
_LATER: Final = frozenset((ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED))
_NETWORK: Final = frozenset((ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT))
_ALL: Final = "*"
_NEVER_MS: Final = 2**62
_NS_PER_MS: Final = 1_000_000


class Measured(NamedTuple):
    """One metric of the client now."""

    name: str
    """KIP-714's: `org.apache.kafka.producer.record.send.total`."""
    value: float
    is_total: bool = False
    """Whether the value only grows."""
    attributes: tuple[tuple[str, str], ...] = ()


class PushState(Enum):
    """What the client does next, or waits for."""

    GET = auto()
    GETTING = auto()
    PUSH = auto()
    PUSHING = auto()
    ENDING = auto()
    """The terminating push is sent."""
    ENDED = auto()


class TelemetryPusher:
    """The pushing side of one client."""

    def __init__(
        self,
        measure: Callable[[int], Iterable[Measured]],
        wall_ms: Callable[[], int],
        random: Callable[[], float],
        now_ms: Callable[[], int],
        first_ms: int,
        labels: tuple[tuple[str, str], ...] = (),
        awaiting: list[Callable[[], None]] | None = None,
    ) -> None:
        """`measure(now_ms)` lists the client's metrics; `labels` are sent with all of them; `random()` is in [0, 1);
        `now_ms()` is the time of the event that is being processed, `first_ms` that of the first request."""
        self._now_ms = now_ms
        self._measure = measure
        self._wall_ms = wall_ms
        self._random = random
        self._labels = labels
        self._awaiting = [] if awaiting is None else awaiting
        """Called once the cluster has given an id."""
        self.state = PushState.GET
        self.due_ms = first_ms
        """When `run` has something to do."""
        self.instance_id: Uuid = ZERO_UUID
        """Given by the cluster; zero before."""
        self._subscription_id = 0
        self._interval_ms = _DEFAULT_INTERVAL_MS
        self._metrics: tuple[str, ...] = ()
        """Prefixes of the names that are subscribed."""
        self._codecs: tuple[int, ...] = ()
        self._max_bytes = 0
        self._sends_differences = False
        self._pushed: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        """The totals that the last successful push has reported."""
        self._pushed_ms = 0
        """Wall time up to which totals were reported."""
        self._registered: dict[str, tuple[Callable[[], float], bool]] = {}
        """Metrics of the application (KIP-1076)."""
        self._ends_at_ms: int | None = None
        """Set when the client ends: until when its last push is waited for."""

    # -- metrics of the application

    def register(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns too, under this name (KIP-1076)."""
        self._registered[name] = read, is_total

    def unregister(self, name: str) -> None:
        """Push it no longer."""
        self._registered.pop(name, None)

    # -- turns

    def request_soon(self) -> None:
        """A call waits for the client's id: request it in the next turn, unless that is being done."""
        if self.state is PushState.GET:
            self.due_ms = 0

    def run(self, connections: Connections, now_ms: int) -> None:
        """Send the request that is due."""
        if now_ms < self.due_ms:
            return
        if self._ends_at_ms is not None and (now_ms >= self._ends_at_ms or self.state is not PushState.PUSH):
            self._end()
            return
        if self.state is PushState.GET:
            self._get(connections, now_ms)
        elif self.state is PushState.PUSH:
            self._push(connections, now_ms)
        else:
            self.due_ms = _NEVER_MS if self._ends_at_ms is None else self._ends_at_ms

    def has_ended(self, now_ms: int) -> bool:
        """Whether the client may close its connections. The first call begins the last push, where there is one."""
        if self._ends_at_ms is None:
            self._ends_at_ms = now_ms + _CLOSE_MS
            if not self._metrics or self.state in (PushState.GET, PushState.GETTING, PushState.ENDED):
                self._end()
            else:
                self.state = PushState.PUSH
                self.due_ms = now_ms
        return self.state is PushState.ENDED

    def _end(self) -> None:
        self.state = PushState.ENDED
        self.due_ms = _NEVER_MS

    def _wait(self, state: PushState, due_ms: int) -> None:
        """The next step is `state`, at that time; unless the client has ended meanwhile."""
        if self._ends_at_ms is not None:
            self._end()
        elif self.state is not PushState.ENDED:
            self.state, self.due_ms = state, due_ms

    # -- subscriptions

    def _get(self, connections: Connections, now_ms: int) -> None:
        node_id = connections.least_loaded(now_ms)
        if node_id is None:
            self.due_ms = now_ms + (_SOON_MS if self._awaiting else _RETRY_MS)
            return
        from kalda.protocol.messages.admin import GetTelemetrySubscriptionsRequest

        self.state, self.due_ms = PushState.GETTING, _NEVER_MS
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self.instance_id)
        connections.send(node_id, request, now_ms, self._on_subscription)

    def _on_subscription(self, answer: Any, error: ApiError | None) -> None:
        now_ms = self._now_ms()
        if answer is None or answer.error_code:
            self._on_error(ErrorCode(answer.error_code) if answer is not None else _code_of(error), now_ms)
            return
        if self.instance_id == ZERO_UUID:
            log.debug("metrics are pushed as client instance %s", uuid_to_text(answer.client_instance_id))
        self.instance_id = answer.client_instance_id
        while self._awaiting:
            self._awaiting.pop()()
        self._subscription_id = answer.subscription_id
        self._interval_ms = max(1, answer.push_interval_ms)
        self._metrics = tuple(answer.requested_metrics)
        self._codecs = tuple(answer.accepted_compression_types)
        self._max_bytes = answer.telemetry_max_bytes
        self._sends_differences = answer.delta_temporality
        if not self._metrics:
            self._wait(PushState.GET, now_ms + self._interval_ms)
            return
        if not self._pushed_ms:
            self._pushed_ms = self._wall_ms()
        self._wait(PushState.PUSH, now_ms + int(self._interval_ms * (0.5 + self._random())))

    # -- pushes

    def _push(self, connections: Connections, now_ms: int) -> None:
        node_id = connections.least_loaded(now_ms)
        is_last = self._ends_at_ms is not None
        if node_id is None:
            if is_last:
                self._end()
            else:
                self.due_ms = now_ms + _RETRY_MS
            return
        from kalda.protocol.messages.admin import PushTelemetryRequest

        wall_ms = self._wall_ms()
        found = [each for each in self._measured(now_ms) if self._is_subscribed(each.name)]
        codec, payload = self._encoded(found, wall_ms)
        if len(payload) > self._max_bytes:
            log.warning("%d bytes of metrics are not pushed: the brokers take %d", len(payload), self._max_bytes)
            self._wait(PushState.PUSH, now_ms + self._interval_ms)
            return
        request = PushTelemetryRequest(
            client_instance_id=self.instance_id,
            subscription_id=self._subscription_id,
            terminating=is_last,
            compression_type=codec,
            metrics=payload,
        )
        totals = {(each.name, each.attributes): each.value for each in found if each.is_total}
        self.state = PushState.ENDING if is_last else PushState.PUSHING
        self.due_ms = _NEVER_MS if self._ends_at_ms is None else self._ends_at_ms

        def on_done(answer: Any, error: ApiError | None) -> None:
            if answer is None or answer.error_code:
                self._on_error(ErrorCode(answer.error_code) if answer is not None else _code_of(error), self._now_ms())
                return
            self._pushed, self._pushed_ms = totals, wall_ms
            self._wait(PushState.PUSH, self._now_ms() + self._interval_ms)

        connections.send(node_id, request, now_ms, on_done)

    def _measured(self, now_ms: int) -> Iterable[Measured]:
        yield from self._measure(now_ms)
        for name, (read, is_total) in list(self._registered.items()):
            try:
                yield Measured(name, float(read()), is_total)
            except Exception as error:
                log.warning("metric %s of the application cannot be read, and is not pushed again: %r", name, error)
                self.unregister(name)

    def _is_subscribed(self, name: str) -> bool:
        return _ALL in self._metrics or name.startswith(self._metrics)

    def _encoded(self, found: list[Measured], wall_ms: int) -> tuple[int, bytes]:
        """Codec and bytes of an OTLP message."""
        from math import isfinite

        from kalda.records.compression import Compression, compress
        from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality, encode

        temporality = Temporality.DELTA if self._sends_differences else Temporality.CUMULATIVE
        points = []
        for each in found:
            value = each.value
            if not isfinite(value):
                continue
            if each.is_total and self._sends_differences:
                value -= self._pushed.get((each.name, each.attributes), 0)
            points.append(
                DataPoint(
                    each.name,
                    MetricKind.SUM if each.is_total else MetricKind.GAUGE,
                    value,
                    wall_ms * _NS_PER_MS,
                    self._pushed_ms * _NS_PER_MS if each.is_total else 0,
                    each.attributes,
                    temporality=temporality if each.is_total else Temporality.UNSPECIFIED,
                    is_monotonic=each.is_total,
                )
            )
        payload = encode(points, self._labels)
        codec = next((Compression(each) for each in self._codecs if each in tuple(Compression)), Compression.NONE)
        return codec, bytes(compress(codec, payload))

    def _on_error(self, code: ErrorCode, now_ms: int) -> None:
        if code in _AT_ONCE:
            self._wait(PushState.GET, now_ms)
        elif code in _LATER:
            self._wait(PushState.PUSH if self.state is PushState.PUSHING else PushState.GET, now_ms + self._interval_ms)
        elif code in _NETWORK or code is ErrorCode.UNSUPPORTED_VERSION:
            self._wait(PushState.GET, now_ms + self._interval_ms)
        else:
            log.warning("no more metrics are pushed: the broker has answered %s", code.name)
            self._end()


def _code_of(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NETWORK_EXCEPTION if error is None else error.code


# -- what clients measure


def by_names_of_telemetry(measured: Iterable[tuple[SensorName, float, bool]]) -> Iterable[Measured]:
    """A client's metrics with the names and labels that KIP-714 gives them."""
    for (group, name, tags), value, is_total in measured:
        kind = group.lower().replace("-", ".").replace(".metrics", "")
        labels = tuple((tag.replace("-", "_"), text) for tag, text in tags if tag != "client-id")
        yield Measured(f"org.apache.kafka.{kind}.{name.lower().replace('-', '.')}", value, is_total, labels)


FIRST_MS: Final = 1_000
"""From the making of the client to its first request of telemetry."""


def measured_by(metrics: ClientMetrics) -> Callable[[int], Iterable[Measured]]:
    """What a client pushes: all that it measures."""

    def measure(now_ms: int) -> Iterable[Measured]:

        return by_names_of_telemetry(metrics.measured(now_ms))

    return measure


class OwnMetrics:
    """When a client pushes its own metrics: what its core holds of that.

    The machine that does it (`telemetry_push`) is imported and made when the first request is due, a second after the
    client was made: it would cost the first record its time, and a client that ends before then needs none of it.

    Of one client.
    """

    __slots__ = (
        "_awaiting",
        "_connections",
        "_first_ms",
        "_labels",
        "_measure",
        "_now_ms",
        "_pusher",
        "_random",
        "_wall_ms",
    )

    def __init__(
        self,
        connections: Connections,
        measure: Callable[[int], Iterable[Measured]],
        labels: tuple[tuple[str, str], ...],
        *,
        wall_ms: Callable[[], int],
        now_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        """The arguments are those of `TelemetryPusher`."""
        self._connections = connections
        self._measure = measure
        self._labels = labels
        self._wall_ms = wall_ms
        self._now_ms = now_ms
        self._random = random
        self._pusher: TelemetryPusher | None = None
        """None until its first request is due, or a metric of the application is registered."""
        self._first_ms = now_ms() + FIRST_MS
        self._awaiting: list[Callable[[], None]] = []
        """Called once the client has its id."""

    @property
    def due_ms(self) -> int:
        """When `run` has something to do."""
        return self._first_ms if self._pusher is None else self._pusher.due_ms

    @property
    def instance_id(self) -> Uuid | None:
        """The id that the cluster has given to this client; None before."""
        found = None if self._pusher is None else self._pusher.instance_id
        return None if found == ZERO_UUID else found

    def call_with_id(self, function: Callable[[], None]) -> None:
        """Call `function` when the client has its id, for which a request is due now. From any thread."""
        self._awaiting.append(function)
        if self.instance_id is not None:
            function()
            return
        self._first_ms = 0
        if self._pusher is not None:
            self._pusher.request_soon()

    def run(self, now_ms: int) -> None:
        """Send what is due."""
        self._made().run(self._connections, now_ms)

    def has_ended(self, now_ms: int) -> bool:
        """Whether the last metrics are sent, so that the connections may be closed. The first call begins that."""
        return self._pusher is None or self._pusher.has_ended(now_ms)

    def register(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns too, under this name (KIP-1076)."""
        self._made().register(name, read, is_total=is_total)

    def unregister(self, name: str) -> None:
        """Push it no longer."""
        self._made().unregister(name)

    def _made(self) -> TelemetryPusher:
        if self._pusher is None:
            self._pusher = TelemetryPusher(
                self._measure,
                self._wall_ms,
                self._random,
                self._now_ms,
                self._first_ms,
                self._labels,
                self._awaiting,
            )
        return self._pusher
