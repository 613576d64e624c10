"""The throttle of one request pipeline: which quotas a request counts against, by how much, and what the pause is.

A Produce counts by the size of its frame, a Fetch by that of its response, every request by the time for which it holds
the event loop; the longest pause counts. As in Kafka:

- a Produce with acks=0 is charged by its size only, and its connection is muted without an answer;
- a consumer's Fetch may return at most what its quota allows in all windows but one: a larger response would be
  throttled for sure, again and again. A Fetch that is throttled is answered without records, so its size is taken back;
- a follower's Fetch and requests between nodes are exempt: their time is measured, but counts for no quota;
- a request out of an envelope is charged for the partitions that it changes, by the controller. Its time counts at the
  broker that holds the connection.

Each client whose request is throttled is logged once a second at most, and no more than `_LINES_A_SECOND` of them:
clients make up their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from kalda.base.durations import Durations, quantile_sensors
from kalda.base.sensors import Measurable, SensorName, Tags
from kalda.broker.requests.charging_at_once import is_exempt, is_follower, limit_fetch
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import QuotaClass
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.caller import Caller
from kalda.protocol.messages.fetch import FetchRequest, FetchResponse
from kalda.protocol.notation import Request, Response
from kalda.quota.client_quotas import NANOS_TO_PERCENT, ClientQuotas, ClientSensors
from kalda.quota.decisions import Decision
from kalda.quota.entities import printable
from kalda.quota.explaining import in_words
from kalda.quota.managers import QuotaManagers
from kalda.quota.mutations import MutationCharge, MutationSensors

log = logging.getLogger("kalda.quotas")

STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""From these versions on clients expect THROTTLING_QUOTA_EXCEEDED."""
_RESPONSE_OVERHEAD = {False: 0, True: 1}
"""A response is counted with four bytes before its body; in flexible versions its header has five."""
_FIRST_FLEXIBLE_FETCH = 12
_LOG_INTERVAL_MS = 1_000
_LINES_A_SECOND = 100
EXEMPT_NAME: Final = SensorName("kafka.server:type=Request", "exempt-request-time")


class ClientThrottle:
    """Charges the requests of one kind of listener."""

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

    @property
    def measures_time(self) -> bool:
        """Whether the time of requests is a quota of any client."""
        return self.managers.request.is_enabled

    def applies_to(self, quota: QuotaClass) -> bool:
        """Whether requests of this class are charged now."""
        managers = self.managers
        own: dict[QuotaClass, ClientQuotas] = {
            QuotaClass.PRODUCE: managers.produce,
            QuotaClass.FETCH: managers.fetch,
            QuotaClass.CONTROLLER_MUTATION: managers.mutations,
        }
        return managers.request.is_enabled or (quota in own and own[quota].is_enabled)

    def limit_fetch(self, context: RequestContext, request: Request) -> None:
        """Reduce the bytes of a Fetch to what its client may get without a pause."""
        fetch = self.managers.fetch
        if not fetch.is_enabled or not isinstance(request, FetchRequest) or is_follower(request):
            return
        limit_fetch(request, fetch.max_value(context.principal, context.client_id, self.now_ms()))

    def charge(
        self,
        context: RequestContext,
        quota: QuotaClass,
        request: Request,
        response: Response | Encoded | None,
        size_bytes: int,
        busy_ns: int,
    ) -> int:
        """Account for a request whose answer is known, and return the pause of its client."""
        managers, now_ms = self.managers, self.now_ms()
        if context.forwarded_by is not None:
            return self._mutation_pause(context, now_ms)
        if quota is QuotaClass.EXEMPT or (quota is QuotaClass.FETCH and is_follower(cast(FetchRequest, request))):
            if managers.request.is_enabled:
                managers.request.exempt.record(busy_ns * NANOS_TO_PERCENT, now_ms)
            return 0
        principal, client_id = context.principal, context.client_id
        pause_ms = own_ms = 0
        own: ClientQuotas = managers.request
        if managers.request.is_enabled:
            pause_ms = self._charge_time(context, request, busy_ns, now_ms)
        if quota is QuotaClass.PRODUCE:
            own = managers.produce
            if own.is_enabled:
                own_ms = own.record(principal, client_id, len(context.frame), now_ms)
        elif quota is QuotaClass.FETCH:
            own = managers.fetch
            if own.is_enabled:
                size = _fetched_size(context, response, size_bytes)
                own_ms = own.record(principal, client_id, size, now_ms)
                if size_bytes and (own_ms or pause_ms):
                    own.record_unthrottled(principal, client_id, -size, now_ms)
        elif quota is QuotaClass.CONTROLLER_MUTATION:
            own = managers.mutations
            own_ms = self._mutation_pause(context, now_ms)
        if not own_ms and not pause_ms:
            return 0
        if own_ms <= pause_ms:
            own, own_ms = managers.request, pause_ms
        own.note_throttle(principal, client_id, own_ms, now_ms)
        return own_ms

    def quota_of_bytes(self, quota: QuotaClass) -> ClientQuotas | None:
        """The quota of bytes that requests of this class count against, where it is the only one."""
        if self.measures_time or not self.applies_to(quota):
            return None
        return {QuotaClass.PRODUCE: self.managers.produce, QuotaClass.FETCH: self.managers.fetch}.get(quota)

    def quota_of_time(self, quota: QuotaClass) -> ClientQuotas | None:
        """The quota of time, where it is the only one that requests of this class count against."""
        managers = self.managers
        bytes_limited = {
            QuotaClass.REQUEST: False,
            QuotaClass.PRODUCE: managers.produce.is_enabled,
            QuotaClass.FETCH: managers.fetch.is_enabled,
        }
        return managers.request if self.measures_time and not bytes_limited.get(quota, True) else None

    def _charge_time(self, context: RequestContext, request: Request, busy_ns: int, now_ms: int) -> int:
        """Account for the time of a request. With acks=0 it counts for no quota: no answer could carry the pause."""
        quotas, time = self.managers.request, busy_ns * NANOS_TO_PERCENT
        if is_exempt(request):
            quotas.exempt.record(time, now_ms)
            return 0
        return quotas.record(context.principal, context.client_id, time, now_ms)

    def mutations_of(self, context: RequestContext) -> Callable[[Caller, int], None]:
        """What accounts for partitions that a request creates or deletes."""
        return _Mutations(self.managers, context, self.now_ms)

    def _mutation_pause(self, context: RequestContext, now_ms: int) -> int:
        charge = context.charge
        return charge.pause_ms(now_ms) if isinstance(charge, _Mutations) else 0

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


def _fetched_size(context: RequestContext, response: Response | Encoded | None, size_bytes: int) -> int:
    """The size of a Fetch's response as Kafka counts it. Of one that is encoded in steps, its records alone."""
    if size_bytes:
        return size_bytes - _RESPONSE_OVERHEAD[context.api_version >= _FIRST_FLEXIBLE_FETCH]
    if isinstance(response, Encoded) and isinstance(response.buffers, list):
        return sum(map(len, response.buffers))
    if not isinstance(response, FetchResponse):
        return 0
    return sum(_length(each.records) for topic in response.responses for each in topic.partitions)


def _length(records: Any) -> int:
    if isinstance(records, list):
        return sum(map(len, records))
    return len(records) if records else 0


def _metric_tags(sensors: ClientSensors) -> Tags:
    """With the user's name as Kafka's metrics have it."""
    from urllib.parse import quote

    return tuple(
        (name, quote(value, safe="").replace("~", "%7E") if name == "user" else value) for name, value in sensors.tags
    )
