"""The use of one quota by its clients: what is recorded, and for how long a client has to pause.

Clients with the same tags share sensors: the rate that its quota bounds, and the mean throttle time. Sensors are made
with a client's first request, and are removed after an hour without one. After ten minutes without one they keep only
what the next request needs. A limit that changes keeps the usage.

Client ids are made up by clients. So sensors, and the memory of their names, are bounded: where a new one has no room,
the ones that were made first are removed, and such a client begins with an unused quota. A store.

Not obvious:

- After a change of a default quota, limits are read through `ClientQuotas.find` or `each_sensors`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Final

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.samples import FreeUse
from kalda.base.stats import Avg, MetricConfig, Quota, Rate
from kalda.quota.entities import (
    ABSENT,
    DEFAULT,
    ClientQuotaCallback,
    Decision,
    Entity,
    Levels,
    Limits,
    Step,
    throttle_ms,
)

SENSOR_LIFETIME_MS: Final = 3_600_000
"""After so long without a record a sensor is removed, as in Kafka."""
IDLE_MS: Final = 600_000
"""After so long without a record a sensor keeps neither samples, which count no more then, nor decisions."""
UNLIMITED: Final = float(2**63 - 1)
_LARGEST: Final = 2**63 - 1
MAX_SENSORS: Final = 100_000
MAX_NAME_BYTES: Final = 64 * 1024 * 1024
"""Of all tags of one quota, and of the cache of clients."""
_KEPT_DECISIONS = 100
_MAX_CONFIGS = 10_000
NANOS_TO_PERCENT: Final = 100.0 / 1_000_000_000

MetricTags = tuple[str, ...]
"""Names and values of tags in turn: of a hundred thousand clients, one tuple each."""


class QuotaType(Enum):
    """The quotas of clients, by the key that sets them."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"

    @property
    def group(self) -> str:
        """The type of its metrics: Produce, Fetch, Request, ControllerMutation."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class Pauses:
    """What is kept of the pauses of clients with the same tags."""

    __slots__ = ("decisions", "logged_ms", "throttle_time")

    def __init__(self) -> None:
        self.decisions: deque[Decision] = deque(maxlen=_KEPT_DECISIONS)
        """The last ones that throttled."""
        self.throttle_time = Avg()
        """The mean of the throttle times."""
        self.logged_ms = -(2**40)
        """When a throttled request was logged last."""


class ClientSensors(FreeUse):
    """What the clients with the same tags have used, and what of their quota is free now."""

    __slots__ = ("limit", "limits_version", "metric", "most_at_once", "name", "pauses")

    def __init__(self, tags: MetricTags, metric: Rate, now_ms: int) -> None:
        super().__init__(now_ms)
        self.name = tags
        self.metric = metric
        """The rate that the quota bounds; of mutations, the rate beside the token bucket."""
        self.limit = UNLIMITED
        self.limits_version = 0
        """The version of the limits that `limit` was found by."""
        self.most_at_once = _LARGEST
        """What a client that has used nothing may use at once without a pause: what the limit allows in all windows but
        one. With more, the rate would exceed it."""
        self.pauses: Pauses | None = None
        """None until there is one."""

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """Names and values."""
        return tuple(zip(self.name[::2], self.name[1::2], strict=True))

    def release_memory(self, now_ms: int) -> None:
        """Keep what the next record needs: no more, of clients that are idle."""
        self.withdraw()
        self.metric.release_memory(now_ms)
        self.pauses = None

    def note_pause(self, pause_ms: int, now_ms: int) -> None:
        """A client pauses for this quota: count it in the mean throttle time."""
        self.made_pauses().throttle_time.record(pause_ms, now_ms)

    def note(self, decision: Decision) -> None:
        """Keep a decision that throttled."""
        self.made_pauses().decisions.append(decision)

    def made_pauses(self) -> Pauses:
        """`pauses`, made where there are none."""
        if self.pauses is None:
            self.pauses = Pauses()
        return self.pauses

    def set_limit(self, limit: float, config: MetricConfig) -> None:
        """Another limit; what was used stays. `config` has it as its quota."""
        self.limit = limit
        self.most_at_once = int(min(limit * (config.samples - 1) * (config.window_ms / 1000), _LARGEST))
        self.metric.config = config
        self.withdraw()


class ClientQuotas:
    """One kind of quota."""

    metric_name = "byte-rate"
    """The name of the metric that the quota bounds."""
    max_throttle_ms: int | None = None
    """The longest pause; None where it has no limit."""

    def __init__(self, kind: QuotaType, config: MetricConfig, callback: ClientQuotaCallback | None = None) -> None:
        self.kind = kind
        self.config = config
        self.limits = Limits()
        self.is_enabled = callback is not None
        """Whether any client has a quota of this kind."""
        self.callback = callback
        """The operator's own class; None for the eight levels of `limits`."""
        self._limits_version = 0
        """Counts the changes of limits that may concern any client."""
        self.sensors: dict[MetricTags, ClientSensors] = {}
        """In the order in which they were made. After a change of a default their limits are found anew when they are
        used: there may be a hundred thousand."""
        self._by_client: dict[tuple[str, str], ClientSensors] = {}
        """By principal and client id: the sensors that were found for it. Empty where a class of the operator chooses
        them: it may choose others each time."""
        self._name_bytes = 0
        """Length of all names in `sensors`."""
        self._cached_bytes = 0
        """Length of all names in `_by_client`."""
        self._configs: dict[float, MetricConfig] = {}
        """By limit; see `_config_of`."""
        self.on_throttled: Callable[[ClientQuotas, ClientSensors, Decision], None] | None = None
        """Called with each decision that throttles."""

    # -- what the quota is

    def set_limit(self, entity: Entity, limit: float | None) -> None:
        """Set or remove the quota of an entity. It takes effect with the next request."""
        self.limits.set(entity, limit)
        self.is_enabled = self.callback is not None or self.limits.levels != Levels.NONE
        if self.callback is not None:
            if limit is None:
                self.callback.remove_quota(self.kind.name, entity)
            else:
                self.callback.update_quota(self.kind.name, entity, limit)
        if self.callback is not None or DEFAULT in entity:
            self.apply_limits()
            return
        self._forget_clients()
        sensors = self.sensors.get(_metric_tags(entity.user or ABSENT, entity.client_id or ABSENT))
        if sensors is not None:
            self._apply_limit(sensors)

    def set_callback(self, callback: ClientQuotaCallback) -> None:
        """Decide by another class of the operator from now on. It is called with all quotas of the metadata."""
        self.callback = callback
        self.is_enabled = True
        for entity, limit in self.limits.entities():
            callback.update_quota(self.kind.name, entity, limit)
        self.apply_limits()

    def apply_limits(self) -> None:
        """Give all sensors the limit that their tags have now, before they are used again."""
        self._limits_version += 1
        self._forget_clients()

    def _apply_limit(self, sensors: ClientSensors) -> None:
        sensors.limits_version = self._limits_version
        limit = self._limit_of(sensors.name)
        if limit != sensors.limit:
            sensors.set_limit(limit, self._config_of(limit))

    def _limit_of(self, tags: MetricTags) -> float:
        if self.callback is not None:
            limit = self.callback.quota_limit(self.kind.name, dict(zip(tags[::2], tags[1::2], strict=True)))
        else:
            _, user, _, client_id = tags
            limit = self.limits.limit((user, client_id))
        return UNLIMITED if limit is None else limit

    def steps(self, principal: str, client_id: str) -> list[Step]:
        """What is found for a client at each of the eight levels."""
        return self.limits.steps(user_of(principal), client_id)

    # -- what is used

    def sensors_of(self, principal: str, client_id: str, now_ms: int) -> ClientSensors:
        """The sensors of a client, made where there are none. `principal` is `type:name`."""
        sensors = self._by_client.get((principal, client_id))
        if sensors is not None:
            return sensors
        if self.callback is None:
            tags = _metric_tags(*self.limits.tags(user_of(principal), client_id))
        else:
            found = self.callback.quota_metric_tags(self.kind.name, user_of(principal), client_id)
            tags = tags_of(found)
        sensors = self.find(tags) or self._make(tags, now_ms)
        if self.callback is None:
            self._cached_bytes += len(principal) + len(client_id)
            if len(self._by_client) >= MAX_SENSORS or self._cached_bytes > MAX_NAME_BYTES:
                self._forget_clients()
            self._by_client[principal, client_id] = sensors
        elif self.callback.quota_reset_required(self.kind.name):
            self.apply_limits()
            self._apply_limit(sensors)
        return sensors

    def find(self, tags: MetricTags) -> ClientSensors | None:
        """The sensors with these tags, where there are any."""
        sensors = self.sensors.get(tags)
        if sensors is not None and sensors.limits_version != self._limits_version:
            self._apply_limit(sensors)
        return sensors

    def record(self, principal: str, client_id: str, value: float, now_ms: int) -> int:
        """Record what a client has used. Returns for how many milliseconds it has to pause; 0 within its quota."""
        sensors = self._by_client.get((principal, client_id)) or self.sensors_of(principal, client_id, now_ms)
        if sensors.take(value, now_ms):
            return 0
        metric, limit = sensors.metric, sensors.limit
        sensors.last_ms = now_ms
        sensors.requests += 1
        if metric.record_within(value, now_ms, sensors):
            return 0
        observed, window_ms, pause_ms = throttle_ms(metric, limit, now_ms)
        if self.max_throttle_ms is not None and pause_ms > self.max_throttle_ms:
            pause_ms = self.max_throttle_ms
        if pause_ms > 0:
            self._note(sensors, Decision(now_ms, value, observed, limit, window_ms, pause_ms))
        return pause_ms

    def record_unthrottled(self, principal: str, client_id: str, value: float, now_ms: int) -> None:
        """Record what a client has used, without a decision; a negative value undoes a record."""
        sensors = self.sensors_of(principal, client_id, now_ms)
        sensors.last_ms = now_ms
        sensors.metric.record(value, now_ms)

    def note_throttle(self, principal: str, client_id: str, pause_ms: int, now_ms: int) -> None:
        """A client pauses for this quota: count it in the mean throttle time."""
        self.sensors_of(principal, client_id, now_ms).note_pause(pause_ms, now_ms)

    def expire(self, now_ms: int) -> Steps[None]:
        """Remove the sensors without a record for `SENSOR_LIFETIME_MS`, and release the memory of those without one for
        `IDLE_MS`."""
        # Those that are used are found again: what is kept for clients that are idle is their sensors alone.
        self._forget_clients()
        unchecked = iter(list(self.sensors))
        while some := list(islice(unchecked, ITEMS_A_STEP)):
            expired = []
            for tags in some:
                sensors = self.sensors.get(tags)
                if sensors is None:
                    continue
                idle_ms = now_ms - sensors.last_ms
                if idle_ms > SENSOR_LIFETIME_MS:
                    expired.append(tags)
                elif idle_ms > IDLE_MS:
                    sensors.release_memory(now_ms)
            self._remove(expired)
            yield

    def each_sensors(self) -> Iterator[ClientSensors]:
        """All sensors that there are at the first call; those that are removed meanwhile may be left out."""
        return filter(None, map(self.find, list(self.sensors)))

    def _new_metric(self) -> Rate:
        return Rate(self.config)

    def _new_sensors(self, tags: MetricTags, now_ms: int) -> ClientSensors:
        return ClientSensors(tags, self._new_metric(), now_ms)

    def _make(self, tags: MetricTags, now_ms: int) -> ClientSensors:
        self._name_bytes += _size(tags)
        while self.sensors and (len(self.sensors) >= MAX_SENSORS or self._name_bytes > MAX_NAME_BYTES):
            self._remove(list(self.sensors)[: max(1, len(self.sensors) // 16)])
        sensors = self.sensors[tags] = self._new_sensors(tags, now_ms)
        sensors.limits_version = self._limits_version
        limit = self._limit_of(tags)
        sensors.set_limit(limit, self._config_of(limit))
        return sensors

    def _config_of(self, limit: float) -> MetricConfig:
        """The windows with this limit: one object for all clients that have the same one."""
        if len(self._configs) > _MAX_CONFIGS:
            self._configs.clear()
        config = self._configs.get(limit)
        if config is None:
            config = self._configs[limit] = self.config._replace(quota=Quota(limit))
        return config

    def _remove(self, removed: list[MetricTags]) -> None:
        for tags in removed:
            del self.sensors[tags]
            self._name_bytes -= _size(tags)
        if removed:
            self._forget_clients()

    def _forget_clients(self) -> None:
        self._by_client.clear()
        self._cached_bytes = 0

    def _note(self, sensors: ClientSensors, decision: Decision) -> None:
        sensors.note(decision)
        if self.on_throttled is not None:
            self.on_throttled(self, sensors, decision)


class RequestQuotas(ClientQuotas):
    """The time of the event loop, in percent of one second (`request_percentage`, KIP-124).

    Kafka measures the time of its request handler and network threads. Here one loop does both. What is recorded is the
    time for which a request holds the loop until its response is known: decoding and handling. The limit
    of Kafka with eight handler threads is 800 %; here it is 100 %. A pause is one window at most.
    """

    metric_name = "request-time"

    def __init__(self, config: MetricConfig, callback: ClientQuotaCallback | None = None) -> None:
        super().__init__(QuotaType.REQUEST, config, callback)
        self.max_throttle_ms = config.window_ms
        self.exempt = Rate(config)
        """The time of requests that no quota counts: those between nodes. Never removed."""


def _metric_tags(user: str, client_id: str) -> MetricTags:
    return ("user", user, "client-id", client_id)


def tags_of(named: Mapping[str, str]) -> MetricTags:
    """The tags of a mapping."""
    return tuple(part for pair in named.items() for part in pair)


def _size(tags: MetricTags) -> int:
    return sum(map(len, tags[1::2]))


def user_of(principal: str) -> str:
    """The name in a principal `type:name`."""
    return principal.partition(":")[2]
