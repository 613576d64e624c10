"""Clients that push metrics, what they are to push, and how often (KIP-714).

A subscription is a config resource: prefixes of metric names, an interval, and patterns that a client must match. A
client gets the prefixes of all subscriptions that it matches, and their shortest interval. Its subscription id is a
checksum of both and of its instance id, so any broker computes the same one, and a changed subscription changes it.

A client pushes once an interval, the first time after a GetTelemetrySubscriptions whenever it is ready: clients spread
their first push at random. What it sends too early is refused with THROTTLING_QUOTA_EXCEEDED, except a terminating
push, which is its last.

Instance ids are made up by clients. So instances are bounded in number, the one that was used least recently is
removed first; they expire when they are silent, and end with their connection. A store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.client_metrics import CLIENT_METRICS, parse_match
from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid, UuidSource, is_reserved, uuid_to_text
from kalda.base.java_order import java_order, uuid_hash
from kalda.base.patterns import Pattern
from kalda.records.batch import crc32c
from kalda.records.compression import Compression

MAX_INSTANCES: Final = 16_384
ALL_METRICS: Final = "*"
ACCEPTED_CODECS: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""In the order in which they are recommended to clients. Uncompressed pushes are accepted too."""
MAX_ATTRIBUTE_LENGTH: Final = 256
"""Of the names that a client gives itself so many characters count: they are kept, matched and written with each of
its metrics."""
_KNOWN_CODECS: Final = frozenset(map(int, Compression))
_DEFAULT_INTERVAL_MS: Final = 300_000
_MIN_LIFETIME_MS: Final = 60_000
_LIFETIME_INTERVALS: Final = 3
_NEVER_MS: Final = -(2**62)
_RECOVERS_AT_ONCE: Final = frozenset((ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))
"""After these a client gets its subscription without a wait."""


class Client(NamedTuple):
    """Who sent a request of telemetry."""

    connection_id: int
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: int


class MetricsSubscription(NamedTuple):
    """One config resource of client metrics."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Pattern]

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> MetricsSubscription:
        """Raises `InvalidConfig`."""
        values = CLIENT_METRICS.parse(configs)
        metrics, interval_ms, match = values["metrics"], values["interval.ms"], values["match"]
        assert isinstance(metrics, tuple)
        assert isinstance(interval_ms, int)
        assert isinstance(match, tuple)
        return cls(metrics, interval_ms, parse_match(match))

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether each pattern matches the whole of its attribute."""
        return all(pattern.matches(attributes[name]) for name, pattern in self.match.items())


