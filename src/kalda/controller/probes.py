"""Probes of brokers that may be dead, so that this is found out before their sessions end.

A broker is probed in three cases. A connection broke on which it sent heartbeats. Or a new active controller has
received no heartbeat of it yet: its connection to the previous controller may have broken. Or another process asks to
be registered under its id: no connection breaks where a machine was reset. In a probe the shell connects to the
broker's listener. If the connection is refused, no process listens there, and the broker is fenced at once. Any other
outcome proves nothing, and the session timeout decides:

- A process that is paused, or whose backlog is full, does not refuse: its kernel accepts, or does not answer.
- A heartbeat of the broker ends its probes.
- A broker that restarted has another epoch. Probes are of one epoch, and end with it.

A dying process may still have its listener at the first probe, so there are several, at growing intervals. The probed
listener is the one that brokers use among themselves: all nodes can reach it without a proxy or a port mapping. Where
the controller does not have that listener's name, all listeners must refuse.

A firewall or a NAT may refuse connections to a broker that is alive. Fencing it is safe, as fencing always is, but it
interrupts service. The next heartbeat of the broker shows that the refusal was wrong; this controller then never
probes it again.

Pure: the time and the outcomes of probes are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kalda.metadata.cluster import Endpoint

PROBES_MS = (0, 30, 150, 600, 2_000)
"""When a broker is probed, counted from when something made it likely to be dead."""
MAX_UNDER_WAY = 32
"""Probes at a time. When a network fails, all brokers are probed at once."""


class Probe(NamedTuple):
    """A request to the shell: connect to these addresses, and report whether all of them refuse."""

    broker_id: int
    broker_epoch: int
    addresses: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Series:
    """The probes of one broker."""

    broker_epoch: int
    since_ms: int
    probes: int = 0
    """whose outcome is known"""
    under_way: bool = False
    """whether a probe is under way now"""

    @property
    def due_ms(self) -> int:
        return self.since_ms + PROBES_MS[self.probes]


class Probes:
    """Exists while this node is the active controller. At most one series for each broker."""

    def __init__(self) -> None:
        self._series: dict[int, _Series] = {}
        """by broker id"""
        self._refused: dict[int, int] = {}
        """by broker id, the epoch that was fenced because connections were refused"""
        self._never_probed: set[int] = set()
        """ids of brokers that were alive although their connections were refused"""
        self._under_way = 0
        """the number of probes under way"""

    def begin(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A new series. One of the same epoch starts anew, because another connection broke."""
        if broker_id in self._never_probed:
            return
        old = self._series.get(broker_id)
        if old is not None and old.broker_epoch > broker_epoch:
            return
        if old is not None and old.under_way:
            self._under_way -= 1
        self._series[broker_id] = _Series(broker_epoch, now_ms)

    def on_duplicate_registration(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Another process asked to be registered under the id. It asks repeatedly, so an existing series is kept."""
        if broker_id not in self._series:
            self.begin(broker_id, broker_epoch, now_ms)

    def on_heartbeat(self, broker_id: int, broker_epoch: int) -> None:
        """The broker is alive: it sent a heartbeat."""
        if self._series and broker_id in self._series:
            self.end(broker_id)
        if self._refused and self._refused.get(broker_id) == broker_epoch:
            del self._refused[broker_id]
            self._never_probed.add(broker_id)

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        """The brokers and epochs to probe now. For each the caller must call `on_probed` or `end`."""
        due = []
        for broker_id, series in self._series.items():
            if self._under_way >= MAX_UNDER_WAY:
                break
            if not series.under_way and series.due_ms <= now_ms:
                series.under_way = True
                self._under_way += 1
                due.append((broker_id, series.broker_epoch))
        return due

    @property
    def deadline_ms(self) -> int | None:
        """When the next probe is due; None while there is none, or while `MAX_UNDER_WAY` probes are under way."""
        if not self._series or self._under_way >= MAX_UNDER_WAY:
            return None
        return min((each.due_ms for each in self._series.values() if not each.under_way), default=None)

    def on_probed(self, broker_id: int, broker_epoch: int, refused: bool) -> bool:
        """The outcome of a probe. True where the broker is dead, and is to be fenced if it still has this epoch; then
        `on_fenced` is called. The last probe ends the series."""
        series = self._series.get(broker_id)
        if series is None or series.broker_epoch != broker_epoch or not series.under_way:
            return False  # since the probe began the broker sent a heartbeat, or a new series began
        self._under_way -= 1
        series.under_way = False
        series.probes += 1
        if series.probes == len(PROBES_MS):
            del self._series[broker_id]
        return refused

    def on_fenced(self, broker_id: int, broker_epoch: int) -> None:
        """The broker was fenced because connections were refused: it is not probed any more. Where it could not be
        fenced, `on_fenced` is not called, and the next probe tries again."""
        self._series.pop(broker_id, None)
        self._refused[broker_id] = broker_epoch

    def end(self, broker_id: int) -> None:
        """End the series of the broker, if there is one."""
        series = self._series.pop(broker_id, None)
        if series is not None and series.under_way:
            self._under_way -= 1


def addresses(listeners: Mapping[str, Endpoint], preferred: str) -> tuple[tuple[str, int], ...]:
    """The addresses to probe of a broker with these listeners: that of `preferred`, the listener that brokers use among
    themselves; without it, all of them."""
    listener = listeners.get(preferred)
    chosen = listeners.values() if listener is None else (listener,)
    return tuple((endpoint.host, endpoint.port) for endpoint in chosen)
