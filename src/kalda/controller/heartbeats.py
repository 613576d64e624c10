"""Which brokers are alive: soft state, off the log.

A heartbeat changes nothing in the log, so the log grows with what happens and not with time. The price is that a new
active controller knows no contact times: a broker that died around the failover has its full session again.

The broker machine has four states, of which the log holds the first three:

    FENCED ── caught up with its own registration ──> UNFENCED
    UNFENCED ── wants to be fenced, or its session ran out ──> FENCED
    UNFENCED ── wants to shut down, leads partitions ──> CONTROLLED_SHUTDOWN
    UNFENCED ── wants to shut down, leads none ──> SHUTDOWN_NOW
    CONTROLLED_SHUTDOWN ── leads none, and every active broker has seen that ──> SHUTDOWN_NOW
    FENCED ── wants to shut down ──> SHUTDOWN_NOW

"Every active broker has seen that": the offset at which the last leaders moved away is not above the lowest offset
that any active broker reported. Earlier, a client could be told by a lagging broker to ask the one that is gone.
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

    @property
    def is_shutting_down(self) -> bool:
        return self is BrokerControlState.CONTROLLED_SHUTDOWN


@dataclass(slots=True)
class _Heartbeat:
    """What is known of one broker. `shutdown_offset` is above -1 from when its leaders were moved away."""

    fenced: bool
    metadata_offset: int = NO_OFFSET
    shutdown_offset: int = NO_OFFSET

    @property
    def state(self) -> BrokerControlState:
        if self.shutdown_offset != NO_OFFSET:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if self.fenced else BrokerControlState.UNFENCED


class BrokerHeartbeats:
    """Lives as long as this node is the active controller."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._brokers: dict[int, _Heartbeat] = {}
        self._contacts: dict[tuple[int, int], int] = {}
        """When (broker, epoch) was last heard of. In order of that time: a contact moves to the end."""

    def register(self, broker_id: int, fenced: bool) -> None:
        """Replay of a registration, or of a change to one."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            self._brokers[broker_id] = _Heartbeat(fenced)
        elif broker.fenced != fenced:
            broker.fenced = fenced
            broker.shutdown_offset = NO_OFFSET

    def remove(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def contact(self, broker_id: int, epoch: int, now_ms: int) -> None:
        self._contacts.pop((broker_id, epoch), None)
        self._contacts[broker_id, epoch] = now_ms

    def forget_contact(self, broker_id: int, epoch: int) -> None:
        """Its session is over: whoever registers that broker now does not have to wait for it."""
        self._contacts.pop((broker_id, epoch), None)

    def has_valid_session(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        contact_ms = self._contacts.get((broker_id, epoch))
        return contact_ms is not None and now_ms <= contact_ms + self._session_timeout_ms

    def pop_expired(self, now_ms: int) -> tuple[int, int] | None:
        """The broker and epoch that has been silent longest, if that is longer than a session; it is forgotten."""
        for key, contact_ms in self._contacts.items():
            if now_ms > contact_ms + self._session_timeout_ms:
                del self._contacts[key]
                return key
            break
        return None

    def touch(self, broker_id: int, fenced: bool, metadata_offset: int) -> None:
        """A heartbeat was answered: the broker has read the metadata up to there."""
        broker = self._brokers[broker_id]
        broker.fenced = fenced
        broker.metadata_offset = metadata_offset
        if fenced:
            broker.shutdown_offset = NO_OFFSET

    def fence(self, broker_id: int) -> None:
        broker = self._brokers.get(broker_id)
        if broker is not None:
            broker.fenced = True
            broker.shutdown_offset = NO_OFFSET

    def set_shutdown_offset(self, broker_id: int, offset: int) -> None:
        """The broker's leaderships were moved away by records that end at `offset`. The first such offset counts."""
        broker = self._brokers.get(broker_id)
        if broker is not None and not broker.fenced and broker.shutdown_offset == NO_OFFSET:
            broker.shutdown_offset = offset

    @property
    def lowest_active_offset(self) -> int | None:
        """Reported by any broker that is neither fenced nor shutting down; None without such."""
        offsets = [b.metadata_offset for b in self._brokers.values() if b.state is BrokerControlState.UNFENCED]
        return min(offsets, default=None)

    def state(self, broker_id: int) -> BrokerControlState:
        return self._brokers[broker_id].state

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
                seen = lowest is None or broker.shutdown_offset <= lowest
                if seen and not leads_partitions():
                    following = BrokerControlState.SHUTDOWN_NOW
            case BrokerControlState.SHUTDOWN_NOW:
                raise AssertionError("a broker that may go is fenced")
        return current, following
