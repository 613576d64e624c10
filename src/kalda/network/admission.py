"""Who may connect: counts of the node, of a listener and of an address, and rates of creation.

Pure: the caller gives the time. As Kafka has it, an address over its limit is refused at once, while a full node or
a spent rate makes the newcomer wait (KIP-306, KIP-402, KIP-612). The inter-broker listener is protected: it gets in
by pushing out the least recently active connection of another listener, so that clients cannot starve replication.

Invariant: the node's count is the sum of the listeners', and no listener has more than its own maximum.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kalda.network.limits import UNLIMITED, Limits, NodeLimits


class Verdict(Enum):
    """What becomes of a newcomer."""

    ADMITTED = "admitted"
    WAIT = "wait"
    """For the time that comes with it, or, where that is 0, until somebody leaves."""
    EVICT = "evict"
    """Admitted, but over the node's limit: somebody of an unprotected listener has to go."""


class Decision(NamedTuple):
    """A verdict, and the milliseconds to wait for it."""

    verdict: Verdict
    wait_ms: int = 0


class CreationRate:
    """A token bucket that holds one second's worth of connections, counted in thousandths."""

    __slots__ = ("_at_ms", "_per_second", "_tokens")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._tokens = per_second * 1000
        self._at_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """0 where one more connection may come now; else the milliseconds until it may."""
        if self._per_second >= UNLIMITED:
            return 0
        if self._at_ms is not None:
            gained = (now_ms - self._at_ms) * self._per_second
            self._tokens = min(self._per_second * 1000, self._tokens + gained)
        self._at_ms = now_ms
        if self._tokens >= 1000:
            return 0
        return -((self._tokens - 1000) // self._per_second) if self._per_second else 1000

    def take(self) -> None:
        """One connection came."""
        self._tokens -= 1000


class _Listener:
    __slots__ = ("count", "limits", "protected", "rate")

    def __init__(self, limits: Limits, protected: bool) -> None:
        self.limits = limits
        self.protected = protected
        self.count = 0
        self.rate = CreationRate(limits.max_creation_rate)


class Admission:
    """Counts and decides; holds no connection itself."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._rate = CreationRate(limits.max_creation_rate)
        self._listeners: dict[str, _Listener] = {}
        self._by_address: dict[str, int] = {}
        self.count = 0

    def add_listener(self, name: str, limits: Limits, protected: bool) -> None:
        """Make a listener known. `protected`: the inter-broker listener."""
        self._listeners[name] = _Listener(limits, protected)

    def update(self, limits: NodeLimits) -> None:
        """New limits from dynamic configuration; whoever is in stays in."""
        if limits.max_creation_rate != self._limits.max_creation_rate:
            self._rate = CreationRate(limits.max_creation_rate)
        self._limits = limits

    def update_listener(self, name: str, limits: Limits) -> None:
        """New limits of one listener."""
        listener = self._listeners[name]
        if limits.max_creation_rate != listener.limits.max_creation_rate:
            listener.rate = CreationRate(limits.max_creation_rate)
        listener.limits = limits

    def is_protected(self, listener: str) -> bool:
        """True of the inter-broker listener."""
        return self._listeners[listener].protected

    def arrive(self, address: str) -> int | None:
        """Count a connection of `address`. Returns the limit that it would break, and then does not count it."""
        count = self._by_address.get(address, 0)
        overrides = self._limits.max_connections_per_ip_overrides
        limit = overrides.get(address, self._limits.max_connections_per_ip)
        if count >= limit:
            return limit
        self._by_address[address] = count + 1
        return None

    def leave(self, address: str) -> None:
        """The counterpart of `arrive`."""
        count = self._by_address[address] - 1
        if count:
            self._by_address[address] = count
        else:
            del self._by_address[address]

    def admit(self, listener: str, now_ms: int) -> Decision:
        """May one more connection be served on this listener?"""
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
        """The counterpart of an admitting `admit`."""
        self._listeners[listener].count -= 1
        self.count -= 1
        assert self._listeners[listener].count >= 0, "more connections left than came"
