"""A network in memory, between machines on one virtual-time loop.

A connection is two pipes, one a direction; each keeps its order, as TCP does, and there is no order between
connections. A lost segment is, above TCP, a pause until its retransmission. A cut link passes nothing in one or both
directions; what was sent meanwhile arrives after the cut. The connections of a killed process are reset by its kernel.
A machine without power sends nothing; when it is up again, it answers segments of former connections with a reset.

A new connection is refused where no process listens. Where one does, running or paused, the kernel accepts connections
until the backlog is full of those that the process has not accepted; then there is no answer, as on a link that is cut
in either direction. A process that dies does not close everything at once: its listener may stay for some
milliseconds longer than its connections, and a connection that is made meanwhile is accepted, then reset.

One seeded random source decides everything.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from kalda.network.client.addresses import PROBE_TIMEOUT_MS
from kalda.sim.process import BOOT

_RETRANSMIT_S = 0.2
_MAX_RETRANSMIT_S = 3.0
_SPLIT = 0.1
_EPHEMERAL = 40_000
BACKLOG = 100
_DYING_S = 0.02
_PROBE_S = PROBE_TIMEOUT_MS / 1000


class Signal(Enum):
    """What a pipe carries besides bytes."""

    END = "end"
    RESET = "reset"


Item = bytes | Signal


class SimAddress(NamedTuple):
    host: str
    port: int


@dataclass(slots=True)
class LinkQuality:
    """The quality of all links. Delays are in seconds; `loss` is the probability that a segment is lost."""

    delay_min: float = 0.0001
    delay_max: float = 0.001
    loss: float = 0.0


class SimSocket:
    """The part of a listening socket that a server uses."""

    def __init__(self, address: SimAddress) -> None:
        self._address = address

    def getsockname(self) -> SimAddress:
        return self._address

    def setsockopt(self, *_: object) -> None:
        """Options have no effect."""


class SimServer:
    """A listener, with the interface of `asyncio.Server`."""

    def __init__(
        self, network: SimNetwork, factory: Callable[[], asyncio.BaseProtocol], address: SimAddress, backlog: int
    ) -> None:
        self.factory = factory
        self.address = address
        self.backlog = backlog
        self.queued = 0
        """Connections that the kernel has accepted and the process has not."""
        self.context = contextvars.copy_context()
        self.sockets = (SimSocket(address),)
        self._network = network

    def close(self) -> None:
        """Accept no more."""
        self._network.unlisten(self)

    async def start_serving(self) -> None:
        """Start to accept connections; before, they are refused."""
        self._network.serve(self)


class _Pipe:
    """One direction of a connection: items arrive in the order in which they were sent."""

    __slots__ = ("_due", "_network", "_pumping", "_retransmit", "source", "target", "waiting")

    def __init__(self, network: SimNetwork, source: SimTransport, target: SimTransport) -> None:
        self.source = source
        self.target = target
        self.waiting: deque[tuple[float, Item]] = deque()
        self._network = network
        self._due = 0.0
        self._pumping = False
        self._retransmit = _RETRANSMIT_S

    def send(self, item: Item) -> None:
        network = self._network
        delay = network.delay(self.source.local.host, self.target.local.host)
        self._due = max(self._due, network.loop.time() + delay)
        self.waiting.append((self._due, item))
        if not self._pumping:
            self._pumping = True
            self._at(self._due)

    def _at(self, when: float) -> None:
        self._network.loop.call_at(when, self._pump, context=self._network.kernel)

    def _pump(self) -> None:
        """Deliver what is due; or retry later where the link is cut, or a host has no power."""
        network, now = self._network, self._network.loop.time()
        if self.waiting and not network.passes(self.source.local.host, self.target.local):
            self._at(now + self._retransmit)
            self._retransmit = min(2 * self._retransmit, _MAX_RETRANSMIT_S)
            return
        self._retransmit = _RETRANSMIT_S
        while self.waiting and self.waiting[0][0] <= now:
            self.target.arrive(self.waiting.popleft()[1])
        if self.waiting:
            self._at(self.waiting[0][0])
        else:
            self._pumping = False


class SimTransport(asyncio.Transport):
    """One end of a connection. Its protocol is called in the context of the process that it belongs to."""

    def __init__(
        self, network: SimNetwork, local: SimAddress, remote: SimAddress, context: contextvars.Context
    ) -> None:
        super().__init__()
        self.local = local
        self.remote = remote
        self.context = context
        self.protocol: asyncio.BaseProtocol | None = None
        self.out: _Pipe | None = None
        self.closed = False
        self._network = network
        self._inbox: deque[Item] = deque()
        self._reading = True
        self._read_scheduled = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._unread = 0
        self._paused = False

    # Called by protocols.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": tuple(self.remote), "sockname": tuple(self.local)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unread

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self._reading and not self.closed

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or not data:
            return
        assert self.out is not None
        piece, rng = bytes(data), self._network.rng
        if len(piece) > 1 and rng.random() < _SPLIT:
            at = rng.randrange(1, len(piece))
            self.out.send(piece[:at])
            piece = piece[at:]
        self.out.send(piece)
        self._unread += len(data)
        if self._unread > self._high and not self._paused and self.protocol is not None:
            self._paused = True
            self.protocol.pause_writing()

    def close(self) -> None:
        if not self.closed:
            assert self.out is not None
            self.out.send(Signal.END)
            self._end(None)

    def abort(self) -> None:
        if not self.closed:
            self.reset()
            self._end(None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule_read()

    # Called by the network.

    def reset(self) -> None:
        """Send a reset to the other end. Data that has not arrived may be lost."""
        assert self.out is not None
        if self._network.rng.random() < 0.5:
            self.out.waiting.clear()
        self.out.send(Signal.RESET)

    def arrive(self, item: Item) -> None:
        """Bytes or a signal have arrived over the network."""
        if self.closed:
            if item is not Signal.RESET and self.out is not None:
                self.out.send(Signal.RESET)
            return
        if item is Signal.RESET:
            self._inbox.clear()
            self._end(ConnectionResetError(errno.ECONNRESET, "simulated reset"))
            return
        self._inbox.append(item)
        self._schedule_read()

    def vanish(self) -> None:
        """The process has ended: close without a callback and without a signal to the other end."""
        self.closed = True
        self._inbox.clear()
        self._network.forget(self)

    def _end(self, error: Exception | None) -> None:
        self.closed = True
        self._inbox.clear()
        self._network.forget(self)
        if self.protocol is not None:
            self._network.loop.call_soon(self.protocol.connection_lost, error, context=self.context)

    def taken(self, size: int) -> None:
        """The other end has read `size` bytes."""
        self._unread -= size
        if self._paused and self._unread <= self._low and not self.closed and self.protocol is not None:
            self._paused = False
            self._network.loop.call_soon(self.protocol.resume_writing, context=self.context)

    def _schedule_read(self) -> None:
        if self._inbox and not self._read_scheduled and not self.closed:
            self._read_scheduled = True
            self._network.loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._read_scheduled = False
        while self._inbox and self._reading and not self.closed and self.protocol is not None:
            item = self._inbox.popleft()
            if isinstance(item, Signal):
                self.close()
                return
            assert isinstance(self.protocol, asyncio.BufferedProtocol)
            room = memoryview(self.protocol.get_buffer(len(item)))
            size = min(len(room), len(item))
            room[:size] = item[:size]
            if size < len(item):
                self._inbox.appendleft(item[size:])
            assert self.out is not None
            self.out.target.taken(size)
            self.protocol.buffer_updated(size)


class SimNetwork:
    """All machines' links, listeners and connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.kernel = contextvars.copy_context()
        self.link_quality = LinkQuality()
        self.listeners: dict[SimAddress, SimServer] = {}
        self.connections: dict[SimTransport, None] = {}
        self.cut: set[tuple[str, str]] = set()
        """Directed pairs of hosts between which nothing passes."""
        self.blocked: set[tuple[str, SimAddress]] = set()
        """Pairs of a host and a listener that nothing from this host reaches, as behind a firewall that drops."""
        self.rejected: set[tuple[str, str]] = set()
        """Directed pairs of hosts between which connections are refused, as by a firewall that rejects."""
        self.slow: dict[tuple[str, str], float] = {}
        """The greatest additional delay in seconds, by directed pair of hosts."""
        self.off: set[str] = set()
        """Hosts without power."""
        self._dying: dict[SimAddress, float] = {}
        """The time up to which the listeners of ended processes accept connections, and reset them."""
        self._last_port = _EPHEMERAL

    # Links.

    def passes(self, source: str, target: SimAddress) -> bool:
        """Whether a segment sent now arrives."""
        host, off = target.host, self.off
        return (
            (source, host) not in self.cut
            and source not in off
            and host not in off
            and (source, target) not in self.blocked
        )

    def delay(self, source: str, target: str) -> float:
        """The delay of a segment that is sent now, with its retransmissions."""
        quality, rng = self.link_quality, self.rng
        delay = rng.uniform(quality.delay_min, quality.delay_max)
        retransmit = _RETRANSMIT_S
        while quality.loss and retransmit <= _MAX_RETRANSMIT_S and rng.random() < quality.loss:
            delay += retransmit
            retransmit *= 2
        extra = self.slow.get((source, target))
        return delay if extra is None else delay + rng.uniform(0, extra)

    # Connections.

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, backlog: int = BACKLOG
    ) -> SimServer:
        address = SimAddress(host, port)
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, "the address is in use", f"{host}:{port}")
        return SimServer(self, factory, address, backlog)

    def serve(self, server: SimServer) -> None:
        """Let a listener accept connections. Raises `OSError` where another one has the address."""
        address = server.address
        if self.listeners.setdefault(address, server) is not server:
            raise OSError(errno.EADDRINUSE, "the address is in use", f"{address.host}:{address.port}")
        self._dying.pop(address, None)

    def unlisten(self, server: SimServer) -> None:
        if self.listeners.get(server.address) is server:
            del self.listeners[server.address]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect; waits as long as the link is cut or the backlog is full. Raises `ConnectionRefusedError` where there
        is no listener."""
        source, far, retransmit = self._here(), SimAddress(host, port), _RETRANSMIT_S
        while True:
            await asyncio.sleep(self.delay(source, host))
            if (source, host) in self.rejected:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "a firewall refuses", f"{host}:{port}")
            server = self.listeners.get(far)
            if (
                self.passes(source, far)
                and self.passes(host, SimAddress(source, 0))
                and (server is None or server.queued <= server.backlog)
            ):
                break
            await asyncio.sleep(retransmit)
            retransmit = min(2 * retransmit, _MAX_RETRANSMIT_S)
        if server is None:
            await asyncio.sleep(self.delay(host, source))
            if self._dying.get(far, 0.0) > self.loop.time():
                raise ConnectionResetError(errno.ECONNRESET, "the listener is being closed", f"{host}:{port}")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "there is no listener", f"{host}:{port}")
        self._last_port += 1
        near = SimAddress(source, self._last_port)
        client = SimTransport(self, near, far, contextvars.copy_context())
        peer = SimTransport(self, far, near, server.context.copy())
        client.out, peer.out = _Pipe(self, client, peer), _Pipe(self, peer, client)
        self.connections[client] = self.connections[peer] = None
        server.queued += 1
        self.loop.call_soon(_accept, server, peer, context=peer.context)
        try:
            await asyncio.sleep(self.delay(host, source))
        except BaseException:
            client.abort()
            raise
        if client.closed:
            raise ConnectionResetError(errno.ECONNRESET, "reset while connecting")
        client.protocol = protocol = factory()
        protocol.connection_made(client)
        client._schedule_read()
        return client, protocol

    async def is_refused(self, host: str, port: int) -> bool:
        """The counterpart of `kalda.network.client.addresses` over this network."""
        try:
            async with asyncio.timeout(_PROBE_S):
                transport, _ = await self.connect(asyncio.BufferedProtocol, host, port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        transport.abort()
        return False

    def forget(self, transport: SimTransport) -> None:
        self.connections.pop(transport, None)

    # Faults.

    def kill(self, host: str) -> None:
        """The process of a host has ended: its kernel resets its connections and closes its listeners."""
        for address in [each for each in self.listeners if each.host == host]:
            self._dying[address] = self.loop.time() + self.rng.uniform(0, _DYING_S)
        for transport in self._of(host):
            transport.reset()
            transport.vanish()

    def power_off(self, host: str) -> None:
        """A host loses power: its connections end without a signal to the other ends."""
        self.off.add(host)
        for transport in self._of(host):
            assert transport.out is not None
            transport.out.waiting.clear()
            transport.vanish()

    def reset_all(self, host: str) -> None:
        """Break every connection to and from a host, for both ends."""
        for transport in [each for each in self.connections if host in (each.local.host, each.remote.host)]:
            transport.abort()

    def reject(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Refuse connections between these directed pairs of hosts, and break all that exist between the two hosts."""
        self.rejected.update(pairs)
        for transport in list(self.connections):
            near, far = transport.local.host, transport.remote.host
            if (near, far) in self.rejected or (far, near) in self.rejected:
                transport.abort()

    def reset_one(self) -> str | None:
        """Break a random connection for both ends; returns its description, or None where there is none."""
        alive = [transport for transport in self.connections if transport.protocol is not None]
        if not alive:
            return None
        victim = self.rng.choice(alive)
        assert victim.out is not None
        victim.out.send(Signal.RESET)
        victim.arrive(Signal.RESET)
        return f"{victim.local.host} to {victim.remote.host}:{victim.remote.port}"

    def _of(self, host: str) -> list[SimTransport]:
        for server in [each for each in self.listeners.values() if each.address.host == host]:
            self.unlisten(server)
        return [transport for transport in self.connections if transport.local.host == host]

    def _here(self) -> str:
        boot = BOOT.get()
        assert boot is not None, "only processes connect"
        return boot.machine


def _accept(server: SimServer, transport: SimTransport) -> None:
    server.queued -= 1
    if transport.closed:
        return
    transport.protocol = server.factory()
    transport.protocol.connection_made(transport)
    transport._schedule_read()
