"""Brokers that may be gone, and how that is found out before their session ends.

A broker is suspected when a connection breaks on which it sent heartbeats; when a new active controller has not heard
of it yet, as its connection may have broken at the controller before; and when another process asks to be registered in
its place: where a machine was reset, no connection breaks. It is then probed: somebody connects to its
listener. If the connection is refused, no process is there, and the broker is fenced at once. Anything else proves
nothing, and what is not proven is left to the session timeout:

- a process that is paused, or whose backlog is full, does not refuse: its kernel accepts, or is silent;
- a broker that connects anew is heard of again, and with that it is no longer suspected;
- a broker that restarted has another epoch. A suspicion is of one epoch, and ends with it.

The first probe may come before a dying process has closed its listener, so there are a few, further and further apart.
Which of its listeners is probed: the one through which brokers reach each other, as that is the one that every node
reaches without a proxy or a port mapping in between; where the controller does not know that one, all must refuse.

A firewall or a NAT may refuse in the place of a broker that lives. Then fencing is still safe, as fencing always is,
but it does harm. The broker proves the refusal wrong with its next heartbeat, and is not probed again by this
controller: what happened once is not repeated.

Pure: time is handed in, and what a probe found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kalda.metadata.cluster import Endpoint

PROBES_MS = (0, 30, 150, 600, 2_000)
"""When a suspect is probed, counted from the beginning of the suspicion."""
MAX_UNDER_WAY = 32
"""Probes at a time. A network that breaks makes suspects of all brokers at once."""


class Probe(NamedTuple):
    """Connect to these addresses, and tell whether all of them refuse."""

    broker_id: int
    broker_epoch: int
    addresses: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Suspicion:
    broker_epoch: int
    since_ms: int
    probes: int = 0
    under_way: bool = False

    @property
    def due_ms(self) -> int:
        return self.since_ms + PROBES_MS[self.probes]


class Suspects:
    """Lives as long as this node is the active controller. At most one suspicion a broker."""

    def __init__(self) -> None:
        self._suspicions: dict[int, _Suspicion] = {}
        self._condemned: dict[int, int] = {}
        """Epochs that were fenced because of a refusal, by broker."""
        self._mistaken: set[int] = set()
        """Brokers that were alive nevertheless."""
        self._under_way = 0

    def suspect(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A later suspicion of the same epoch begins anew: it has seen another connection break."""
        if broker_id in self._mistaken:
            return
        old = self._suspicions.get(broker_id)
        if old is not None and old.broker_epoch > broker_epoch:
            return
        if old is not None and old.under_way:
            self._under_way -= 1
        self._suspicions[broker_id] = _Suspicion(broker_epoch, now_ms)

    def contest(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Another process wants its id, and will ask again: a suspicion that there is goes on."""
        if broker_id not in self._suspicions:
            self.suspect(broker_id, broker_epoch, now_ms)

    def heard_of(self, broker_id: int, broker_epoch: int) -> None:
        """A heartbeat came."""
        if self._suspicions and broker_id in self._suspicions:
            self._drop(broker_id)
        if self._condemned and self._condemned.get(broker_id) == broker_epoch:
            del self._condemned[broker_id]
            self._mistaken.add(broker_id)

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        """The brokers and epochs to probe now, each of which must be answered with `probed`, or be dropped."""
        made = []
        for broker_id, suspicion in self._suspicions.items():
            if self._under_way >= MAX_UNDER_WAY:
                break
            if not suspicion.under_way and suspicion.due_ms <= now_ms:
                suspicion.under_way = True
                self._under_way += 1
                made.append((broker_id, suspicion.broker_epoch))
        return made

    @property
    def deadline_ms(self) -> int | None:
        """When the next probe is due; None while none is, or while there is no room for more."""
        if not self._suspicions or self._under_way >= MAX_UNDER_WAY:
            return None
        return min((each.due_ms for each in self._suspicions.values() if not each.under_way), default=None)

    def probed(self, broker_id: int, broker_epoch: int, refused: bool) -> bool:
        """What a probe found. True where that broker is gone, and is to be fenced if that is its epoch still."""
        suspicion = self._suspicions.get(broker_id)
        if suspicion is None or suspicion.broker_epoch != broker_epoch or not suspicion.under_way:
            return False  # heard of, or suspected anew, since the probe began
        self._under_way -= 1
        suspicion.under_way = False
        suspicion.probes += 1
        if refused:
            del self._suspicions[broker_id]
            self._condemned[broker_id] = broker_epoch
            return True
        if suspicion.probes == len(PROBES_MS):
            del self._suspicions[broker_id]
        return False

    def drop(self, broker_id: int) -> None:
        """There is nothing to find out about it any more."""
        if broker_id in self._suspicions:
            self._drop(broker_id)

    def _drop(self, broker_id: int) -> None:
        if self._suspicions.pop(broker_id).under_way:
            self._under_way -= 1


def addresses(listeners: Mapping[str, Endpoint], preferred: str) -> tuple[tuple[str, int], ...]:
    """Where to probe a broker with these listeners, of which brokers reach each other through `preferred`."""
    one = listeners.get(preferred)
    chosen = listeners.values() if one is None else (one,)
    return tuple((endpoint.host, endpoint.port) for endpoint in chosen)
