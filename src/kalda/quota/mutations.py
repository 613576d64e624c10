"""Partitions that a client creates or deletes: `controller_mutation_rate` (KIP-599).

A token bucket holds as many as `samples` windows allow, so that a burst is served, and the rate is kept over time. By
the version of its API a request is charged strictly or permissively. Strictly: it is refused with
THROTTLING_QUOTA_EXCEEDED while the bucket is below nothing, before anything is changed; else it is not throttled.
Permissively, for clients that do not know this error: it is never refused, and throttled when it empties the bucket.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.stats import MetricConfig, Rate, TokenBucket, violation
from kalda.quota.callback import ClientQuotaCallback
from kalda.quota.client_quotas import ClientQuotas, ClientSensors, MetricTags, QuotaType
from kalda.quota.decisions import Decision, rounded

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
