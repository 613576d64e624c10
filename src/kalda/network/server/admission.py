"""Which connections of one role's listeners are accepted: limits on counts and on rates of creation.

Pure: the caller passes the time. The listeners of brokers are counted apart from those of controllers, as each role of
a Kafka node has a socket server of its own. A new connection meets three conditions in Kafka's order:

1. a slot: where the role or the listener is full, or its rate is used up, the connection waits (KIP-306, KIP-402), and
   the ones behind it on its listener wait too, as those behind Kafka's blocked acceptor;
2. the rate of its address (KIP-612): it is refused where that is used up, and counts for no rate;
3. the count of its address: it is refused where that has its maximum.

The inter-broker listener is protected where its role has other listeners: the limits of the role do not hold for it.
When the role is full, the least recently active connection of another listener is closed for its new one, so that
clients cannot block replication. A listener that is the only one of its role has the role's limits.

Invariant: the role's count is the sum of the listeners' and of the addresses', and no listener has more than its own
maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from ipaddress import ip_address
from typing import NamedTuple

from kalda.base.sensors import Measurable, SensorName
from kalda.base.stats import Avg, MetricConfig, Rate
from kalda.network.server.limits import UNLIMITED, Limits, NodeLimits
from kalda.quota.client_quotas import SENSOR_LIFETIME_MS
from kalda.quota.entities import throttle_ms

# New connections a second: of the node, of a listener, of an address (KIP-612).
#
# A connection over the rate of the node or of its listener waits; one over the rate of its address is refused, and does
# not count. A store.


class ConnectionRate:
    """One of these rates."""

    __slots__ = ("_max_ms", "bound", "last_ms", "rate")

    def __init__(self, bound: float, config: MetricConfig) -> None:
        self.bound = bound
        """May be replaced; what was recorded stays."""
        self.rate = Rate(config)
        self._max_ms = config.window_ms
        self.last_ms = 0
        """The time of the last record."""

    def record(self, now_ms: int) -> int:
        """Count a connection. Returns for how many milliseconds it has to wait: a window at most."""
        self.last_ms = now_ms
        self.rate.record(1.0, now_ms)
        if self.rate.is_within(self.bound, now_ms):
            return 0
        return min(self._max_ms, throttle_ms(self.rate, self.bound, now_ms)[2])

    def unrecord(self, now_ms: int) -> None:
        """Undo the record of a connection that was refused."""
        self.rate.record(-1.0, now_ms)


_GROUP = "kafka.server:type=socket-server-metrics"
_MAX_ADDRESSES = 100_000
"""Addresses whose rates are kept."""


class Verdict(Enum):
    """The decision about a new connection."""

    ADMITTED = "admitted"
    WAIT = "wait"
    """For `wait_ms`, or where that is 0 until another connection ends."""
    OVER_ADDRESS_RATE = "over the rate of its address"
    """Refused; `wait_ms` is the time for which its end may be put off."""
    OVER_ADDRESS_COUNT = "over the maximum of its address"
    """Refused; `maximum` is that of its address."""
    EVICT = "evict"
    """Admitted over the role's limit: a connection of an unprotected listener has to be closed."""


class Decision(NamedTuple):
    """A verdict, and with `WAIT` the time after which to decide again."""

    verdict: Verdict
    wait_ms: int = 0
    maximum: int = UNLIMITED


class _Listener:
    __slots__ = ("count", "ip_throttle_time", "is_inter_broker", "limits", "passes_at_ms", "rate", "throttle_time")

    def __init__(self, limits: Limits, is_inter_broker: bool, config: MetricConfig) -> None:
        self.limits = limits
        self.is_inter_broker = is_inter_broker
        self.count = 0
        self.rate = ConnectionRate(limits.max_creation_rate, config)
        self.passes_at_ms: int | None = None
        """When the rates admit the connection that comes next: it is recorded already. None: none is."""
        self.throttle_time = Avg()
        """Of connections that waited for a rate of the role or of the listener."""
        self.ip_throttle_time = Avg()
        """Of connections that were refused by the rate of their address."""


