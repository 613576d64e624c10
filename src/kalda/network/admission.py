"""Which connections are accepted: limits on counts of the node, a listener and an address, and on creation rates.

Pure: the caller passes the time. As in Kafka, a connection from an address over its limit is refused at once; where
the node or the listener is full, or a rate is used up, a new connection waits (KIP-306, KIP-402, KIP-612). The
inter-broker listener is protected: when the node is full, its new connection is admitted and the least recently active
connection of another listener is closed, so that clients cannot block replication.

Invariant: the node's count is the sum of the listeners', and no listener has more than its own maximum.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kalda.network.limits import UNLIMITED, Limits, NodeLimits


class Verdict(Enum):
    """The decision about a new connection."""

    ADMITTED = "admitted"
    WAIT = "wait"
    """For `wait_ms`, or where that is 0 until another connection ends."""
    EVICT = "evict"
    """Admitted over the node's limit: a connection of an unprotected listener has to be closed."""


class Decision(NamedTuple):
    """A verdict, and with `WAIT` the time after which to decide again."""

    verdict: Verdict
    wait_ms: int = 0


class CreationRate:
    """A token bucket that holds the connections of one second."""

    __slots__ = ("_per_second", "_refilled_ms", "_tokens")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._tokens = per_second * 1000
        """In thousandths of a connection."""
        self._refilled_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """0 where one more connection may be made now; else the milliseconds until it may."""
        if self._per_second >= UNLIMITED:
            return 0
        if self._refilled_ms is not None:
            gained = (now_ms - self._refilled_ms) * self._per_second
            self._tokens = min(self._per_second * 1000, self._tokens + gained)
        self._refilled_ms = now_ms
        if self._tokens >= 1000:
            return 0
        return -((self._tokens - 1000) // self._per_second) if self._per_second else 1000

    def take(self) -> None:
        """Count one connection against the rate."""
        self._tokens -= 1000


class _Listener:
    __slots__ = ("count", "limits", "protected", "rate")

    def __init__(self, limits: Limits, protected: bool) -> None:
        self.limits = limits
        self.protected = protected
        self.count = 0
        self.rate = CreationRate(limits.max_creation_rate)


class Admission:
    """Counts connections and decides about new ones; it holds no connection."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._rate = CreationRate(limits.max_creation_rate)
        self._listeners: dict[str, _Listener] = {}
        self._by_address: dict[str, int] = {}
        """Connections by peer address, those that wait for admission included."""
        self.count = 0
        """Admitted connections."""

    def add_listener(self, name: str, limits: Limits, protected: bool) -> None:
        """Start to count a listener's connections. `protected`: the inter-broker listener."""
        self._listeners[name] = _Listener(limits, protected)

    def update(self, limits: NodeLimits) -> None:
        """Apply new limits from dynamic configuration. Connections that are admitted stay open."""
        if limits.max_creation_rate != self._limits.max_creation_rate:
            self._rate = CreationRate(limits.max_creation_rate)
        self._limits = limits

    def update_listener(self, name: str, limits: Limits) -> None:
        """Apply new limits of one listener."""
        listener = self._listeners[name]
        if limits.max_creation_rate != listener.limits.max_creation_rate:
            listener.rate = CreationRate(limits.max_creation_rate)
        listener.limits = limits

    def is_protected(self, listener: str) -> bool:
        """True for the inter-broker listener."""
        return self._listeners[listener].protected

    def arrive(self, address: str) -> int | None:
        """Count a connection of `address`, and return None; or, where it would exceed the address's limit, do not
        count it and return this limit."""
        count = self._by_address.get(address, 0)
        overrides = self._limits.max_connections_per_ip_overrides
        limit = overrides.get(address, self._limits.max_connections_per_ip)
        if count >= limit:
            return limit
        self._by_address[address] = count + 1
        return None

    def leave(self, address: str) -> None:
        """Undo `arrive` when the connection has ended."""
        count = self._by_address[address] - 1
        if count:
            self._by_address[address] = count
        else:
            del self._by_address[address]

    def admit(self, listener: str, now_ms: int) -> Decision:
        """Decide whether one more connection is served on this listener; count it unless it has to wait."""
        at = self._listeners[listener]
        wait_ms = at.rate.wait_ms(now_ms)
        if not at.protected:
            wait_ms = max(wait_ms, self._rate.wait_ms(now_ms))
        if wait_ms:
            return Decision(Verdict.WAIT, wait_ms)
        if at.count >= at.limits.max_connections:
            return Decision(Verdict.WAIT)
        full = self.count >= self._limits.max_connections
        if full and (not at.protected or at.count >= self.count):
            return Decision(Verdict.WAIT)
        at.rate.take()
        if not at.protected:
            self._rate.take()
        at.count += 1
        self.count += 1
        return Decision(Verdict.EVICT if full else Verdict.ADMITTED)

    def release(self, listener: str) -> None:
        """Undo an `admit` that did not return `WAIT`."""
        self._listeners[listener].count -= 1
        self.count -= 1
        assert self._listeners[listener].count >= 0, "more connections were released than admitted"
