"""The connections of one client to the nodes of a cluster, without their sockets.

    is_ready(node, now)          whether a request can be sent; begins to connect where that is allowed now
    send(node, message, ...)     send a request; `on_done` is called once, with its response or its error
    least_loaded(now)            a node for a request that any broker can answer
    run(now)                     time has passed: timeouts, idle connections
    deadline_ms(now)             when `run` is due
    take_actions()               what the shell has to do, in order: `Connect`, `Write`, `Close`

    on_resolved(id, targets), on_connected(id, now), on_connect_failed(id, why, now), on_frame(id, frame, now),
    on_lost(id, why, now), on_written(id)

A connection has an id of its own, which is never used again: a late event of a connection that was given up is ignored.
Before the first request, the node's API versions are requested (KIP-511).

The shell carries out the actions in order, and before it does any other I/O. So a buffer of a request that has failed
is not read any more once `Close` has been carried out, and may be written again.

Invariants: at most `max_in_flight` requests of a connection are without a response, and a request that has no response
within its timeout closes its connection (whose other requests fail with it). After a failure, the next attempt to
connect to the node is made after an exponential backoff, and may take longer each time (KIP-601). A node has failed
when all addresses of its host have been tried, each as a connection of its own (KIP-302), and its backoff is kept while
the metadata does not list it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from kalda.base.allocation import new_tuple
from kalda.base.configs.client import ClientConfig
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.clientcore.connections.client_metrics import ClientMetrics, NodeTraffic
from kalda.clientcore.connections.errors import Backoff, Random, UnresolvedBootstrap
from kalda.clientcore.connections.metadata import Address, Broker
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import (
    Call,
    PeerVersions,
    api_versions_request,
    choose_version,
    disconnected,
    frame_request,
    peer_versions,
    retry_version,
    timed_out,
)
from kalda.protocol.notation import Buffer, Request

log = logging.getLogger(__name__)

_UNREACHED_MS = 3_000
"""For so long no warning is logged: a node may be starting anew."""
_WARN_AGAIN_MS = 30_000
OnDone = Callable[[Any, ApiError | None], None]
"""Called with the response and None, or with None and the error. A request without a response gets None twice."""
SocketAddress = tuple[int, tuple[object, ...]]
"""Address family, and what `connect` of a socket takes."""
_SIZE_BYTES = 4


class Connect(NamedTuple):
    """Open a connection, then call `on_connected` or `on_connect_failed`. Without a target: find the addresses of the
    host, then call `on_resolved` or `on_connect_failed`."""

    connection_id: int
    address: Address
    target: SocketAddress | None = None


class Write(NamedTuple):
    """Write the buffers, after those before them. `on_written` is called when none is left to be written."""

    connection_id: int
    buffers: list[Buffer]


class Close(NamedTuple):
    """Close a connection; what is not written yet is dropped."""

    connection_id: int


Action = Connect | Write | Close


class ConnectionState(Enum):
    """Of the connection to one node."""

    IDLE = "idle"
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    READY = "ready"


class ConnectionConfig(NamedTuple):
    """How connections behave; times in ms."""

    client_id: str
    software_version: str
    backoff: Backoff
    request_timeout_ms: int = 30_000
    max_in_flight: int = 5
    setup_timeout_ms: int = 10_000
    setup_timeout_max_ms: int = 30_000
    max_idle_ms: int = 540_000
    required_api: int = ApiKey.METADATA
    """A node that does not support this API is not of the kind that the client connects to."""
    resolve_timeout_ms: int = 0
    """For how long the first host may be without an address, from the first attempt; 0: no bound."""

    @classmethod
    def of(
        cls,
        config: ClientConfig,
        client_id: str,
        software_version: str,
        random: Random,
        max_in_flight: int,
        required_api: int = ApiKey.METADATA,
    ) -> ConnectionConfig:
        """As a client is configured."""
        return cls(
            client_id,
            software_version,
            Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random),
            config.request_timeout_ms,
            max_in_flight,
            config.connection_setup_timeout_ms,
            config.connection_setup_timeout_max_ms,
            config.connections_max_idle_ms,
            required_api,
            config.bootstrap_resolve_timeout_ms,
        )


class _Unreached:
    """Since when no attempt to connect has succeeded, and when a warning of that was logged."""

    __slots__ = ("since_ms", "warned_at_ms")

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self.warned_at_ms: int | None = None

    def clear(self) -> None:
        """An attempt has succeeded."""
        self.since_ms = self.warned_at_ms = None

    def warn_of_s(self, now_ms: int) -> int | None:
        """An attempt has failed. For how many seconds all have, where a warning of it is due."""
        if self.since_ms is None:
            self.since_ms = now_ms
        for_ms = now_ms - self.since_ms
        if for_ms < _UNREACHED_MS or (self.warned_at_ms is not None and now_ms - self.warned_at_ms < _WARN_AGAIN_MS):
            return None
        self.warned_at_ms = now_ms
        return for_ms // 1000


class Encoded(Protocol):
    """How requests of one kind are encoded, and most of their responses read, in fewer steps than by the codec."""

    version: int

    def frame(self, correlation_id: int, records: Buffer) -> list[Buffer]:
        """The request, with its size and header."""
        ...

    def read(self, frame: memoryview, correlation_id: int) -> Any:
        """What the response says; None: the codec has to read it."""
        ...


class _InFlight(NamedTuple):
    call: Call
    on_done: OnDone
    deadline_ms: int
    timeout_ms: int
    expects_response: bool
    encoded: Encoded | None


class _Peer:
    """One node."""

    __slots__ = (
        "address", "chosen_versions", "connection_id", "failure", "failures", "in_flight", "last_correlation_id",
        "last_used_ms", "node_id", "retry_at_ms", "setup_deadline_ms", "state", "target", "throttled_until_ms",
        "traffic", "unreached", "untried", "versions", "without_response", "worked",
    )  # fmt: skip

    traffic: NodeTraffic
    """Set where a connection is begun."""

    def __init__(self, node_id: int, address: Address) -> None:
        self.node_id = node_id
        self.address = address
        self.state = ConnectionState.IDLE
        self.connection_id = -1
        self.versions: PeerVersions | None = None
        self.chosen_versions: dict[tuple[int, int | None], int] = {}
        """By API and the highest version that callers of `send` allow: the version that was chosen."""
        self.in_flight: deque[_InFlight] = deque()
        """In the order of sending."""
        self.without_response = 0
        """How many of them get no response."""
        self.target: SocketAddress | None = None
        """Which of the host's addresses is connected, or being connected; None before they were found."""
        self.untried: deque[SocketAddress] = deque()
        """The addresses that are tried next, where this one fails before the node has listed its API versions."""
        self.worked: SocketAddress | None = None
        """The last address at which the node has listed them: it is tried first."""
        self.failures = 0
        """Attempts to connect, and connections lost before a response, in a row."""
        self.failure = ""
        """Why the connection was last given up; empty once the node was connected again."""
        self.unreached = _Unreached()
        self.retry_at_ms = 0
        self.setup_deadline_ms = 0
        self.throttled_until_ms = 0
        self.last_used_ms = 0
        self.last_correlation_id = 0

    def may_connect(self, now_ms: int) -> bool:
        """Whether there is no connection, and the backoff is over."""
        return self.state is ConnectionState.IDLE and now_ms >= self.retry_at_ms

    @property
    def is_connecting(self) -> bool:
        return self.state in (ConnectionState.CONNECTING, ConnectionState.NEGOTIATING)