class Admission:
    """Counts connections and decides about new ones; it holds no connection."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._rate = ConnectionRate(limits.max_creation_rate, limits.rate_config)
        self._listeners: dict[str, _Listener] = {}
        self._by_address: dict[str, int] = {}
        """Admitted connections by peer address."""
        self.count = 0
        """Admitted connections."""
        self._default_ip_rate: float = UNLIMITED
        self._ip_limits: dict[str, float] = {}
        """The rate of creation of each address that has one of its own."""
        self._ip_rates: dict[str, ConnectionRate] = {}
        """What each address has used, where it has a limit; in order of their last use."""

    def add_listener(self, name: str, limits: Limits, *, is_inter_broker: bool = False) -> None:
        """Start to count a listener's connections."""
        self._listeners[name] = _Listener(limits, is_inter_broker, self._limits.rate_config)

    def update(self, limits: NodeLimits) -> int:
        """Apply new limits from dynamic configuration; what was recorded of rates stays. Returns how many connections
        exceed the new maximum."""
        self._rate.bound = limits.max_creation_rate
        self._limits = limits
        return max(0, self.count - limits.max_connections)

    def update_listener(self, name: str, limits: Limits) -> None:
        """Apply new limits of one listener."""
        listener = self._listeners[name]
        listener.rate.bound = limits.max_creation_rate
        listener.limits = limits

    def set_ip_rate(self, address: str | None, rate: float | None) -> None:
        """`connection_creation_rate` of an address, None for the default of all; a rate None removes it. Raises
        `ValueError` for a name that is no address."""
        if address is None:
            self._default_ip_rate = UNLIMITED if rate is None else rate
        else:
            address = "127.0.0.1" if address == "localhost" else str(ip_address(address))
            if rate is None:
                self._ip_limits.pop(address, None)
            else:
                self._ip_limits[address] = rate
        for known, used in self._ip_rates.items():
            used.bound = self._ip_limits.get(known, self._default_ip_rate)

    def is_protected(self, listener: str) -> bool:
        """Whether it is the inter-broker listener, and clients have others."""
        return self._listeners[listener].is_inter_broker and len(self._listeners) > 1

    def admit(self, listener: str, address: str, now_ms: int) -> Decision:
        """Decide whether the connection of this listener that comes next is served; count it if so.

        It is recorded in the rates when it comes first. Where it has to wait, the next calls for this listener decide
        about the same connection, or about the one behind it if it has ended.
        """
        at = self._listeners[listener]
        is_protected = self.is_protected(listener)
        if at.passes_at_ms is None:
            wait_ms = at.rate.record(now_ms)
            if not is_protected:
                wait_ms = max(wait_ms, self._rate.record(now_ms))
            if wait_ms:
                at.throttle_time.record(wait_ms, now_ms)
            at.passes_at_ms = now_ms + wait_ms
        if now_ms < at.passes_at_ms:
            return Decision(Verdict.WAIT, at.passes_at_ms - now_ms)
        is_full = self.count >= self._limits.max_connections
        if at.count >= at.limits.max_connections or (is_full and not is_protected):
            return Decision(Verdict.WAIT)
        at.passes_at_ms = None
        refused_ms = self._record_ip(listener, address, now_ms)
        if refused_ms:
            return Decision(Verdict.OVER_ADDRESS_RATE, refused_ms)
        of_address = self._by_address.get(address, 0)
        overrides = self._limits.max_connections_per_ip_overrides
        maximum = overrides.get(address, self._limits.max_connections_per_ip)
        if of_address >= maximum:
            return Decision(Verdict.OVER_ADDRESS_COUNT, maximum=maximum)
        self._by_address[address] = of_address + 1
        at.count += 1
        self.count += 1
        return Decision(Verdict.EVICT if is_full else Verdict.ADMITTED)

    def _record_ip(self, listener: str, address: str, now_ms: int) -> int:
        """Record a connection of an address. Returns for how long it should have waited, where the address has used up
        its rate: the connection is not served, and so not counted in any rate."""
        limit = self._ip_limits.get(address, self._default_ip_rate)
        if limit >= UNLIMITED:
            return 0
        rate = self._ip_rates.pop(address, None)
        if rate is None:
            self._drop_ip_rates(now_ms)
            rate = ConnectionRate(limit, self._limits.rate_config)
        self._ip_rates[address] = rate
        wait_ms = rate.record(now_ms)
        if wait_ms:
            at = self._listeners[listener]
            rate.unrecord(now_ms)
            at.rate.unrecord(now_ms)
            if not self.is_protected(listener):
                self._rate.unrecord(now_ms)
            at.ip_throttle_time.record(wait_ms, now_ms)
        return wait_ms

    def _drop_ip_rates(self, now_ms: int) -> None:
        """Forget addresses that made no connection for an hour, and the longest unused where there are too many."""
        while self._ip_rates:
            oldest = next(iter(self._ip_rates))
            is_idle = now_ms - self._ip_rates[oldest].last_ms > SENSOR_LIFETIME_MS
            if not is_idle and len(self._ip_rates) < _MAX_ADDRESSES:
                return
            del self._ip_rates[oldest]

    def measured(self) -> Iterator[tuple[SensorName, Measurable]]:
        """The rates and throttle times under Kafka's names, a source for `Sensors.add_source`."""
        yield SensorName(_GROUP, "broker-connection-accept-rate"), self._rate.rate
        for name, at in self._listeners.items():
            tags = (("listener", name),)
            yield SensorName(_GROUP, "connection-accept-rate", tags), at.rate.rate
            yield SensorName(_GROUP, "connection-accept-throttle-time", tags), at.throttle_time
            yield SensorName(_GROUP, "ip-connection-accept-throttle-time", tags), at.ip_throttle_time
        for address, rate in list(self._ip_rates.items()):
            yield SensorName(_GROUP, "connection-accept-rate", (("ip", address),)), rate.rate

    def release(self, listener: str, address: str) -> None:
        """Undo an `admit` that returned `ADMITTED` or `EVICT`: the connection has ended."""
        self._listeners[listener].count -= 1
        self.count -= 1
        assert self._listeners[listener].count >= 0, "more connections were released than admitted"
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