class ClientInstance:
    """One client, as long as it is known."""

    __slots__ = (
        "client",
        "connection_id",
        "id",
        "interval_ms",
        "is_terminating",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "last_seen_ms",
        "metrics",
        "subscription_id",
        "version",
    )

    def __init__(self, instance_id: Uuid, client: Client) -> None:
        self.id = instance_id
        self.client = client
        self.connection_id = client.connection_id
        """Of its last request."""
        self.metrics: tuple[str, ...] = ()
        """Prefixes of the names that it is to push; `ALL_METRICS` stands alone."""
        self.interval_ms = _DEFAULT_INTERVAL_MS
        self.subscription_id = 0
        self.version = -1
        """Of the subscriptions that these three were computed from."""
        self.last_get_ms = _NEVER_MS
        self.last_push_ms = _NEVER_MS
        self.last_seen_ms = 0
        self.last_error = ErrorCode.NONE
        self.is_terminating = False
        """Whether it has announced its end: nothing more is accepted."""

    def accepts_get(self, now_ms: int) -> bool:
        """Whether an interval has passed since the last request; if so, this one counts."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def accepts_push(self, now_ms: int) -> bool:
        """Whether this is the first push since the subscription was read, or an interval has passed; if so, it
        counts."""
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True

    @property
    def lifetime_ms(self) -> int:
        """After so long without a request it is removed."""
        return max(_MIN_LIFETIME_MS, _LIFETIME_INTERVALS * self.interval_ms)


class ClientInstances:
    """The subscriptions of a cluster, and the clients of one broker. Invariant: each connection id of an instance is in
    `_by_connection`, and leads back to that instance."""

    def __init__(self, new_uuid: UuidSource, max_bytes: int) -> None:
        """`max_bytes` is `telemetry.max.bytes`, which a push must not exceed as it is sent."""
        self._new_uuid = new_uuid
        self._max_bytes = max_bytes
        self._subscriptions: dict[str, MetricsSubscription] = {}
        self._version = 0
        """Counts the changes of subscriptions."""
        self._instances: dict[Uuid, ClientInstance] = {}
        """In the order of their last requests."""
        self._by_connection: dict[int, Uuid] = {}
        self.evicted = 0
        """Removed so far because there were `MAX_INSTANCES` others."""
        self.throttled = 0
        """Requests that came too early."""
        self.unknown_subscriptions = 0
        """Pushes under a subscription id that is not the client's."""
        self.on_removed: Callable[[Uuid], None] = lambda instance_id: None
        """Called with each instance that was removed."""

    def __len__(self) -> int:
        return len(self._instances)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._instances

    # -- subscriptions

    @property
    def has_subscriptions(self) -> bool:
        """Whether some client may have something to push."""
        return bool(self._subscriptions)

    def set_subscription(self, name: str, configs: Mapping[str, str]) -> str | None:
        """Replace a subscription; without configs it is removed. Returns why it cannot be read, where it cannot: the
        former one is removed then."""
        former = self._subscriptions.pop(name, None)
        if not configs and former is None:
            return None
        self._version += 1
        if not configs:
            return None
        try:
            self._subscriptions[name] = MetricsSubscription.of(configs)
        except InvalidConfig as error:
            return str(error)
        return None

    # -- requests

    def get(self, instance_id: Uuid, client: Client, now_ms: int) -> ClientInstance:
        """GetTelemetrySubscriptions: what the client is to push. The zero id stands for a client that has none yet.
        Raises `ApiError`."""
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        instance = self._instance(instance_id, client, now_ms)
        if not instance.accepts_get(now_ms) and instance.last_error not in _RECOVERS_AT_ONCE:
            self._refuse_early(instance)
        instance.last_error = ErrorCode.NONE
        return instance

    def push(
        self,
        instance_id: Uuid,
        client: Client,
        now_ms: int,
        *,
        subscription_id: int,
        is_terminating: bool,
        codec: int,
        size_bytes: int,
    ) -> ClientInstance:
        """PushTelemetry: the client whose metrics may be taken. `finish_push` has to be called with what became of
        them. Raises `ApiError`."""
        if is_reserved(instance_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid request from the client [{uuid_to_text(instance_id)}], invalid client instance id",
            )
        instance = self._instance(instance_id, client, now_ms)
        try:
            self._check_push(instance, now_ms, subscription_id, is_terminating, codec, size_bytes)
        except ApiError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = is_terminating
        return instance

    def finish_push(self, instance: ClientInstance, error: ErrorCode) -> None:
        """The metrics of an accepted push were taken, or could not be."""
        instance.last_error = error

    def _check_push(
        self,
        instance: ClientInstance,
        now_ms: int,
        subscription_id: int,
        is_terminating: bool,
        codec: int,
        size_bytes: int,
    ) -> None:
        shown = uuid_to_text(instance.id)
        if instance.is_terminating:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Client [{shown}] sent the previous request with state terminating to TRUE, can not accept"
                "any requests after that",
            )
        if not instance.accepts_push(now_ms) and not is_terminating:
            self._refuse_early(instance)
        if subscription_id != instance.subscription_id:
            self.unknown_subscriptions += 1
            raise ApiError(
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID, f"Unknown client subscription id for the client [{shown}]"
            )
        if codec not in _KNOWN_CODECS:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"Unknown compression type [{codec}] is received in telemetry request from [{shown}]",
            )
        if size_bytes > self._max_bytes:
            raise ApiError(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"Telemetry request from [{shown}] is larger than the maximum allowed size [{self._max_bytes}]",
            )

    def _refuse_early(self, instance: ClientInstance) -> None:
        self.throttled += 1
        raise ApiError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"Request from the client [{uuid_to_text(instance.id)}] arrived before the next push interval time",
        )

    # -- instances

    def disconnected(self, connection_id: int) -> None:
        """A connection has ended, and with it the instance whose last request came over it."""
        instance_id = self._by_connection.get(connection_id)
        if instance_id is not None:
            self._remove(instance_id)

    def expire(self, now_ms: int) -> Steps[None]:
        """Remove the instances that have been silent for `lifetime_ms`."""
        for index, instance_id in enumerate(list(self._instances), 1):
            instance = self._instances.get(instance_id)
            if instance is not None and now_ms - instance.last_seen_ms >= instance.lifetime_ms:
                self._remove(instance.id)
            if index % ITEMS_A_STEP == 0:
                yield

    def _new_id(self) -> Uuid:
        while True:
            instance_id = self._new_uuid()
            if instance_id not in self._instances:
                return instance_id

    def _instance(self, instance_id: Uuid, client: Client, now_ms: int) -> ClientInstance:
        """The instance with that id, made where there is none, and made anew where its subscriptions have changed."""
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            if len(self._instances) >= MAX_INSTANCES:
                self.evicted += 1
                self._remove(next(iter(self._instances)))
            instance = ClientInstance(instance_id, client)
            self._subscribe(instance)
        elif instance.version != self._version:
            # As in Kafka, a changed subscription begins with no request: the client gets it at once.
            instance = ClientInstance(instance_id, instance.client)
            self._subscribe(instance)
        if self._by_connection.get(instance.connection_id) == instance_id:
            del self._by_connection[instance.connection_id]
        former = self._by_connection.get(client.connection_id)
        self._instances[instance_id] = instance
        if former is not None and former != instance_id:
            self._remove(former)  # a connection has one client
        instance.connection_id = client.connection_id
        self._by_connection[client.connection_id] = instance_id
        instance.last_seen_ms = now_ms
        return instance

    def _remove(self, instance_id: Uuid) -> None:
        instance = self._instances.pop(instance_id)
        if self._by_connection.get(instance.connection_id) == instance_id:
            del self._by_connection[instance.connection_id]
        self.on_removed(instance_id)

    def _subscribe(self, instance: ClientInstance) -> None:
        """Compute what the instance is to push."""
        attributes = _attributes(instance.id, instance.client)
        names: dict[str, None] = {}
        interval_ms = _DEFAULT_INTERVAL_MS
        for subscription in self._subscriptions.values():
            if subscription.matches(attributes):
                names.update(dict.fromkeys(subscription.metrics))
                interval_ms = min(interval_ms, subscription.interval_ms)
        if ALL_METRICS in names:
            names = {ALL_METRICS: None}
        instance.metrics = tuple(java_order(names))
        instance.interval_ms = interval_ms
        instance.subscription_id = subscription_id(instance.metrics, interval_ms, instance.id)
        instance.version = self._version


def _attributes(instance_id: Uuid, client: Client) -> dict[str, str]:
    """What patterns are matched with, by the name of the property (`MATCH_PROPERTIES`)."""
    return {
        "client_instance_id": uuid_to_text(instance_id),
        "client_id": client.client_id,
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
        "client_source_address": client.address,
        "client_source_port": str(client.port),
    }


def subscription_id(metrics: tuple[str, ...], interval_ms: int, instance_id: Uuid) -> int:
    """A checksum of what a client is to push, signed; `metrics` in the order of Java's hash sets."""
    text = f"[{', '.join(metrics)}]{interval_ms}"
    mixed = crc32c(text.encode()) ^ uuid_hash(instance_id)
    return mixed - (1 << 32) if mixed >> 31 else mixed
