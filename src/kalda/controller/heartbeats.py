"""Heartbeats and sessions of brokers: soft state of the active controller, not in the log.

A heartbeat writes no record, so the log does not grow with time. Hence a new active controller does not have the times
of the last heartbeats: a broker that died around the failover gets a full session again.

A broker has four states, of which the log has the first three:

    FENCED ── has read its own registration ──> UNFENCED
    UNFENCED ── requests to be fenced, or its session expired ──> FENCED
    UNFENCED ── requests to shut down, leads partitions ──> CONTROLLED_SHUTDOWN
    UNFENCED ── requests to shut down, leads none ──> SHUTDOWN_NOW
    CONTROLLED_SHUTDOWN ── leads none, and every active broker has read that ──> SHUTDOWN_NOW
    FENCED ── requests to shut down ──> SHUTDOWN_NOW

"Every active broker has read that": the offset of the records that moved its leaderships away is not above the lowest
offset that any active broker reported. If the broker stopped earlier, a broker that lags behind could still name it as
a leader in metadata responses.

Invariant: whether a broker is fenced here follows from replayed records only. No request and no task sets it: their
records may be refused by the log.

Not obvious:

- `BrokerHeartbeats` is changed by the replayed record that fences or unfences a broker, never by the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kalda.protocol.messages.brokers import BrokerHeartbeatRequest

NO_OFFSET = -1


class BrokerControlState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


@dataclass(slots=True)
class _Heartbeat:
    """The state of one broker."""

    fenced: bool
    metadata_offset: int = NO_OFFSET
    """the metadata offset in its last heartbeat"""
    shutdown_offset: int = NO_OFFSET
    """in a controlled shutdown, the offset of the records that moved its leaderships away"""

    @property
    def state(self) -> BrokerControlState:
        if self.shutdown_offset != NO_OFFSET:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.fenced else BrokerControlState.UNFENCED


class BrokerHeartbeats:
    """Exists while this node is the active controller."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._brokers: dict[int, _Heartbeat] = {}
        self._contacts: dict[tuple[int, int], int] = {}
        """by (broker id, epoch), the time of the last heartbeat; in the order of these times, the oldest first"""

    def register(self, broker_id: int, fenced: bool) -> None:
        """A registration, or a change of one, was replayed."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            self._brokers[broker_id] = _Heartbeat(fenced)
        elif broker.fenced != fenced:
            broker.fenced = fenced
            broker.shutdown_offset = NO_OFFSET

    def remove(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def contact(self, broker_id: int, epoch: int, now_ms: int) -> None:
        """Start the session anew: a heartbeat was received."""
        self._contacts.pop((broker_id, epoch), None)
        self._contacts[broker_id, epoch] = now_ms

    def end_session(self, broker_id: int, epoch: int) -> None:
        """End the session now: a new incarnation can register without waiting for the timeout."""
        self._contacts.pop((broker_id, epoch), None)

    def has_session(self, broker_id: int, epoch: int) -> bool:
        """Whether its session was not ended, even where its time is over."""
        return (broker_id, epoch) in self._contacts

    def has_valid_session(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        contact_ms = self._contacts.get((broker_id, epoch))
        return contact_ms is not None and now_ms <= contact_ms + self._session_timeout_ms

    def session_end_ms(self, broker_id: int, epoch: int) -> int | None:
        """The last moment of the session, if no further heartbeat comes; None where there is no session."""
        contact_ms = self._contacts.get((broker_id, epoch))
        return None if contact_ms is None else contact_ms + self._session_timeout_ms

    def contacts(self) -> list[tuple[int, int]]:
        """Brokers with a session, and the time of the last heartbeat of each."""
        return [(broker_id, contact_ms) for (broker_id, _), contact_ms in self._contacts.items()]

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """Brokers and epochs whose sessions have expired, the oldest heartbeat first. The sessions stay."""
        expired = []
        for key, contact_ms in self._contacts.items():
            if now_ms <= contact_ms + self._session_timeout_ms:
                break
            expired.append(key)
        return expired

    def on_heartbeat(self, broker_id: int, metadata_offset: int) -> None:
        """A heartbeat was handled: the offset up to which the broker has read the metadata."""
        self._brokers[broker_id].metadata_offset = metadata_offset

    def set_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """The broker's leaderships were moved away by records that end at `offset`. The first such offset counts."""
        broker = self._brokers.get(broker_id)
        if broker is not None and not broker.fenced and broker.shutdown_offset == NO_OFFSET:
            broker.shutdown_offset = offset

    def raise_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """More of its leaderships were moved away, by records that end at `offset`."""
        broker = self._brokers.get(broker_id)
        if broker is not None and broker.state is BrokerControlState.CONTROLLED_SHUTDOWN:
            broker.shutdown_offset = offset

    @property
    def lowest_active_offset(self) -> int | None:
        """The lowest metadata offset of the brokers that are neither fenced nor shutting down; None where there are
        none."""
        offsets = [b.metadata_offset for b in self._brokers.values() if b.state is BrokerControlState.UNFENCED]
        return min(offsets, default=None)

    def next_state(
        self, request: BrokerHeartbeatRequest, registration_offset: int, leads_partitions: Callable[[], bool]
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """The present and the next state of the broker that sent `request`."""
        broker = self._brokers[request.broker_id]
        current = broker.state
        following = current
        match current:
            case BrokerControlState.FENCED:
                if request.want_shut_down:
                    following = BrokerControlState.SHUTDOWN_NOW
                elif not request.want_fence and request.current_metadata_offset >= registration_offset:
                    following = BrokerControlState.UNFENCED
            case BrokerControlState.UNFENCED:
                if request.want_shut_down:
                    drains = not request.want_fence and leads_partitions()
                    following = BrokerControlState.CONTROLLED_SHUTDOWN if drains else BrokerControlState.SHUTDOWN_NOW
                elif request.want_fence:
                    following = BrokerControlState.FENCED
            case BrokerControlState.CONTROLLED_SHUTDOWN:
                lowest = self.lowest_active_offset
                read_by_all = lowest is None or broker.shutdown_offset <= lowest
                if read_by_all and not leads_partitions():
                    following = BrokerControlState.SHUTDOWN_NOW
            case BrokerControlState.SHUTDOWN_NOW:
                raise AssertionError("SHUTDOWN_NOW is never a current state: such a broker is fenced")
        return current, following
