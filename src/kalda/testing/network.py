"""Faults of the network of a test cluster, on real sockets.

Each node reaches each other node through a *link*: a small TCP proxy on loopback for every port of the other. Every
node resolves the addresses of the others to its own links (`Host.route`). Clients reach a node through one link for all
of them, whose address the node advertises. So a test can slow one link down, or cut it:

- **delayed**: every byte arrives later;
- **stalled**: no byte arrives, no connection breaks, as where a firewall drops packets. What was sent arrives when the
  link is healed, as TCP would send it again;
- **cut**: connections break, and new ones break too.

A fault between two nodes is on both of their links: that one, and the one the other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from enum import Enum, auto
from typing import Any, Final

from kalda.broker.process.shell import Host
from kalda.testing.layout import HOST, ServerPlace

CLIENTS: Final = 0
"""Stands for all clients where a method of `Network` takes the number of a node."""

Address = tuple[str, int]
_PIECE_BYTES = 64 * 1024
_MAX_PIECES = 64
"""Pieces that wait in one direction of one connection: what a slow link holds, as the buffers of a real one do."""


class _State(Enum):
    OPEN = auto()
    STALLED = auto()
    CUT = auto()


class Link:
    """From one node, or from all clients, to a node: a proxy for each port of that one."""

    def __init__(self, target: ServerPlace) -> None:
        self.target = target
        self.routes: dict[Address, Address] = {}
        """The addresses of the proxies, by those of the target. One that the target advertises has the proxy of the
        port behind it."""
        self.delay_s = 0.0
        self._state = _State.OPEN
        self._flows = asyncio.Event()
        """Set while bytes arrive."""
        self._flows.set()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        """Have a proxy for a port of the target."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer, port))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        self.routes[HOST, port] = server.sockets[0].getsockname()[:2]
        if port == self.target.port:
            self.routes[HOST, self.target.advertised_port] = self.routes[HOST, port]

    def port_behind(self, address: Address) -> int:
        """The target's own port, for an address of `routes`."""
        return self.target.port if address[1] == self.target.advertised_port else address[1]

    async def close(self) -> None:
        """Break all connections, and listen no more."""
        for server in self._servers:
            server.close()
        await self._break()

    async def set_state(self, state: _State) -> None:
        """Stall, cut or heal the link."""
        self._state = state
        if state is _State.STALLED:
            self._flows.clear()
        else:
            self._flows.set()
        if state is _State.CUT:
            await self._break()

    @property
    def is_open(self) -> bool:
        """Whether bytes arrive."""
        return self._state is _State.OPEN

    async def _break(self) -> None:
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """One connection of the source."""
        far_writer: asyncio.StreamWriter | None = None
        try:
            if self._state is _State.CUT:
                return
            await self._flows.wait()
            far_reader, far_writer = await asyncio.open_connection(HOST, port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, far_writer))
                both.create_task(self._forward(far_reader, writer))
        except* (OSError, _Ended):
            pass
        finally:
            for each in (writer, far_writer):
                if each is not None:
                    each.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on in one direction, each after the delay of the link. Raises `_Ended` at the end."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_PIECES)
        now = asyncio.get_running_loop().time

        async def deliver() -> None:
            while True:
                due, piece = await pieces.get()
                if due > now():
                    await asyncio.sleep(due - now())
                await self._flows.wait()
                if not piece:
                    raise _Ended
                writer.write(piece)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            while True:
                piece = await reader.read(_PIECE_BYTES)
                await pieces.put((now() + self.delay_s, piece))
                if not piece:
                    return


class _Ended(Exception):
    """One side has closed the connection."""


class RoutedHost(Host):
    """The machine of one node, which reaches the others over links."""

    def __init__(self, links: Callable[[], Iterator[Link]]) -> None:
        """`links`: those of this node to the others, of which a new node adds one."""
        super().__init__()
        self._links = links

    def route(self, host: str, port: int) -> Address:
        """The proxy of the link to that address."""
        for link in self._links():
            if (host, port) in link.routes:
                return link.routes[host, port]
        return host, port

    async def is_refused(self, host: str, port: int) -> bool:
        """Over a link that is not open, nothing is refused: no answer arrives."""
        for link in self._links():
            for real, proxy in link.routes.items():
                if (host, port) in (real, proxy):
                    return link.is_open and await super().is_refused(HOST, link.port_behind(real))
        return await super().is_refused(host, port)


class Network:
    """The links of a cluster, by the numbers of its nodes; `Network.CLIENTS` stands for all clients. Each method
    returns when the fault is there."""

    CLIENTS = CLIENTS

    def __init__(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`run` runs a coroutine on the loop of the cluster, and waits for its end."""
        self._nodes: dict[int, ServerPlace] = {}
        self._run = run
        self._links: dict[tuple[int, int], Link] = {}

    # -- faults

    def delay(self, one: int, other: int, delay_ms: float) -> None:
        """What two nodes, or the clients and a node, send each other arrives later by `delay_ms`; 0 ends that."""
        for link in self._between([one], [other]):
            link.delay_s = delay_ms / 1000

    def stall(self, one: int, other: int) -> None:
        """What two nodes, or the clients and a node, send each other does not arrive; no connection breaks."""
        self._set(_State.STALLED, [one], [other])

    def cut(self, one: int, other: int) -> None:
        """The connections between two nodes, or between the clients and a node, break, and new ones too."""
        self._set(_State.CUT, [one], [other])

    def partition(self, side: Collection[int], *, breaks: bool = False) -> None:
        """Separate the nodes of `side` from all others: their links stall, or with `breaks` are cut. Clients reach both
        sides; with `CLIENTS` in `side`, only the nodes of that side."""
        others = [node_id for node_id in self._nodes if node_id not in side]
        self._set(_State.CUT if breaks else _State.STALLED, side, others)

    def heal(self) -> None:
        """End all faults, delays included."""
        for link in self._links.values():
            link.delay_s = 0.0
        self._set(_State.OPEN, [CLIENTS, *self._nodes], list(self._nodes))

    def _set(self, state: _State, one: Collection[int], other: Collection[int]) -> None:
        links = self._between(one, other)

        async def set_all() -> None:
            for link in links:
                await link.set_state(state)

        self._run(set_all())

    def _between(self, one: Collection[int], other: Collection[int]) -> list[Link]:
        unknown = sorted({*one, *other} - {CLIENTS, *self._nodes})
        if unknown:
            raise ValueError(f"there is no node {unknown[0]}: the cluster has the nodes 1 to {len(self._nodes)}")
        both_ways = {pair for source in one for target in other for pair in ((source, target), (target, source))}
        return [link for pair, link in self._links.items() if pair in both_ways]

    # -- called by the cluster, on its loop

    async def add(self, place: ServerPlace) -> ServerPlace:
        """Listen for a new node on its links, and on those of the others to it; returns its place with the port that
        clients use."""
        clients = self._links[CLIENTS, place.node_id] = Link(place)
        await clients.listen(place.port)
        place = place.behind(clients.routes[HOST, place.port][1])
        for other in self._nodes.values():
            for source, target in ((place, other), (other, place)):
                link = self._links[source.node_id, target.node_id] = Link(target)
                await link.listen(target.port)
                await link.listen(target.controller_port)
        self._nodes[place.node_id] = place
        return place

    async def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            await link.close()

    def host(self, node_id: int) -> RoutedHost:
        """The machine of a node."""
        return RoutedHost(lambda: (link for (source, _), link in self._links.items() if source == node_id))