class Connections:
    """The connections of one client, at most one to each node."""

    def __init__(self, config: ConnectionConfig, metrics: ClientMetrics | None = None) -> None:
        """`metrics` are the client's, of which the connections report their part."""
        self._config = config
        self.metrics = metrics or ClientMetrics("client", config.client_id)
        self._peers: dict[int, _Peer] = {}
        self._departed: dict[int, _Peer] = {}
        """Nodes that have failed and are not in the metadata now: their backoff goes on where they come back, as with
        a return to the bootstrap servers."""
        self.metrics.gauge("connection-count", lambda _now_ms: len(self._by_connection))
        self._by_connection: dict[int, _Peer] = {}
        self._last_connection_id = 0
        self._ran_at_ms = -1
        self._frame_at_ms = -1
        """When the response has come that is being handled; the last one, otherwise."""
        self.was_connected = False
        """A node has answered at least once: the bootstrap addresses are right."""
        self.last_failure = "no connection was made yet"
        """Why a connection was last given up, for errors that follow from it; empty after a node was connected."""
        self._is_resolved = config.resolve_timeout_ms == 0
        """Whether a host has had an address; also where none needs one in time, or any more."""
        self._resolve_deadline_ms: int | None = None
        """When the client fails unless a host has an address before."""
        self._alone = _Unreached()
        """Of attempts while no node was connected."""
        self._actions: list[Action] = []
        self._has_written = False
        """A request without a response has been written since the last `run`: there is room for the next one, and no
        event of a socket will follow."""
        self.on_features: Callable[[int, Mapping[str, int]], None] = _ignore
        """Called with the epoch and the levels of the finalized features that a node has answered with."""
        self.on_refused: Callable[[ApiError], None] = _ignore
        """Called with an error that no retry mends: the node does not speak Kafka's protocol as a broker does."""
        self.on_unreachable: Callable[[], None] = _ignore
        """Called where a broker cannot be connected to, or a connection to it broke or had no response in time: what is
        cached of the cluster may be wrong."""
        self.meant_node: Callable[[int], tuple[str, int] | None] = _ignore
        """`(node id of the connection)`: the cluster and the broker that the connection is for; None where that is
        unknown or not to be checked (KIP-1242)."""
        self.on_misrouted: Callable[[int], None] = _ignore
        """Called with the time where a connection led to another node, or to another cluster."""

    # -- for the client's machines

    def set_nodes(self, brokers: Mapping[int, Broker], now_ms: int) -> None:
        """The nodes that exist. The connection to one that does not, or has moved, is closed."""
        for node_id in list(self._peers):
            broker = brokers.get(node_id)
            peer = self._peers[node_id]
            if broker is None or broker.address != peer.address:
                if peer.state is not ConnectionState.IDLE:
                    if broker is None and node_id < 0 and peer.in_flight:
                        continue  # a bootstrap connection ends when its requests have been answered
                    self._close_failing(peer, disconnected(f"node {node_id} has left {peer.address}"))
                self._departed[node_id] = self._peers.pop(node_id)
        for node_id, broker in brokers.items():
            if node_id not in self._peers:
                known = self._departed.get(node_id)
                is_same = known is not None and known.address == broker.address
                self._peers[node_id] = known if known is not None and is_same else _Peer(node_id, broker.address)
        longest_ms = self._config.backoff.longest_ms
        self._departed = {
            node_id: peer
            for node_id, peer in self._departed.items()
            if node_id not in self._peers and peer.failures and now_ms < peer.retry_at_ms + longest_ms
        }

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request can be sent to the node now. Where there is no connection, one is begun."""
        peer = self._peers.get(node_id)
        if peer is None:
            return False
        if self._can_send(peer, now_ms):
            return True
        if peer.may_connect(now_ms):
            self._connect(peer, now_ms)
        return False

    def is_connected(self, node_id: int) -> bool:
        """Whether there is a connection, busy or not."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.state is ConnectionState.READY

    def failure_of(self, node_id: int) -> str:
        """Why the node is not connected: what its last connection ended with. Empty where it is, or none has failed."""
        peer = self._peers.get(node_id)
        return "" if peer is None else peer.failure

    def versions_of(self, node_id: int) -> PeerVersions | None:
        """The API versions of a connected node."""
        peer = self._peers.get(node_id)
        return None if peer is None else peer.versions

    def is_reachable(self, node_id: int, now_ms: int) -> bool:
        """Whether the node is connected, is being connected, or may be tried now."""
        peer = self._peers.get(node_id)
        return peer is not None and (peer.state is not ConnectionState.IDLE or now_ms >= peer.retry_at_ms)

    def ready_at_ms(self, node_id: int, now_ms: int) -> int | None:
        """When a call of `is_ready` may help; None: not before an event of the connection."""
        peer = self._peers.get(node_id)
        if peer is None or peer.is_connecting:
            return None
        if peer.state is ConnectionState.IDLE:
            return max(now_ms, peer.retry_at_ms)
        return peer.throttled_until_ms if peer.throttled_until_ms > now_ms else None

    def least_loaded(self, now_ms: int) -> int | None:
        """A node that a request can be sent to now, with the fewest in flight. Where there is none, a connection to one
        is begun, unless one is being made. None: none yet."""
        ready = [peer for peer in self._peers.values() if self._can_send(peer, now_ms)]
        if ready:
            return min(ready, key=lambda peer: len(peer.in_flight)).node_id
        if any(peer.is_connecting for peer in self._peers.values()):
            return None
        idle = [peer for peer in self._peers.values() if peer.may_connect(now_ms)]
        if idle:
            self._connect(min(idle, key=lambda peer: (peer.failures, peer.last_used_ms)), now_ms)
        return None

    def may_find_node(self, now_ms: int) -> bool:
        """Whether `least_loaded` would return a node now, or begin a connection."""
        peers = self._peers.values()
        if any(self._can_send(peer, now_ms) for peer in peers):
            return True
        if any(peer.is_connecting for peer in peers):
            return False
        return any(peer.may_connect(now_ms) for peer in peers)

    def is_any_usable(self, now_ms: int) -> bool:
        """Whether some node is connected, is being connected, or may be tried now."""
        peers = self._peers.values()
        return any(peer.state is not ConnectionState.IDLE or peer.may_connect(now_ms) for peer in peers)

    def next_retry_ms(self, after_ms: int = -1) -> int | None:
        """When the first node that is not connected may be tried again, of those that may not be before `after_ms`."""
        idle = (peer.retry_at_ms for peer in self._peers.values() if peer.state is ConnectionState.IDLE)
        return min((retry_ms for retry_ms in idle if retry_ms > after_ms), default=None)

    def send(
        self,
        node_id: int,
        message: Request,
        now_ms: int,
        on_done: OnDone,
        *,
        version: int | None = None,
        max_version: int | None = None,
        expects_response: bool = True,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request to a node that `is_ready`. An API or version that the node lacks fails at once."""
        peer = self._peers[node_id]
        assert peer.state is ConnectionState.READY, f"node {node_id} is not connected"
        is_free = version is None
        if is_free and max_version is not None and peer.versions is not None:
            version = min(max_version, peer.versions.get(message.API_KEY, (0, -1))[1])
        try:
            version = choose_version(message, version, peer.versions)
        except ApiError as error:
            on_done(None, error)
            return
        if is_free:
            peer.chosen_versions[message.API_KEY, max_version] = version
        self._send(peer, message, version, now_ms, on_done, expects_response, timeout_ms)

    def chosen_version(self, node_id: int, api_key: int, max_version: int | None) -> int | None:
        """The version that `send` has chosen for an API; None where it has sent none on this connection."""
        return self._peers[node_id].chosen_versions.get((api_key, max_version))

    def send_encoded(
        self, node_id: int, api_key: int, encoded: Encoded, records: Buffer, now_ms: int, on_done: OnDone
    ) -> None:
        """As `send`, of a request and a response that `encoded` encodes and may be able to read."""
        peer = self._peers[node_id]
        self._new_call(peer, api_key, encoded.version, now_ms, on_done, True, None, encoded)
        buffers = encoded.frame(peer.last_correlation_id, records)
        peer.traffic.sent.append(sum(map(len, buffers)))
        self._actions.append(new_tuple(Write, (peer.connection_id, buffers)))

    def throttle(self, node_id: int, throttle_ms: int, now_ms: int) -> None:
        """Send the node nothing for that long, as its answer demands (KIP-219)."""
        peer = self._peers.get(node_id)
        if peer is not None and throttle_ms > 0:
            peer.throttled_until_ms = max(peer.throttled_until_ms, now_ms + throttle_ms)

    def close(self, now_ms: int) -> None:
        """Close all connections; requests in flight fail."""
        for peer in list(self._peers.values()):
            if peer.state is not ConnectionState.IDLE:
                self._on_failed_node(peer, disconnected("the client is closed"), now_ms)

    @property
    def client_id(self) -> str:
        """That of each request."""
        return self._config.client_id

    @property
    def request_timeout_ms(self) -> int:
        """How long a request may wait for its response, where it has no timeout of its own."""
        return self._config.request_timeout_ms

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return sum(len(peer.in_flight) for peer in list(self._peers.values()))

    # -- for the shell

    def take_actions(self) -> list[Action]:
        """What to do, in order."""
        if not self._actions:
            return []
        actions, self._actions = self._actions, []
        return actions

    def run(self, now_ms: int) -> None:
        """Close connections whose requests are overdue, that are not made in time, or that are idle."""
        self._has_written = False
        if now_ms == self._ran_at_ms:
            return
        self._ran_at_ms = now_ms
        self.metrics.run(now_ms)
        if self._resolve_deadline_ms is not None and now_ms >= self._resolve_deadline_ms:
            self._is_resolved, self._resolve_deadline_ms = True, None
            self.on_refused(UnresolvedBootstrap(self._config.resolve_timeout_ms, self.last_failure))
        for peer in list(self._peers.values()):
            if peer.state is ConnectionState.IDLE:
                continue
            if peer.state is ConnectionState.CONNECTING:
                if now_ms >= peer.setup_deadline_ms:
                    self._on_failed_connection(
                        peer, disconnected(f"no connection to {peer.address} in time"), now_ms, lost=True
                    )
            elif peer.in_flight:
                if now_ms >= peer.in_flight[0].deadline_ms:
                    overdue = peer.in_flight[0]
                    log.info("node %d: no response to %s in time: reconnecting", peer.node_id, overdue.call)
                    self._on_failed_connection(peer, timed_out(overdue.call, overdue.timeout_ms), now_ms, lost=True)
            elif 0 <= self._config.max_idle_ms <= now_ms - peer.last_used_ms:
                self._close(peer)

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` has something to do."""
        if self._has_written:
            return now_ms
        times = [] if self._resolve_deadline_ms is None else [self._resolve_deadline_ms]
        for peer in self._peers.values():
            if peer.state is ConnectionState.CONNECTING:
                times.append(peer.setup_deadline_ms)
            elif peer.in_flight:
                times.append(peer.in_flight[0].deadline_ms)
            elif peer.state is not ConnectionState.IDLE and self._config.max_idle_ms >= 0:
                times.append(peer.last_used_ms + self._config.max_idle_ms)
        return max(now_ms, min(times)) if times else None

    def on_resolved(self, connection_id: int, targets: Iterable[SocketAddress]) -> None:
        """The addresses of the host were found, one at least. One that has worked before is tried first."""
        self._is_resolved, self._resolve_deadline_ms = True, None
        peer = self._by_connection.get(connection_id)
        if peer is not None:
            peer.untried = deque(sorted(targets, key=lambda target: target != peer.worked))
            peer.target = peer.untried.popleft()
            self._actions.append(Connect(connection_id, peer.address, peer.target))

    def on_connected(self, connection_id: int, now_ms: int) -> None:
        """The connection is open: request the API versions."""
        peer = self._by_connection.get(connection_id)
        if peer is None:
            return
        peer.state = ConnectionState.NEGOTIATING
        self.metrics.connections_created.value += 1
        meant = self.meant_node(peer.node_id) or (None, -1)
        request = api_versions_request(self._config.software_version, *meant)
        version = choose_version(request, None, None)
        self._send(peer, request, version, now_ms, partial(self._on_versions, peer))

    def on_connect_failed(self, connection_id: int, why: str, now_ms: int) -> None:
        """The connection could not be opened."""
        peer = self._by_connection.get(connection_id)
        if peer is not None:
            self._on_failed_connection(
                peer, disconnected(f"cannot connect to {peer.address}: {why}"), now_ms, lost=True
            )

    def on_lost(self, connection_id: int, why: str, now_ms: int) -> None:
        """The connection broke, or the node closed it."""
        peer = self._by_connection.get(connection_id)
        if peer is not None:
            self._on_failed_connection(
                peer, disconnected(f"the connection to {peer.address} was lost: {why}"), now_ms, lost=True
            )

    def on_written(self, connection_id: int) -> None:
        """All that `Write` named has been written: requests without a response are done, also behind those that wait
        for one."""
        peer = self._by_connection.get(connection_id)
        if peer is None or not peer.without_response:
            return
        self._has_written = True
        peer.without_response = 0
        written = [each for each in peer.in_flight if not each.expects_response]
        peer.in_flight = deque(each for each in peer.in_flight if each.expects_response)
        for each in written:
            each.on_done(None, None)

    def on_frame(self, connection_id: int, frame: memoryview, now_ms: int) -> None:
        """A response has come. One that is not due, or not valid, closes the connection."""
        peer = self._by_connection.get(connection_id)
        if peer is None:
            return
        in_flight = peer.in_flight
        if not in_flight or not (first := in_flight[0]).expects_response:
            self._on_failed_connection(peer, disconnected(f"{peer.address} sent a response that is not due"), now_ms)
            return
        encoded = first.encoded
        self._frame_at_ms = now_ms
        peer.traffic.received.append(len(frame) + _SIZE_BYTES)
        try:
            answer = None if encoded is None else encoded.read(frame, first.call.correlation_id)
            if answer is None:
                answer = first.call.read_answer(frame)
        except InvalidRequest as error:
            log.warning("node %d (%s) sent an invalid response: %s", peer.node_id, peer.address, error.message)
            why = disconnected(f"{peer.address} sent an invalid response: {error.message}")
            self._on_failed_connection(peer, why, now_ms)
            return
        in_flight.popleft()
        peer.last_used_ms = now_ms
        if peer.state is ConnectionState.READY:
            peer.failures = 0
            throttle_ms = getattr(answer, "throttle_time_ms", 0)
            if throttle_ms > 0:
                self.throttle(peer.node_id, throttle_ms, now_ms)
        first.on_done(answer, None)

    # -- inside

    def _can_send(self, peer: _Peer, now_ms: int) -> bool:
        return (
            peer.state is ConnectionState.READY
            and len(peer.in_flight) < self._config.max_in_flight
            and now_ms >= peer.throttled_until_ms
        )

    def _connect(self, peer: _Peer, now_ms: int, target: SocketAddress | None = None) -> None:
        self._last_connection_id += 1
        peer.connection_id = self._last_connection_id
        self._by_connection[peer.connection_id] = peer
        peer.traffic = self.metrics.node(peer.node_id)
        peer.state = ConnectionState.CONNECTING
        peer.last_used_ms = now_ms
        config = self._config
        longest_ms = max(config.setup_timeout_ms, config.setup_timeout_max_ms)
        peer.setup_deadline_ms = now_ms + min(longest_ms, config.setup_timeout_ms * 2 ** min(peer.failures, 16))
        peer.target = target
        if target is None:  # the addresses are found anew
            peer.untried.clear()
            if not self._is_resolved and self._resolve_deadline_ms is None:
                self._resolve_deadline_ms = now_ms + config.resolve_timeout_ms
        self._actions.append(Connect(peer.connection_id, peer.address, target))

    def _send(
        self,
        peer: _Peer,
        message: Request,
        version: int,
        now_ms: int,
        on_done: OnDone,
        expects_response: bool = True,
        timeout_ms: int | None = None,
    ) -> None:
        call = self._new_call(peer, message.API_KEY, version, now_ms, on_done, expects_response, timeout_ms, None)
        try:
            buffers = frame_request(call, message, self._config.client_id)
        except (ValueError, TypeError, AttributeError) as error:  # a caller's value is not of its type
            peer.in_flight.pop()
            if not expects_response:
                peer.without_response -= 1
            why = f"a value is not of its type: {error}"
            if isinstance(error, UnicodeEncodeError):
                why = f"{error.object!r} is not UTF-8"
            on_done(None, ApiError(ErrorCode.INVALID_REQUEST, f"{ApiKey(call.api_key).name}: {why}"))
            return
        peer.traffic.sent.append(sum(map(len, buffers)))
        self._actions.append(new_tuple(Write, (peer.connection_id, buffers)))

    def _new_call(
        self,
        peer: _Peer,
        api_key: int,
        version: int,
        now_ms: int,
        on_done: OnDone,
        expects_response: bool,
        timeout_ms: int | None,
        encoded: Encoded | None,
    ) -> Call:
        peer.last_correlation_id = correlation_id = (peer.last_correlation_id + 1) & 0x7FFFFFFF
        call = new_tuple(Call, (api_key, version, correlation_id))
        if timeout_ms is None:
            timeout_ms = self._config.request_timeout_ms
        peer.last_used_ms = now_ms
        in_flight = call, on_done, now_ms + timeout_ms, timeout_ms, expects_response, encoded
        peer.in_flight.append(new_tuple(_InFlight, in_flight))
        if not expects_response:
            peer.without_response += 1
        return call

    def _on_versions(self, peer: _Peer, answer: Any, error: ApiError | None) -> None:
        if error is not None:
            return  # the connection has been given up
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            request = api_versions_request(self._config.software_version)
            version = max(0, min(retry_version(answer), 3))
            self._send(peer, request, version, self._frame_at_ms, partial(self._on_listed, peer))
            return
        self._on_listed(peer, answer, error)

    def _on_listed(self, peer: _Peer, answer: Any, error: ApiError | None) -> None:
        if error is not None:
            return
        now_ms = self._frame_at_ms
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            peer.untried.clear()
            why = f"{peer.address} is not node {peer.node_id}, or is of another cluster"
            self._on_failed_connection(peer, disconnected(why), now_ms)
            self.on_misrouted(now_ms)
            return
        versions = peer_versions(answer)
        if answer.error_code or self._config.required_api not in versions:
            why = f"{peer.address} answers no client; it may be a controller's listener: give the address of a broker's"
            if not peer.untried:
                self.on_refused(ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, why))
            self._on_failed_connection(peer, disconnected(why), now_ms)
            return
        peer.versions = versions
        peer.state = ConnectionState.READY
        peer.worked = peer.target
        self.was_connected = True
        self.last_failure = ""
        peer.failure = ""
        peer.unreached.clear()
        self._alone.clear()
        if answer.finalized_features_epoch >= 0:
            levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
            self.on_features(answer.finalized_features_epoch, levels)

    def _on_failed_connection(self, peer: _Peer, error: ApiError, now_ms: int, lost: bool = False) -> None:
        """The connection has failed. Where the node has not listed its API versions on it, the host's next address is
        tried; the node has failed where there is none."""
        if peer.state is ConnectionState.READY or not peer.untried:
            if peer.state is not ConnectionState.READY:
                self._warn_unreached(peer, error, now_ms)
            self._on_failed_node(peer, error, now_ms, lost)
            return
        log.debug("node %d, at one address of %s: %s", peer.node_id, peer.address, error.message)
        self._close(peer)  # nothing but the request for the API versions can be in flight
        self._connect(peer, now_ms, peer.untried.popleft())

    def _warn_unreached(self, peer: _Peer, error: ApiError, now_ms: int) -> None:
        """Log a warning from time to time while nodes are not reached: the application sees calls that take long, or
        that return nothing, and may never call for the result of a `send`."""
        if not any(each.state is ConnectionState.READY for each in self._peers.values()):
            for_s = self._alone.warn_of_s(now_ms)
            if for_s is not None:
                text = "%s: no node was reached for %d s: %s. Trying on"
                log.warning(text, self._config.client_id, for_s, error.message)
        elif peer.node_id >= 0:
            for_s = peer.unreached.warn_of_s(now_ms)
            if for_s is not None:
                text = "%s: a broker was not reached for %d s, at the address that the cluster gives: %s. Trying on"
                log.warning(text, self._config.client_id, for_s, error.message)

    def _on_failed_node(self, peer: _Peer, error: ApiError, now_ms: int, lost: bool = False) -> None:
        """The node has failed: it is connected again after a backoff. Requests in flight fail with `error`."""
        log.debug("node %d: %s", peer.node_id, error.message)
        self.last_failure = peer.failure = error.message
        peer.failures += 1
        peer.retry_at_ms = now_ms + self._config.backoff.pause_ms(peer.failures)
        if lost and peer.node_id >= 0:
            self.on_unreachable()
        self._close_failing(peer, error)

    def _close_failing(self, peer: _Peer, error: ApiError) -> None:
        """Close the connection; its requests fail with `error`."""
        in_flight = self._close(peer)
        for index, each in enumerate(in_flight):
            each.on_done(
                None,
                error
                if index == 0 or error.code is not ErrorCode.REQUEST_TIMED_OUT
                else disconnected("the connection was closed: a request before this one had no response in time"),
            )

    def _close(self, peer: _Peer) -> deque[_InFlight]:
        """Close the connection; the requests that were in flight on it."""
        self._by_connection.pop(peer.connection_id, None)
        self.metrics.connections_closed.value += 1
        self._actions.append(Close(peer.connection_id))
        peer.state = ConnectionState.IDLE
        peer.connection_id = -1
        peer.throttled_until_ms = 0
        peer.versions = None
        peer.chosen_versions.clear()
        peer.without_response = 0
        in_flight, peer.in_flight = peer.in_flight, deque()
        return in_flight


def _ignore(*_: object) -> None:
    """The callbacks that are not set."""
