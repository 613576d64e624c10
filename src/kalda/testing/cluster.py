"""The nodes of one cluster, on one thread with a loop of its own, so that blocking and asyncio clients can use them
from the thread of the test.

Every method blocks until it is done. A coroutine uses `async with` and `asyncio.to_thread`, which do not block its
loop.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kalda.base.ids import Uuid, uuid_to_text
from kalda.broker.process.disk import RealDisk
from kalda.broker.process.node import Node, StartError
from kalda.broker.process.shell import Host
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.topics import NewTopic
from kalda.testing import layout
from kalda.testing.layout import HOST, ServerPlace

if TYPE_CHECKING:
    from kalda.testing.security import ClusterSecurity

# Faults of the network between the nodes of a test cluster, on real sockets.
#
# Each node reaches each other node through a *link*: a small TCP proxy on loopback for every port of the other. Every
# node resolves the addresses of the others to its own links (`Host.route`); clients of the cluster use the real ports
# and meet no fault. So a test can slow one link down, or cut it:
#
# - **delayed**: every byte arrives later;
# - **stalled**: no byte arrives, no connection breaks, as where a firewall drops packets. What was sent arrives when
#   the
# - **stalled**: no byte arrives, no connection breaks, as where a firewall drops packets. What was sent arrives when
#   the link is healed, as TCP would send it again;
# - **cut**: connections break, and new ones break too.
#
# A fault between two nodes is on both of their links: that one, and the one the other way.

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

    def __init__(self, source: int, target: ServerPlace) -> None:
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

    def __init__(self, places: list[ServerPlace], run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
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


T = TypeVar("T")
_READY_S = 30.0
_POLL_S = 0.002


class Cluster:
    """A cluster of combined brokers and controllers. Nodes are numbered from 1.

    ```python
    with Cluster(brokers=1, config={"log.segment.bytes": 1048576}) as cluster:
        cluster.create_topic("orders", partitions=3)
        print(cluster.bootstrap_servers)
    ```
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        node_configs: Mapping[int, Mapping[str, object]] | None = None,
        directory: str | Path | None = None,
        network_faults: bool = False,
        security: str = "PLAINTEXT",
        users: Mapping[str, str] | None = None,
    ) -> None:
        """`config` overrides properties of all nodes, `node_configs` those of one. A given `directory` is kept;
        without one, the data is deleted by `stop`. With `network_faults`, the nodes reach each other
        through `network`. `security` is the protocol of all listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or
        SASL_SSL. `users`: passwords by name; by default `admin`, who may do everything, and `alice`, with
        the passwords `admin-secret` and `alice-secret`."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self.brokers = brokers
        self.cluster_id = uuid_to_text(layout.new_id())
        self.nodes: dict[int, Node] = {}
        """The running nodes."""
        self._config = dict(config or {})
        self._node_configs = {node_id: dict(each) for node_id, each in (node_configs or {}).items()}
        self._given_directory = Path(directory) if directory is not None else None
        self._temporary_directory: str | None = None
        """Made by `start` and deleted by `stop`, where no directory was given."""
        self._places: list[layout.ServerPlace] = []
        self._security: ClusterSecurity | None = None
        """None for PLAINTEXT."""
        if security.upper() != "PLAINTEXT":
            from kalda.testing.security import ClusterSecurity

            self._security = ClusterSecurity(security.upper(), users)
        self._has_network = network_faults
        self._network: Network | None = None
        """Between `start` and `stop`, with `network_faults`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # -- start and stop

    def start(self) -> Cluster:
        """Format, start, and wait until every broker has all brokers unfenced in its metadata. Raises `StartError`."""
        assert self._thread is None, "the cluster is already running"
        if self._given_directory is None:
            self._temporary_directory = tempfile.mkdtemp(prefix="kalda-")
        home = self._given_directory or Path(str(self._temporary_directory))
        self._places = layout.lay_out(self.brokers, home)
        if self._security is not None:
            self._security.prepare(home / "certificates", (layout.HOST, "localhost"))
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kalda-cluster", daemon=True)
        self._thread.start()
        try:
            self._run(self._start_all())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all running nodes. Safe to call twice."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._run(self._stop_all())
        finally:
            self._network = None
            self._loop = self._thread = None
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            if self._temporary_directory is not None:
                shutil.rmtree(self._temporary_directory, ignore_errors=True)
                self._temporary_directory = None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Cluster:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # -- nodes

    def stop_node(self, node_id: int) -> None:
        """Stop a node with a controlled shutdown: its leaderships move to other brokers, and its logs are closed."""
        self._run(self._end(node_id, clean=True))

    def kill_node(self, node_id: int) -> None:
        """End a node as SIGKILL would: without a controlled shutdown, a flush or a mark of a clean stop."""
        self._run(self._end(node_id, clean=False))

    def start_node(self, node_id: int) -> None:
        """Start a node that was stopped or killed, and wait until it serves and all running nodes have it unfenced in
        their metadata. Raises `StartError`."""
        self._run(self._start_again(node_id))

    @property
    def network(self) -> Network:
        """The network between the nodes, whose faults a test sets and heals."""
        if self._network is None:
            raise RuntimeError("the cluster was made without network_faults=True, or is not running")
        return self._network

    # -- clients

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, running or not."""
        return ",".join(f"{layout.HOST}:{place.port}" for place in self._places)

    def address(self, node_id: int) -> str:
        """One node's address."""
        return f"{layout.HOST}:{self._place(node_id).port}"

    def directory(self, node_id: int) -> Path:
        """One node's log directory."""
        return Path(self._place(node_id).directory)

    def client_config(
        self, user: str = "admin", mechanism: str = "PLAIN", password: str | None = None
    ) -> dict[str, object]:
        """The keys of a client that is that user: `bootstrap.servers`, and those of TLS and SASL where the cluster has
        them. `password`: another than the user's."""
        more = {} if self._security is None else self._security.client_properties(user, mechanism, password)
        return {"bootstrap.servers": self.bootstrap_servers, **more}

    def _admin(self) -> Admin:
        return Admin({**self.client_config(), "enable.metrics.push": False})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> Uuid:
        """Create a topic, and wait until every running node has it in its metadata and leads its partitions. By default
        it has a replica on each of up to three brokers. Raises `ApiError`."""
        texts = {key: str(value) for key, value in (configs or {}).items()}
        if assignment:
            topic = NewTopic(name, configs=texts, assignment=assignment)
        else:
            topic = NewTopic(name, partitions, replication_factor, texts)
        with self._admin() as admin:
            topic_id = admin.create_topics([topic]).value(name).topic_id
        self._run(self._until(lambda node: _has(node, topic_id), f"every node has topic {name}"))
        return topic_id

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no running node has it in its metadata. Raises `ApiError`."""
        with self._admin() as admin:
            topic_id = admin.describe_topics([name]).value(name).topic_id
            admin.delete_topics([name]).check()
        self._run(self._until(lambda node: topic_id not in node.image.topics.by_id, f"no node has topic {name}"))

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, by the metadata of the active controller; -1 for none."""
        return self._leader(topic, partition)

    def wait_for_leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        """Wait until another node than `other_than` leads a partition; returns it. Raises `StartError`."""
        node_ids = {node_id for node_id in self.nodes if node_id != other_than}

        async def wait() -> None:
            await self._until(lambda _: self._leader(topic, partition) in node_ids, f"{topic}-{partition} has a leader")

        self._run(wait())
        return self._leader(topic, partition)

    # -- on the loop

    def _leader(self, topic: str, partition: int) -> int:
        """By the newest image of all nodes."""
        image = max((node.image for node in self.nodes.values()), key=lambda image: image.offset)
        found = image.topics.by_name.get(topic)
        return -1 if found is None or partition not in found.partitions else found.partitions[partition].leader

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the cluster is not running")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def _start_all(self) -> None:
        if self._has_network:
            self._network = Network(self._places, self._run)
            await self._network.start()
        disk = RealDisk()
        for place in self._places:
            config = self._config_of(place)
            scram = () if self._security is None else self._security.scram_arguments
            layout.format_place(place, self._places, config, self.cluster_id, disk, scram)
        try:
            async with asyncio.TaskGroup() as starts:  # where one fails, the others are stopped
                for place in self._places:
                    starts.create_task(self._start(place))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        await self._wait_until_all_unfenced()

    async def _start(self, place: layout.ServerPlace) -> None:
        host = None if self._network is None else self._network.host(place.node_id)
        node = Node(self._config_of(place), host)
        try:
            await node.start()
        except BaseException:
            await node.stop(clean=False)
            raise
        self.nodes[place.node_id] = node

    async def _start_again(self, node_id: int) -> None:
        if node_id in self.nodes:
            raise StartError(f"node {node_id} is already running")
        await self._start(self._place(node_id))
        await self._wait_until_all_unfenced()

    async def _end(self, node_id: int, clean: bool) -> None:
        if node_id not in self.nodes:
            raise ValueError(f"node {node_id} is not running")
        await self.nodes.pop(node_id).stop(clean=clean)

    async def _stop_all(self) -> None:
        """Stop all nodes at once. Without a majority of the quorum no controlled shutdown succeeds, so only a single
        node is stopped cleanly."""
        is_single = len(self.nodes) == 1
        try:
            ends = [self._end(node_id, clean=is_single) for node_id in list(self.nodes)]
            failures = [each for each in await asyncio.gather(*ends, return_exceptions=True) if each is not None]
        finally:
            if self._network is not None:
                await self._network.close()
        if failures:
            raise failures[0]

    async def _wait_until_all_unfenced(self) -> None:
        """Each node has all running nodes unfenced in its metadata, so that clients get all of them from each."""

        def has_all(node: Node) -> bool:
            brokers = node.image.cluster.brokers
            return all(other in brokers and not brokers[other].fenced for other in self.nodes)

        await self._until(has_all, "every node has all brokers unfenced")

    async def _until(self, holds: Any, condition: str) -> None:
        """Wait until `holds(node)` is true for all running nodes. `condition` is named in the `StartError`."""
        try:
            async with asyncio.timeout(_READY_S):
                while not all(holds(node) for node in self.nodes.values()):  # noqa: ASYNC110 - nodes have no such event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StartError(f"not within {_READY_S:.0f} s: {condition}") from None

    def _config_of(self, place: layout.ServerPlace) -> Any:
        overrides = {**self._config, **self._node_configs.get(place.node_id, {})}
        return layout.config_of(place, self._places, overrides, self._security)

    def _place(self, node_id: int) -> layout.ServerPlace:
        if not 1 <= node_id <= len(self._places):
            raise ValueError(f"there is no node {node_id}: the cluster has the nodes 1 to {len(self._places)}")
        return self._places[node_id - 1]


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _has(node: Node, topic_id: Uuid) -> bool:
    """Whether the node has the topic in its metadata, and leads the partitions that it has to lead."""
    topic = node.image.topics.by_id.get(topic_id)
    if topic is None:
        return False
    led = [index for index, partition in topic.partitions.items() if partition.leader == node.config.node_id]
    replicas = node.replicas
    return not led or (
        replicas is not None
        and all((found := replicas.find(topic.name, index)) is not None and found.is_leader for index in led)
    )
