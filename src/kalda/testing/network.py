"""Faults of the network between the nodes of a test cluster, on real sockets.

Each node reaches each other node through a *link*: a small TCP proxy on loopback for every port of the other. Every
node resolves the addresses of the others to its own links (`Host.route`); clients of the cluster use the real ports and
meet no fault. So a test can slow one link down, or cut it:

- **delayed**: every byte arrives later;
- **stalled**: no byte arrives, no connection breaks, as where a firewall drops packets. What was sent arrives when the
  link is healed, as TCP would send it again;
- **cut**: connections break, and new ones break too.

A fault between two nodes is on both of their links: that one, and the one the other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from enum import Enum, auto
from typing import Any

from kalda.broker.shell import Host
from kalda.testing.layout import HOST, Place

Address = tuple[str, int]
_PIECE_BYTES = 64 * 1024
_MAX_PIECES = 64
"""Pieces that wait in one direction of one connection: what a slow link holds, as the buffers of a real one do."""


class _State(Enum):
    OPEN = auto()
    STALLED = auto()
    CUT = auto()


class Link:
    """From one node to another: a proxy for each port of the other."""

    def __init__(self, source: int, target: Place) -> None:
        self.source = source
        self.target = target
        self.routes: dict[Address, Address] = {}
        """The addresses of the proxies, by those of the target."""
        self.delay_s = 0.0
        self._state = _State.OPEN
        self._flows = asyncio.Event()
        """Set while bytes arrive."""
        self._flows.set()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        for port in (self.target.port, self.target.controller_port):

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
                task = asyncio.get_running_loop().create_task(self._serve(reader, writer, port))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

            server = await asyncio.start_server(accept, HOST, 0)
            self._servers.append(server)
            self.routes[HOST, port] = server.sockets[0].getsockname()[:2]

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

    def __init__(self, links: Iterable[Link]) -> None:
        super().__init__()
        self._routes: dict[Address, Address] = {}
        self._links: dict[Address, tuple[Link, Address]] = {}
        """The link to each address of another node, and to each proxy, with the real address."""
        for link in links:
            self._routes.update(link.routes)
            for real, proxy in link.routes.items():
                self._links[real] = self._links[proxy] = (link, real)

    def route(self, host: str, port: int) -> Address:
        """The proxy of the link to that address."""
        return self._routes.get((host, port), (host, port))

    async def is_refused(self, host: str, port: int) -> bool:
        """Over a link that is not open, nothing is refused: no answer arrives."""
        link, real = self._links.get((host, port), (None, (host, port)))
        if link is not None and not link.is_open:
            return False
        return await super().is_refused(*real)


class Network:
    """The links of a cluster, by the numbers of its nodes. Each method returns when the fault is there."""

    def __init__(self, places: list[Place], run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`run` runs a coroutine on the loop of the cluster, and waits for its end."""
        self._places = places
        self._run = run
        self._links: dict[tuple[int, int], Link] = {}

    # -- faults

    def delay(self, one: int, other: int, delay_ms: float) -> None:
        """What two nodes send each other arrives later by `delay_ms`; 0 ends that."""
        for link in self._between([one], [other]):
            link.delay_s = delay_ms / 1000

    def stall(self, one: int, other: int) -> None:
        """What two nodes send each other does not arrive; no connection breaks."""
        self._set(_State.STALLED, [one], [other])

    def cut(self, one: int, other: int) -> None:
        """The connections between two nodes break, and new ones too."""
        self._set(_State.CUT, [one], [other])

    def partition(self, side: Collection[int], *, breaks: bool = False) -> None:
        """Separate the nodes of `side` from all others: their links stall, or with `breaks` are cut."""
        others = [place.node_id for place in self._places if place.node_id not in side]
        self._set(_State.CUT if breaks else _State.STALLED, side, others)

    def heal(self) -> None:
        """End all faults, delays included."""
        every = [place.node_id for place in self._places]
        for link in self._links.values():
            link.delay_s = 0.0
        self._set(_State.OPEN, every, every)

    def _set(self, state: _State, one: Collection[int], other: Collection[int]) -> None:
        links = self._between(one, other)

        async def set_all() -> None:
            for link in links:
                await link.set_state(state)

        self._run(set_all())

    def _between(self, one: Collection[int], other: Collection[int]) -> list[Link]:
        nodes = {place.node_id for place in self._places}
        unknown = sorted({*one, *other} - nodes)
        if unknown:
            raise ValueError(f"there is no node {unknown[0]}: the cluster has the nodes 1 to {len(nodes)}")
        pairs = ((source, target) for source in one for target in other if source != target)
        return [self._links[pair] for source, target in pairs for pair in ((source, target), (target, source))]

    # -- called by the cluster, on its loop

    async def start(self) -> None:
        """Listen on all links."""
        for place in self._places:
            for other in self._places:
                if other is not place:
                    link = self._links[place.node_id, other.node_id] = Link(place.node_id, other)
                    await link.start()

    async def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            await link.close()

    def host(self, node_id: int) -> RoutedHost:
        """The machine of a node."""
        return RoutedHost(link for (source, _), link in self._links.items() if source == node_id)
