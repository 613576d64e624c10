"""What the requests of one kind of listener are charged to: the quotas of clients, what they count, and their pauses.

Each client whose request is throttled is logged once a second at most, and no more than `_LINES_A_SECOND` of them:
clients make up their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from kalda.base.sensors import Durations, Measurable, SensorName, Tags, quantile_sensors
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import QuotaClass
from kalda.protocol.access import Caller
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.messages.partitions import FetchRequest
from kalda.quota.client_quotas import ClientQuotas, ClientSensors
from kalda.quota.entities import Decision, printable
from kalda.quota.explanation import in_words
from kalda.quota.managers import MutationCharge, MutationSensors, QuotaManagers

log = logging.getLogger("kalda.quotas")

STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""From these versions on clients expect THROTTLING_QUOTA_EXCEEDED."""
_LOG_INTERVAL_MS = 1_000
_LINES_A_SECOND = 100
EXEMPT_NAME: Final = SensorName("kafka.server:type=Request", "exempt-request-time")


class ClientThrottle:
    """The quotas of one kind of listener."""

    def __init__(self, managers: QuotaManagers, now_ms: Callable[[], int], now_ns: Callable[[], int]) -> None:
        self.managers = managers
        self.now_ns = now_ns
        """The clock by which the time of requests is measured."""
        self.now_ms = now_ms
        """The clock of the quotas."""
        self._pauses: dict[int, Durations] = {}
        """Pauses of clients, by the API of the request."""
        self._lines = 0
        """Logged in the second that began at `_second_ms`."""
        self._second_ms = -(2**40)
        self._left_out = 0
        """Lines that were not logged since the last one that was."""
        for quotas in managers.by_type.values():
            quotas.on_throttled = self._log

    def applies_to(self, quota: QuotaClass) -> bool:
        """Whether requests of this class are charged now. Where that changes, `RequestPipeline.renew_routes` has to be
        called."""
        managers = self.managers
        own: dict[QuotaClass, ClientQuotas] = {
            QuotaClass.PRODUCE: managers.produce,
            QuotaClass.FETCH: managers.fetch,
            QuotaClass.CONTROLLER_MUTATION: managers.mutations,
        }
        return managers.request.is_enabled or (quota in own and own[quota].is_enabled)

    def mutations_of(self, context: RequestContext) -> Callable[[Caller, int], None]:
        """What accounts for partitions that a request creates or deletes, called with their number. It raises
        `ApiError` THROTTLING_QUOTA_EXCEEDED where the quota of the client has no room for them."""
        return _Mutations(self.managers, context, self.now_ms)

    def _log(self, quotas: ClientQuotas, sensors: ClientSensors, decision: Decision) -> None:
        pauses = sensors.made_pauses()
        if decision.now_ms - pauses.logged_ms < _LOG_INTERVAL_MS:
            return
        pauses.logged_ms = decision.now_ms
        if decision.now_ms - self._second_ms >= _LOG_INTERVAL_MS:
            self._second_ms, self._lines = decision.now_ms, 0
        self._lines += 1
        if self._lines > _LINES_A_SECOND:
            self._left_out += 1
            return
        tags = ", ".join(f"{name} {printable(value)}" for name, value in sensors.tags if value)
        more = f" ({self._left_out} lines of other clients were left out)" if self._left_out else ""
        self._left_out = 0
        log.info("%s of %s: %s%s", quotas.kind.value, tags, in_words(decision), more)

    def note_pause(self, api_key: int, pause_ms: int) -> None:
        """Count a pause for `ThrottleTimeMs`, as long as the client gets it."""
        durations = self._pauses.get(api_key)
        if durations is None:
            durations = self._pauses[api_key] = Durations()
        durations.add_us(pause_ms * 1000)

    # -- metrics

    def measured(self) -> Iterator[tuple[SensorName, Measurable]]:
        """All sensors of clients under Kafka's names, a source for `Sensors.add_source`."""
        for kind, quotas in self.managers.by_type.items():
            group = f"kafka.server:type={kind.group}"
            for sensors in quotas.each_sensors():
                tags = _metric_tags(sensors)
                if isinstance(sensors, MutationSensors):
                    yield SensorName(group, quotas.metric_name, tags), sensors.bucket
                    yield SensorName(group, "mutation-rate", tags), sensors.metric
                else:
                    yield SensorName(group, quotas.metric_name, tags), sensors.metric
                if sensors.pauses is not None:
                    yield SensorName(group, "throttle-time", tags), sensors.pauses.throttle_time
        yield EXEMPT_NAME, self.managers.request.exempt
        for api_key, durations in list(self._pauses.items()):
            tags = (("request", API[api_key].name),)
            yield from quantile_sensors("kafka.network:type=RequestMetrics", "ThrottleTimeMs", tags, durations)


class _Mutations:
    """Charges the partitions of one request; a client without a quota costs nothing."""

    __slots__ = ("_charge", "_now_ms")

    def __init__(self, managers: QuotaManagers, context: RequestContext, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._charge: MutationCharge | None = None
        if managers.mutations.is_enabled:
            strict = context.api_version >= STRICT_SINCE.get(ApiKey(context.header.api_key), 0)
            self._charge = managers.mutations.charge_of(context.principal, context.client_id, now_ms(), strict=strict)

    def __call__(self, caller: Caller, count: int) -> None:
        if self._charge is not None:
            self._charge.record(count, self._now_ms())

    def pause_ms(self, now_ms: int) -> int:
        """For how long the client has to pause."""
        return 0 if self._charge is None else self._charge.throttle_ms(now_ms)


def mutation_pause_ms(context: RequestContext, now_ms: int) -> int:
    """For how long a client pauses for the partitions that its request has created or deleted."""
    charge = context.charge
    return charge.pause_ms(now_ms) if isinstance(charge, _Mutations) else 0


def is_follower(request: FetchRequest) -> bool:
    """Whether a replica fetches, and not a consumer; from version 15 on its id is in `replica_state`."""
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


def _metric_tags(sensors: ClientSensors) -> Tags:
    """With the user's name as Kafka's metrics have it."""
    from urllib.parse import quote

    return tuple(
        (name, quote(value, safe="").replace("~", "%7E") if name == "user" else value) for name, value in sensors.tags
    )
