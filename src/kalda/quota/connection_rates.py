"""New connections a second: of the node, of a listener, of an address (KIP-612).

A connection over the rate of the node or of its listener waits; one over the rate of its address is refused, and does
not count. A store.
"""

from __future__ import annotations

from kalda.base.stats import MetricConfig, Rate
from kalda.quota.decisions import throttle_ms


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
