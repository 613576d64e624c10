"""Listeners, their connections, and the sweep that closes inactive ones.

A `Server` owns the node's listeners and what they share: admission by role, the read arena, the memory for requests and
answers, one sweep timer. There is no timer per connection or per request: every few seconds the sweep closes the
connections that were idle for too long, that have sent only part of a frame, or that do not read their last answers.

The server does not depend on the protocol: frames go to the listener's handler (see `connection`). A listener with
`Security` counts its connections as logins until they are authenticated: the number of logins and the time of each are
limited.

A connection whose own code fails is logged and aborted: neither the sweep nor the admission of others ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections import Counter as Tally
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from kalda.base.scheduling import Clock
from kalda.base.sensors import Measurable, SensorName, gauged
from kalda.network.frames import Arena
from kalda.network.server.admission import Admission, Decision, Verdict
from kalda.network.server.connection import Connection, FrameHandler
from kalda.network.server.limits import MIN_REQUEST_BYTES, Limits, NodeLimits
from kalda.network.server.peer_log import PeerLog, log
from kalda.network.server.peer_memory import AnswerMemory, RequestMemory
from kalda.network.server.turns import Turns

if TYPE_CHECKING:
    from kalda.network.tls.transport import Handshakes

# What is counted of the connections of each listener, under Kafka's names of `socket-server-metrics`.
#
# Kafka has these for each of its network threads; here they are of the listener. Totals only: Prometheus makes rates
# of them. Open connections are also counted by the client's software (KIP-511). Clients choose these names, so only
# the most frequent ones are listed. A store.

SOCKET_SERVER: Final = "kafka.server:type=socket-server-metrics"
_MOST_SOFTWARE: Final = 100
"""So many kinds of client software are listed."""


class ListenerCounts:
    """Of one listener, since the start."""

    __slots__ = ("closed", "created", "expired", "failed_logins", "failed_renewals", "logins", "renewals")

    def __init__(self) -> None:
        self.created = 0
        """Connections, admitted or not."""
        self.closed = 0
        self.expired = 0
        """Connections closed because their session had ended and was not renewed (KIP-368)."""
        self.logins = 0
        """Connections that have authenticated, by SASL or by TLS alone."""
        self.failed_logins = 0
        self.renewals = 0
        """Sessions that were renewed (KIP-368)."""
        self.failed_renewals = 0


def count_sensors(
    counts: Iterable[tuple[str, ListenerCounts]], connections: Iterable[Connection]
) -> Iterator[tuple[SensorName, Measurable]]:
    """The counts of each listener by name, and the open connections."""
    software = Tally(
        (each.listener_name, each.client_software_name, each.client_software_version) for each in connections
    )
    by_listener = Tally[str]()
    for (listener, _, _), count in software.items():
        by_listener[listener] += count
    for listener, each in counts:
        tags = (("listener", listener),)
        for name, value in (
            ("connection-count", by_listener[listener]),
            ("connection-creation-total", each.created),
            ("connection-close-total", each.closed),
            ("expired-connections-killed-count", each.expired),
            ("successful-authentication-total", each.logins),
            ("failed-authentication-total", each.failed_logins),
            ("successful-reauthentication-total", each.renewals),
            ("failed-reauthentication-total", each.failed_renewals),
        ):
            yield SensorName(SOCKET_SERVER, name, tags), gauged(value)
    for (listener, name, version), count in software.most_common(_MOST_SOFTWARE):
        by_software = (("clientSoftwareName", name), ("clientSoftwareVersion", version), ("listener", listener))
        yield SensorName(SOCKET_SERVER, "connections", by_software), gauged(count)


_MAX_PORT = 65_535
_UNLIMITED_BYTES = 2**63 - 1
_SWEEP_MIN_MS = 50
_SWEEP_MAX_MS = 5_000


class Security(Protocol):
    """What a listener does with its connections that is not PLAINTEXT, or has an own principal builder."""

    tls: ssl.SSLContext | None
    """The context of new connections; None without TLS."""

    def begin(self, connection: Connection, listener: Listener) -> None:
        """A connection was made; nothing was read from it yet."""
        ...

    def on_secured(self, connection: Connection, certificate: bytes | None, error: str | None) -> None:
        """The handshake of TLS has ended: with the certificate that the peer has shown, in DER, or with why it has
        failed; the connection is closed then."""
        ...


class Peers(Enum):
    """What connects to a listener."""

    CLIENTS = "clients"
    BROKERS = "brokers"
    """And clients, where they have no listener of their own."""
    CONTROLLERS = "controllers"
    """And brokers, which send requests to the active controller."""


class Listener:
    """One bound endpoint, and the functions of the server that its connections call."""

    def __init__(
        self,
        server: Server,
        name: str,
        handler: FrameHandler,
        limits: Limits,
        security_protocol: str,
        security: Security | None,
        peers: Peers,
    ) -> None:
        self.name = name
        self.peers = peers
        self.handler = handler
        """Answers the frames of the connections that are made from now on."""
        self.limits = limits
        self.security_protocol = security_protocol
        self.security = security
        """None: PLAINTEXT."""
        self.min_request_bytes = MIN_REQUEST_BYTES
        self.counts = ListenerCounts()
        self.arena = server.arena
        self.turns = server.turns
        self.host = ""
        self.port = 0
        self._server = server
        self.on_close: list[Callable[[Connection], None]] = []
        """Called with each admitted connection that has ended."""
        self.on_admitted: Callable[[Connection], None] | None = None
        """Called with each connection that is admitted, before anything is read from it."""
        self._loop = server.loop
        self._sockets: asyncio.Server | None = None
        self.call_soon = server.loop.call_soon
        self.now_ms = server.now_ms
        self.memory = server.memory if peers is Peers.CLIENTS else server.new_memory()
        """For requests: clients must not use up that of nodes."""
        self.answers = server.answers if peers is Peers.CLIENTS else server.new_answer_memory()

    async def open(self, host: str | None, port: int, accepts: bool) -> None:
        """Bind; then accept connections, or refuse them until `accept`. Port 0 chooses a free port, and sets
        `port`."""
        if not host:
            # Without a host asyncio opens a socket per address family, which would get different ports from port 0.
            host = None if port else "0.0.0.0"
        elif host == "::" and port:
            # The wildcard includes IPv4, but for "::" asyncio would make a socket for IPv6 only.
            host = None
        if not 0 <= port <= _MAX_PORT:  # the resolver would use the lower 16 bits of a larger one
            raise OSError(errno.EINVAL, f"listener {self.name}: port out of range: {port}")
        limits = self.limits
        try:
            self._sockets = await self._loop.create_server(
                self._make_connection if self.security is None else self._make_secured,
                host,
                port,
                backlog=limits.backlog,
                reuse_address=True,
                start_serving=accepts,
            )
        except socket.gaierror as error:
            raise OSError(error.errno, f"listener {self.name}: host {host}: {error.strerror}") from error
        except OSError as error:
            # For an address that is not this host's, later versions of asyncio set no errno.
            number = error.errno or errno.EADDRNOTAVAIL
            raise OSError(number, f"listener {self.name}: {error.strerror or error}") from error
        for bound in self._sockets.sockets:
            if limits.receive_buffer_bytes > 0:
                # Before the TCP handshake, which fixes the window scale by this size.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
            self.host, self.port = bound.getsockname()[:2]

    async def accept(self) -> None:
        """Accept connections from now on. Raises `OSError` where another process listens on the port already."""
        assert self._sockets is not None, "not bound"
        await self._sockets.start_serving()

    def _make_connection(self) -> Connection:
        return Connection(self, self._server.next_connection_id())

    def _make_secured(self) -> asyncio.BufferedProtocol:
        """A connection that has to authenticate, behind TLS where the listener has it."""
        assert self.security is not None
        connection = self._make_connection()
        self.security.begin(connection, self)
        if self.security.tls is None:
            return connection
        from kalda.network.tls.transport import TlsTransport

        return TlsTransport(connection, self.security.tls, self._server.handshakes(), self.security.on_secured)

    def login_ended(self, connection: Connection) -> None:
        """The connection is authenticated, so it no longer counts as a login."""
        self._server.login_ended(connection)

    def connected(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        """A connection was made: set its socket options, and admit it, let it wait or refuse it."""
        raw: socket.socket | None = transport.get_extra_info("socket")
        descriptor = -1
        if raw is not None and getattr(raw, "family", None) in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):  # the peer may have closed it already
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self.limits.send_buffer_bytes > 0:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
                descriptor = raw.fileno()
        self._server.connected(connection, descriptor)

    def disconnected(self, connection: Connection) -> None:
        """A connection has ended."""
        self._server.disconnected(connection)
        if connection.admitted:
            for callback in self.on_close:
                callback(connection)

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back once on the loop, not before `delay_ms` have passed."""
        return self._loop.call_later(delay_ms / 1000, callback)

    def log_peer(self, message: str, *args: object) -> None:
        """Log a warning about a peer, within the limit of lines per second."""
        self._server.peer_log.warn(self.now_ms(), message, *args)

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay open."""
        if self._sockets is not None:
            self._sockets.close()


class Server:
    """The node's listeners. It must be made inside the running loop."""

    def __init__(
        self, clock: Clock, limits: NodeLimits | None = None, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """`now_ns` is the clock by which connections take turns."""
        self.loop = asyncio.get_running_loop()
        self.arena = Arena()
        self.turns = Turns(now_ns, self.loop.call_soon)
        self.peer_log = PeerLog()
        self.listeners: dict[str, Listener] = {}
        self.connections: dict[int, Connection] = {}
        self.now_ms = clock.mono_ms
        self.limits = limits or NodeLimits()
        """The ones in effect."""
        self.memory = self.new_memory()
        """Of requests on listeners of clients."""
        self.answers = self.new_answer_memory()
        self._admissions = {is_controllers: Admission(self.limits) for is_controllers in (False, True)}
        """Of the listeners of brokers and clients, and of those of controllers."""
        self._waiting: dict[str, deque[Connection]] = {}
        """By listener: connections that wait for admission, in order of arrival."""
        self._retry: asyncio.TimerHandle | None = None
        """The timer that admits `_waiting` again when a creation rate allows it."""
        self._logins: OrderedDict[Connection, int] = OrderedDict()
        """Admitted connections that are not authenticated yet, with when they were admitted, in this order."""
        self._handshakes: Handshakes | None = None
        """None before the first connection with TLS."""
        self._closing_later = 0
        """Connections that are refused, and closed after a while."""
        self._last_id = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopping = False
        self._empty = asyncio.Event()
        """Set while there is no connection."""
        self._empty.set()

    async def listen(
        self,
        name: str,
        host: str | None,
        port: int,
        handler: FrameHandler,
        limits: Limits | None = None,
        *,
        security_protocol: str = "PLAINTEXT",
        security: Security | None = None,
        peers: Peers = Peers.CLIENTS,
        on_admitted: Callable[[Connection], None] | None = None,
        accepts: bool = True,
    ) -> Listener:
        """Open a listener. With `accepts=False` the port is bound, but connections are refused until
        `Listener.accept`. Raises `OSError`."""
        assert name not in self.listeners, f"listener {name} is open already"
        limits = limits or Limits()
        listener = Listener(self, name, handler, limits, security_protocol, security, peers)
        listener.on_admitted = on_admitted
        self._admission(listener).add_listener(name, limits, is_inter_broker=peers is Peers.BROKERS)
        self._waiting[name] = deque()
        await listener.open(host, port, accepts)
        self.listeners[name] = listener
        if self._sweeper is None:
            self._schedule_sweep()
        return listener

    def update_limits(self, limits: NodeLimits) -> None:
        """Apply new limits of the node from dynamic configuration."""
        self.limits = limits
        for each in self._memories():
            each.update(limits.queued_max_request_bytes)
        for is_controllers, admission in self._admissions.items():
            for _ in range(admission.update(limits)):
                self._evict_of_role(is_controllers, "max.connections was reduced")
        self._admit_waiting()

    def set_ip_rate(self, address: str | None, rate: float | None) -> None:
        """`connection_creation_rate` of an address, None for the default of all; a rate None removes it."""
        for admission in self._admissions.values():
            admission.set_ip_rate(address, rate)
        self._admit_waiting()

    def measured(self) -> Iterable[tuple[SensorName, Measurable]]:
        """Sensors of connections, a source for `Sensors.add_source`."""
        named: dict[SensorName, Measurable] = {}
        for is_controllers in sorted({listener.peers is Peers.CONTROLLERS for listener in self.listeners.values()}):
            # Of a node of both roles, the rates of all and of an address are those of the broker's role.
            named = {**dict(self._admissions[is_controllers].measured()), **named}
        yield from named.items()
        listeners = [(name, each.counts) for name, each in self.listeners.items()]
        yield from count_sensors(listeners, list(self.connections.values()))
        memories = self._memories()
        limit, used = sum(each.limit_bytes for each in memories), sum(each.used_bytes for each in memories)
        for name, value in (
            ("MemoryPoolUsed", used),
            ("MemoryPoolAvailable", limit - used if limit > 0 else _UNLIMITED_BYTES),
        ):
            yield SensorName("kafka.network:type=SocketServer", name), gauged(value)

    def update_listener_limits(self, name: str, limits: Limits) -> None:
        """Apply new limits of one listener. They apply to open connections too, except sizes, which apply to new
        ones."""
        self.listeners[name].limits = limits
        self._admission(self.listeners[name]).update_listener(name, limits)
        self._admit_waiting()

    async def stop(self, deadline_ms: int = 5_000) -> None:
        """Accept no more connections, answer the pending requests, close. Connections that are open at the deadline
        are aborted."""
        self._stopping = True
        for listener in self.listeners.values():
            listener.stop_accepting()
        for connection in list(self.connections.values()):
            connection.drain()
        if not await self._wait_empty(deadline_ms):
            for connection in list(self.connections.values()):
                connection.abort()
            await self._wait_empty(1_000)
        for timer in (self._sweeper, self._retry):
            if timer is not None:
                timer.cancel()
        if self._handshakes is not None:
            self._handshakes.close()

    def new_memory(self) -> RequestMemory:
        """As `queued.max.request.bytes` allows."""
        return RequestMemory(self.limits.queued_max_request_bytes, self._call_later_ms)

    def new_answer_memory(self) -> AnswerMemory:
        """For answers that are not read."""
        return AnswerMemory(self.limits.max_unread_bytes, self._call_later_ms)

    def _admission(self, listener: Listener) -> Admission:
        """Of the role that the listener belongs to."""
        return self._admissions[listener.peers is Peers.CONTROLLERS]

    def _is_reserved(self, listener: Listener) -> bool:
        """Whether only nodes connect to it: clients have other listeners."""
        return listener.peers is Peers.CONTROLLERS or self._admission(listener).is_protected(listener.name)

    def _memories(self) -> set[RequestMemory]:
        return {listener.memory for listener in self.listeners.values()}

    def _call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_ms / 1000, callback)

    async def _wait_empty(self, timeout_ms: int) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # -- connections that are made and that end

    def next_connection_id(self) -> int:
        """An id that no other connection of this server had or will have."""
        self._last_id += 1
        return self._last_id

    def connected(self, connection: Connection, descriptor: int = -1) -> None:
        """Admit a new connection, let it wait, or refuse it. `descriptor`: of its socket; the system gives out the
        lowest that is free."""
        if descriptor >= self.limits.descriptors and not self._make_room(connection, descriptor):
            self._refuse(connection, f"{descriptor} descriptors are open, the rest are left for files")
            return
        self.connections[connection.id] = connection
        self.listeners[connection.listener_name].counts.created += 1
        self._empty.clear()
        if self._stopping:
            connection.close()
            return
        waiting = self._waiting[connection.listener_name]
        if waiting or not self._admit_or_abort(connection):
            if len(waiting) >= self.listeners[connection.listener_name].limits.backlog:
                self._refuse(connection, "too many connections wait for admission")
                return
            connection.wait_for_admission()
            waiting.append(connection)

    def disconnected(self, connection: Connection) -> None:
        """Remove a connection, and admit the next one that waits."""
        if self.connections.pop(connection.id, None) is None:
            return
        self.listeners[connection.listener_name].counts.closed += 1
        self.listeners[connection.listener_name].memory.forget(connection)
        self._logins.pop(connection, None)
        if connection.admitted:
            listener = self.listeners[connection.listener_name]
            self._admission(listener).release(listener.name, connection.peer_host)
        else:
            with contextlib.suppress(ValueError):
                self._waiting[connection.listener_name].remove(connection)
        if any(self._waiting.values()):
            self.loop.call_soon(self._admit_waiting)
        if not self.connections:
            self._empty.set()

    def _refuse(self, connection: Connection, reason: str) -> None:
        self.peer_log.warn(self.now_ms(), "refused connection from %s: %s", connection, reason)
        connection.abort()

    def _refuse_later(self, connection: Connection, wait_ms: int) -> None:
        """Refuse a connection whose address makes too many. It is closed after a while, so that a client that connects
        again at once does so less often; at once where many are closed in this way already."""
        if self._closing_later >= self.listeners[connection.listener_name].limits.backlog:
            self._refuse(connection, "its address makes too many connections a second")
            return
        connection.wait_for_admission()
        self._closing_later += 1

        def close() -> None:
            self._closing_later -= 1
            self._refuse(connection, "its address makes too many connections a second")

        self.loop.call_later(wait_ms / 1000, close)

    def _abort_failed(self, connection: Connection, what: str) -> None:
        """Log the exception that is being handled, and abort the connection whose code has raised it."""
        log.exception("%s failed for %s; closing it", what, connection)
        try:
            connection.abort()
        except Exception:
            log.exception("%s cannot be closed", connection)

    def _admit_or_abort(self, connection: Connection) -> bool:
        """`_try_admit`; a connection whose code fails is aborted, and need not wait."""
        try:
            return self._try_admit(connection)
        except Exception:
            self._abort_failed(connection, "admission")
            return True

    def _try_admit(self, connection: Connection) -> bool:
        listener = self.listeners[connection.listener_name]
        admission = self._admission(listener)
        match admission.admit(listener.name, connection.peer_host, self.now_ms()):
            case Decision(Verdict.WAIT, wait_ms):
                if wait_ms:
                    self._retry_in(wait_ms)
                return False
            case Decision(Verdict.OVER_ADDRESS_RATE, wait_ms):
                self._refuse_later(connection, wait_ms)
                return True
            case Decision(Verdict.OVER_ADDRESS_COUNT, maximum=maximum):
                self._refuse(connection, f"its address has {maximum} connections, the maximum")
                return True
            case Decision(verdict):
                is_full = verdict is Verdict.EVICT
        try:
            connection.admit()
        finally:
            if not connection.admitted:
                admission.release(listener.name, connection.peer_host)
        if listener.security is not None:
            self._begin_login(connection)
        if listener.on_admitted is not None:
            listener.on_admitted(connection)
        if is_full:
            self._evict_of_role(
                listener.peers is Peers.CONTROLLERS, "max.connections is reached, and another broker connects"
            )
        return True

    def _begin_login(self, connection: Connection) -> None:
        """Count a login. Where there are too many, the oldest is closed: a client that logs in is done within
        milliseconds, so that is one that does not."""
        self._logins[connection] = self.now_ms()
        if len(self._logins) > self.limits.max_logins:
            oldest = next(iter(self._logins))
            self.peer_log.warn(
                self.now_ms(), "closing %s: %d connections have not authenticated", oldest, self.limits.max_logins
            )
            self.login_ended(oldest)
            oldest.abort()

    def login_ended(self, connection: Connection) -> None:
        """No longer count the connection as a login."""
        self._logins.pop(connection, None)

    def handshakes(self) -> Handshakes:
        """The handshakes of all listeners."""
        if self._handshakes is None:
            from kalda.network.tls.transport import Handshakes

            self._handshakes = Handshakes(self.loop)
        return self._handshakes

    def _make_room(self, connection: Connection, descriptor: int) -> bool:
        """Abort a connection that has sent no request, or one of a client where a node connects. Whether `connection`
        is served: only that of a node is, as only below the limit does the number of a descriptor show how many are
        open. Another peer finds the room when it connects again; without it, a flood of silent connections would keep
        all others out."""

        def is_of_node(each: Connection) -> bool:
            return self._is_reserved(self.listeners[each.listener_name])

        of_node = is_of_node(connection)
        oldest = self._least_active(
            lambda other: not other.requests or (of_node and not is_of_node(other)),
            f"{descriptor} descriptors are open, and another peer connects",
        )
        if oldest is not None:
            oldest.abort()  # a close waits until the output has been read, and keeps the descriptor until then
        return of_node and oldest is not None

    def _evict_of_role(self, is_controllers: bool, why: str) -> None:
        """Close a connection of a listener of this role that is not protected."""
        admission = self._admissions[is_controllers]

        def is_eligible(connection: Connection) -> bool:
            listener = self.listeners[connection.listener_name]
            return self._admission(listener) is admission and not admission.is_protected(listener.name)

        oldest = self._least_active(is_eligible, why)
        if oldest is not None:
            oldest.close()

    def _least_active(self, is_eligible: Callable[[Connection], bool], why: str) -> Connection | None:
        """The least recently active one of the eligible connections, which the caller closes."""
        candidates = (
            connection
            for connection in self.connections.values()
            if connection.admitted and not connection.closed and is_eligible(connection)
        )
        oldest = min(candidates, key=lambda connection: (connection.active_ms, connection.id), default=None)
        if oldest is not None:
            self.peer_log.warn(
                self.now_ms(),
                "closing %s: %s; this connection is the least recently active one",
                oldest,
                why,
            )
        return oldest

    def _retry_in(self, wait_ms: int) -> None:
        at_s = self.loop.time() + wait_ms / 1000
        if self._retry is not None:
            if self._retry.when() <= at_s:
                return
            self._retry.cancel()
        self._retry = self.loop.call_at(at_s, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Admit the waiting connections that the limits allow. One whose listener is full does not block others.
        Each time another listener is first: else the clients of one could take all slots that listeners share."""
        names = list(self._waiting)
        for name in names:
            waiting = self._waiting[name]
            for _ in range(len(waiting)):
                connection = waiting.popleft()
                if not connection.closed and not self._admit_or_abort(connection):
                    waiting.append(connection)
        self._waiting[names[0]] = self._waiting.pop(names[0])

    # -- the sweep

    def _schedule_sweep(self) -> None:
        shortest = _SWEEP_MAX_MS
        for listener in self.listeners.values():
            limits = listener.limits
            for limit in (limits.idle_ms, limits.slow_frame_ms, limits.closing_ms):
                if limit > 0:
                    shortest = min(shortest, limit // 10)
            if listener.security is not None:
                shortest = min(shortest, self.limits.login_timeout_ms // 10)
        self._sweeper = self.loop.call_later(max(_SWEEP_MIN_MS, shortest) / 1000, self._sweep)

    def _sweep(self) -> None:
        now_ms = self.now_ms()
        for connection in list(self.connections.values()):
            try:
                self._sweep_one(connection, now_ms)
            except Exception:
                self._abort_failed(connection, "the sweep")
        self._sweep_logins(now_ms)
        self._schedule_sweep()

    def _sweep_logins(self, now_ms: int) -> None:
        timeout_ms = self.limits.login_timeout_ms
        while self._logins:
            oldest, since_ms = next(iter(self._logins.items()))
            if now_ms - since_ms < timeout_ms:
                return
            self.peer_log.warn(now_ms, "closing %s: it has not authenticated within %d ms", oldest, timeout_ms)
            self.login_ended(oldest)
            oldest.abort()

    def _sweep_one(self, connection: Connection, now_ms: int) -> None:
        reason = connection.sweep(now_ms)
        if reason is None:
            return
        if connection.closed:
            connection.abort()
        else:
            log.info("closing %s: %s", connection, reason)
            connection.close()
