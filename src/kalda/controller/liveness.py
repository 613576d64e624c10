"""Which brokers are alive, as the active controller decides it, and what happens to the others.

A broker is alive while its session lasts, which each heartbeat starts anew (`BrokerHeartbeats`). It is fenced when its
session has ended, or earlier where its process is found to be dead (`Probes`). All of this is soft state: it is
made anew when a controller becomes active, and is not in the log.

Invariants:

- A session ends when the records that fence its broker are written, not before. So where the log refuses them, the next
  run of the task tries again.
- A broker that cannot be fenced, for a fault of this program that concerns it alone, keeps no other one from being
  fenced; likewise where brokers stop, and in unclean elections.
- No broker is fenced for a stall of this controller, as long as the caller's time does not count it
  (`kalda.base.scheduling`).
- A probe never leads to an unclean election before the session would have ended by time (`UncleanHolds`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kalda.controller.broker_changes import BrokerChangeControl
from kalda.controller.cluster import ClusterControl
from kalda.controller.elections import ElectionControl
from kalda.metadata.cluster import Endpoint
from kalda.protocol.record_framing import VersionedRecord

# Probes of brokers that may be dead, so that this is found out before their sessions end.
#
# A broker is probed in three cases. A connection broke on which it sent heartbeats. Or a new active controller has
# received no heartbeat of it yet: its connection to the previous controller may have broken. Or another process asks
# to be registered under its id: no connection breaks where a machine was reset. In a probe the shell connects to the
# broker's listener. If the connection is refused, no process listens there, and the broker is fenced at once. Any
# other outcome proves nothing, and the session timeout decides:
#
# - A process that is paused, or whose backlog is full, does not refuse: its kernel accepts, or does not answer.
# - A heartbeat of the broker ends its probes.
# - A broker that restarted has another epoch. Probes are of one epoch, and end with it.
#
# A dying process may still have its listener at the first probe, so there are several, at growing intervals. The
# probed listener is the one that brokers use among themselves: all nodes can reach it without a proxy or a port
# mapping. Where the controller does not have that listener's name, all listeners must refuse.
#
# A firewall or a NAT may refuse connections to a broker that is alive. Fencing it is safe, as fencing always is, but
# it interrupts service. The next heartbeat of the broker shows that the refusal was wrong; this controller then never
# probes it again.
#
# Pure: the time and the outcomes of probes are arguments.

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


log = logging.getLogger(__name__)

FENCE_STALE, CONTINUE_SHUTDOWN = "maybeFenceStaleBroker", "continueControlledShutdown"
_SAMPLES_PER_SESSION = 8

Write = Callable[[str, Callable[[], list[VersionedRecord]]], bool]
"""Writes the records of an event, given its name. Whether they were written; no records count as written."""


class BrokerLiveness:
    """Sessions, probes and holds of the active controller."""

    def __init__(
        self,
        cluster: ClusterControl,
        broker_changes: BrokerChangeControl,
        elections: ElectionControl,
        write: Write,
        next_write_offset: Callable[[], int | None],
        *,
        session_timeout_ms: int,
        inter_broker_listener_name: str,
        probes_brokers: bool,
    ) -> None:
        self._cluster = cluster
        self._broker_changes = broker_changes
        self._elections = elections
        self._write = write
        self._next_write_offset = next_write_offset
        self._session_timeout_ms = session_timeout_ms
        self._inter_broker_listener_name = inter_broker_listener_name
        self._probes_brokers = probes_brokers
        self._departures = broker_changes.departures
        self._dead: dict[int, int] = {}
        """By id, the epochs of dead brokers that `fence_next` fences as they have many partitions."""
        self._in_vain: set[tuple[int, int]] = set()
        """Ids and epochs of brokers that `fence_next` has failed to fence since it tried all of them."""
        self._probes: Probes | None = None
        """None while this controller is not active, and where it probes no brokers."""
        self.sample_ms = max(1, session_timeout_ms // _SAMPLES_PER_SESSION)
        """How often sessions are checked."""

    def activate(self, now_ms: int) -> None:
        """This controller has become active. It has received no heartbeat yet: each unfenced broker gets a full
        session, and is probed. A fenced one may have been fenced by a probe of the previous controller, so it is
        held."""
        self._cluster.activate(self._session_timeout_ms, now_ms)
        if not self._probes_brokers:
            return
        self._probes = Probes()
        for broker_id, broker in self._cluster.brokers.items():
            if broker.fenced:
                self._cluster.unclean_holds.hold(broker_id, now_ms + self._session_timeout_ms)
            else:
                self._probes.begin(broker_id, broker.epoch, now_ms)

    def deactivate(self) -> None:
        self._probes = None
        self._dead.clear()
        self._in_vain.clear()
        self._departures.clear()
        self._cluster.deactivate()

    def on_heartbeat(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A heartbeat was received."""
        self._cluster.heartbeats.contact(broker_id, broker_epoch, now_ms)
        self._dead.pop(broker_id, None)
        self._departures.end_fencing(broker_id)
        if self._probes is not None:
            self._probes.on_heartbeat(broker_id, broker_epoch)

    # Sessions that have ended

    def fence_next(self, now_ms: int) -> bool:
        """Fence the broker whose session has ended first, or a dead one; one of many partitions in several runs. One
        with which that has failed comes after the others. Whether there was one, and so may be more to do: that is the
        task of the next run, after the requests that have arrived meanwhile."""
        heartbeats = self._cluster.heartbeats
        stale = [*self._dead.items(), *heartbeats.expired(now_ms)]
        if not stale:
            self._in_vain.clear()
            return False
        broker = next((each for each in stale if each not in self._in_vain), None)
        if broker is None:
            self._in_vain.clear()
            broker = stale[0]
        self._in_vain.add(broker)  # before what may raise
        broker_id, epoch = broker
        is_dead = self._dead.get(broker_id) == epoch
        if is_dead:
            is_written = self._fence_some("fenceDeadBroker", self._broker_changes.fence_dead, broker_id, epoch)
        else:
            is_written = self._fence_some(FENCE_STALE, self._broker_changes.fence_stale, broker_id, epoch)
        if not is_written:
            return False
        self._in_vain.discard(broker)
        self._cluster.timed_out_sessions += not is_dead and not heartbeats.has_session(broker_id, epoch)
        return True

    def _fence_some(
        self, event: str, fence: Callable[[int, int], list[VersionedRecord]], broker_id: int, epoch: int
    ) -> bool:
        """The next event by which the broker is fenced. Whether its records were written."""
        departures = self._departures
        registration = self._cluster.brokers.get(broker_id)
        is_present = registration is not None and registration.epoch == epoch and not registration.fenced
        if is_present and departures.begin_fencing(broker_id, epoch):
            if not self._write(event, lambda: departures.records(broker_id)):
                return False
            departures.advance(broker_id)
            return True
        if not self._write(event, lambda: fence(broker_id, epoch)):
            return False
        self._cluster.heartbeats.end_session(broker_id, epoch)
        self._dead.pop(broker_id, None)
        departures.end_fencing(broker_id)
        return True

    def continue_shutdown(self, _now_ms: int) -> bool:
        """Take a broker that stops out of some more ISRs. Whether there may be more to do."""
        departures = self._departures
        broker_id = departures.next_stopping()
        if broker_id is None:
            return False
        if not self._write(CONTINUE_SHUTDOWN, lambda: departures.records(broker_id)):
            departures.put_last(broker_id)
            return False
        departures.advance(broker_id)
        next_write = self._next_write_offset()
        if next_write is not None:
            self._cluster.heartbeats.raise_shutdown_offset(broker_id, next_write - 1)
        return True

    @property
    def is_fencing_dead(self) -> bool:
        """Whether `fence_next` has a dead broker to fence, whose session has not ended."""
        return bool(self._dead)

    def elect_after_hold(self, now_ms: int) -> bool:
        """Hold the unclean elections for which a hold has ended. Whether there may be more."""
        holds = self._cluster.unclean_holds
        broker_id = holds.first_ended(now_ms)
        if broker_id is None:
            return False
        is_complete = False

        def elect() -> list[VersionedRecord]:
            nonlocal is_complete
            elections, more = self._elections.elect_unclean(broker_id)
            is_complete = not more
            return elections

        if not self._write("electUncleanAfterSession", elect):
            holds.put_last(broker_id)
            return False
        if is_complete:
            holds.remove(broker_id)
        return True

    # Brokers that may be dead

    def on_disconnected(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A connection broke on which the broker had sent heartbeats in this epoch."""
        broker = self._cluster.brokers.get(broker_id)
        if self._probes is not None and broker is not None and broker.epoch == broker_epoch:
            self._probes.begin(broker_id, broker_epoch, now_ms)

    def on_duplicate_registration(self, broker_id: int, now_ms: int) -> None:
        """A registration of another process under the id of a registered broker was refused."""
        if self._probes is not None:
            self._probes.on_duplicate_registration(broker_id, self._cluster.brokers[broker_id].epoch, now_ms)

    @property
    def probe_deadline_ms(self) -> int | None:
        """When the next probe is due."""
        return None if self._probes is None else self._probes.deadline_ms

    def probes_due(self, now_ms: int) -> list[Probe]:
        """The probes to make now. For each of them `on_probed` must be called."""
        if self._probes is None:
            return []
        probes = []
        for broker_id, epoch in self._probes.due(now_ms):
            broker = self._cluster.brokers.get(broker_id)
            targets = () if broker is None else addresses(broker.listeners, self._inter_broker_listener_name)
            if broker is None or broker.epoch != epoch or not targets:
                self._probes.end(broker_id)
            else:
                probes.append(Probe(broker_id, epoch, targets))
        return probes

    def on_probed(self, probe: Probe, refused: bool) -> None:
        """The outcome of a probe; `refused` where every address refused the connection. Where the records that fence
        the broker cannot be written, the next probe tries again."""
        broker_id, epoch, targets = probe
        probes = self._probes
        if probes is None or not probes.on_probed(broker_id, epoch, refused):
            return
        broker = self._cluster.brokers.get(broker_id)
        # A broker in an orderly stop has been fenced before its process ends.
        has_stopped = broker is None or broker.fenced
        log.log(
            logging.INFO if has_stopped else logging.WARNING,
            "Connections to %s are refused: broker %d with epoch %d %s.",
            ", ".join(f"{host}:{port}" for host, port in targets),
            broker_id,
            epoch,
            "has stopped" if has_stopped else "is dead",
        )
        is_present = broker is not None and broker.epoch == epoch and not broker.fenced
        if is_present and self._departures.begin_fencing(broker_id, epoch):
            self._cluster.hold_unclean_elections(broker_id, epoch)
            self._dead[broker_id] = epoch
        if broker_id in self._dead or self._fence_some(
            "fenceDeadBroker", self._broker_changes.fence_dead, broker_id, epoch
        ):
            probes.on_fenced(broker_id, epoch)
