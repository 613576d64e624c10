"""The quotas of a node, and what a change of the metadata does to them.

`update` is called with the changes of an image: entity by entity, key by key. It says which quotas are in use then, so
that the request pipeline charges only those: without any quota a request costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.stats import MetricConfig, Rate, TokenBucket, violation
from kalda.metadata.client_quotas import CLIENT_ID, IP, USER, QuotaEntity
from kalda.quota.client_quotas import ClientQuotas, ClientSensors, MetricTags, QuotaType, RequestQuotas
from kalda.quota.entities import ClientQuotaCallback, Decision, entity_of, rounded

# Partitions that a client creates or deletes: `controller_mutation_rate` (KIP-599).
#
# A token bucket holds as many as `samples` windows allow, so that a burst is served, and the rate is kept over time.
# By the version of its API a request is charged strictly or permissively. Strictly: it is refused with
# THROTTLING_QUOTA_EXCEEDED while the bucket is below nothing, before anything is changed; else it is not throttled.
# Permissively, for clients that do not know this error: it is never refused, and throttled when it empties the
# bucket.

_LONG_AGO_MS = -(2**40)
"""When a new bucket was last refilled: it is full."""


class MutationSensors(ClientSensors):
    """The bucket, and the rate of mutations beside it."""

    __slots__ = ("bucket",)

    def __init__(self, tags: MetricTags, config: MetricConfig, now_ms: int) -> None:
        super().__init__(tags, Rate(), now_ms)
        self.bucket = TokenBucket(config, _LONG_AGO_MS)

    def set_limit(self, limit: float, config: MetricConfig) -> None:
        """Another limit; the tokens stay."""
        self.limit = limit
        self.bucket.config = config

    def record(self, value: float, now_ms: int) -> None:
        """Take `value` tokens."""
        self.metric.record(value, now_ms)
        self.bucket.record(value, now_ms)
        self.last_ms = now_ms
        self.requests += 1


class MutationQuotas(ClientQuotas):
    """Mutations a second of the controller."""

    metric_name = "tokens"

    def __init__(self, config: MetricConfig, callback: ClientQuotaCallback | None = None) -> None:
        super().__init__(QuotaType.CONTROLLER_MUTATION, config, callback)

    def charge_of(self, principal: str, client_id: str, now_ms: int, *, strict: bool) -> MutationCharge:
        """What one request of this client is charged with."""
        sensors = self.sensors_of(principal, client_id, now_ms)
        assert isinstance(sensors, MutationSensors)
        return MutationCharge(self, sensors, strict)

    def note(self, sensors: MutationSensors, decision: Decision) -> None:
        """Keep a decision that throttled or refused."""
        self._note(sensors, decision)

    def _new_sensors(self, tags: MetricTags, now_ms: int) -> ClientSensors:
        return MutationSensors(tags, self.config, now_ms)


class MutationCharge:
    """The mutations of one request."""

    __slots__ = ("_quotas", "_recorded_ms", "_sensors", "_strict", "_throttle_ms")

    def __init__(self, quotas: MutationQuotas, sensors: MutationSensors, strict: bool) -> None:
        self._quotas = quotas
        self._sensors = sensors
        self._strict = strict
        self._throttle_ms = 0
        """The pause, as of `_recorded_ms`."""
        self._recorded_ms = 0

    def record(self, count: float, now_ms: int) -> None:
        """Take so many tokens. Raises `ApiError` THROTTLING_QUOTA_EXCEEDED, and takes none, where the request is
        charged strictly and the bucket is below nothing."""
        sensors = self._sensors
        if not self._strict:
            sensors.record(count, now_ms)
        found = violation(sensors.bucket, now_ms)
        if found is not None:
            self._throttle_ms = rounded(-found.value / found.bound * 1000)
            self._recorded_ms = now_ms
            decision = Decision(now_ms, count, found.value, found.bound, 0, self._throttle_ms)
            self._quotas.note(sensors, decision)
            if self._strict:
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if self._strict:
            sensors.record(count, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """For how long the client has to pause from now on: the time since the record counts."""
        return max(0, self._throttle_ms - (now_ms - self._recorded_ms))


log = logging.getLogger("kalda.quotas")

_MAX_LOGGED = 20
"""Changes of one image that are logged one by one."""
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"


class Windows:
    """How far each kind of quota looks back."""

    __slots__ = ("alter_log_dirs", "client", "controller", "replication")

    def __init__(self, number_of: Callable[[str], int]) -> None:
        """`number_of` is called with keys of the configuration."""

        def config(samples: str, seconds: str) -> MetricConfig:
            return MetricConfig(number_of(seconds) * 1000, number_of(samples))

        self.client = config("quota.window.num", "quota.window.size.seconds")
        self.controller = config("controller.quota.window.num", "controller.quota.window.size.seconds")
        self.replication = config("replication.quota.window.num", "replication.quota.window.size.seconds")
        self.alter_log_dirs = config(
            "alter.log.dirs.replication.quota.window.num", "alter.log.dirs.replication.quota.window.size.seconds"
        )


class QuotaManagers:
    """The quotas of clients, of one role of a node."""

    __slots__ = ("by_type", "fetch", "mutations", "on_ip_rate", "produce", "request")

    def __init__(self, windows: Windows, callback: ClientQuotaCallback | None = None) -> None:
        self.produce = ClientQuotas(QuotaType.PRODUCE, windows.client, callback)
        self.fetch = ClientQuotas(QuotaType.FETCH, windows.client, callback)
        self.request = RequestQuotas(windows.client, callback)
        self.mutations = MutationQuotas(windows.controller, callback)
        self.by_type: dict[QuotaType, ClientQuotas] = {
            each.kind: each for each in (self.produce, self.fetch, self.request, self.mutations)
        }
        self.on_ip_rate: Callable[[str | None, float | None], None] | None = None
        """Called with an address (None: the default of all) and its new rate of connections (None: removed)."""

    def update(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> bool:
        """Apply changed quotas. True where another set of quotas is in use than before."""
        before = self.in_use()
        level = logging.INFO if len(changes) <= _MAX_LOGGED else logging.DEBUG
        if level == logging.DEBUG:
            log.info("quotas of %d entities have changed", len(changes))
        for entity, keys in changes.items():
            parts = dict(entity)
            for key, value in keys.items():
                if IP in parts:
                    self._update_ip(parts[IP], key, value)
                elif USER in parts or CLIENT_ID in parts:
                    self._update_client(parts, key, value, level)
                else:
                    log.warning("quota %s of %s has no effect: no user, client id or address", key, parts)
        return self.in_use() != before

    def in_use(self) -> list[QuotaType]:
        """The quotas that some client has."""
        return [kind for kind, quotas in self.by_type.items() if quotas.is_enabled]

    def set_callback(self, callback: ClientQuotaCallback) -> None:
        """Decide by another class of the operator from now on."""
        for quotas in self.by_type.values():
            quotas.set_callback(callback)

    def expire(self, now_ms: int) -> Steps[None]:
        """Remove sensors that are not used any more."""
        for quotas in self.by_type.values():
            yield from quotas.expire(now_ms)

    def _update_ip(self, address: str | None, key: str, value: float | None) -> None:
        if key != CONNECTION_CREATION_RATE:
            log.warning("quota %s of the address %s is not known, and has no effect", key, address)
        elif self.on_ip_rate is not None:
            try:
                self.on_ip_rate(address, value)
            except ValueError:
                log.error("quota %s of %s has no effect: no address", key, address)

    def _update_client(self, parts: Mapping[str, str | None], key: str, value: float | None, level: int) -> None:
        entity = entity_of(parts)
        quotas = next((each for kind, each in self.by_type.items() if kind.value == key), None)
        if quotas is None:
            log.warning("quota %s of %s is not known, and has no effect", key, entity)
            return
        quotas.set_limit(entity, value)
        if value is None:
            log.log(level, "%s of %s is removed", key, entity)
        else:
            log.log(level, "%s of %s is %s", key, entity, f"{value:g}")
