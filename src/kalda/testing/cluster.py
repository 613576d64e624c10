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
import time
import warnings
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from kalda.base.configs.broker import BROKER
from kalda.base.configs.server import unknown_properties
from kalda.base.errors import CallTimeout, ErrorCode, WrongState
from kalda.base.ids import TopicPartition, Uuid, uuid_to_text
from kalda.broker.process.disk import RealDisk
from kalda.broker.process.node import Node, StartError
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.group_values import Group
from kalda.client.admin.topics import NewTopic
from kalda.client.consumer.consumer import Consumer
from kalda.client.producer.producer import Producer
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record
from kalda.testing import layout
from kalda.testing.network import Network

if TYPE_CHECKING:
    from kalda.client.admin.group_values import Group
    from kalda.clientcore.producing.producer_batch import RecordMetadata
    from kalda.metadata.image import MetadataImage
    from kalda.records.consuming import Record
    from kalda.replication.partition import Partition
    from kalda.testing.layout import ClusterSecurity

T = TypeVar("T")
_READY_S = 30.0
_POLL_S = 0.002


class Cluster:
    """A cluster of combined brokers and controllers. Nodes are numbered from 1.

    ```python
    with Cluster(nodes=1, config={"log.segment.bytes": 1048576}) as cluster:
        cluster.create_topic("orders", partitions=3)
        print(cluster.bootstrap_servers)
    ```
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        node_configs: Mapping[int, Mapping[str, object]] | None = None,
        directory: str | Path | None = None,
        network_faults: bool = False,
        security: str = "PLAINTEXT",
        users: Mapping[str, str] | None = None,
    ) -> None:
        """`config` overrides properties of all nodes, `node_configs` those of one. A given `directory` is kept;
        without one, the data is deleted by `stop`. With `network_faults`, the nodes and the clients reach
        the nodes through `network`. `security` is the protocol of all listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or
        SASL_SSL. `users`: passwords by name; by default `admin`, who may do everything, and `alice`, with
        the passwords `admin-secret` and `alice-secret`."""
        for each in (config or {}, *(node_configs or {}).values()):
            _warn_of_unknown(each)
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self._first_nodes = nodes
        """The number of nodes that `start` starts."""
        self.cluster_id = uuid_to_text(layout.new_id())
        self.nodes: dict[int, Node] = {}
        """The running nodes."""
        self._config = dict(config or {})
        self._node_configs = {node_id: dict(each) for node_id, each in (node_configs or {}).items()}
        self._given_directory = Path(directory) if directory is not None else None
        self._home = Path()
        self._temporary_directory: str | None = None
        """Made by `start` and deleted by `stop`, where no directory was given."""
        self._places: list[layout.ServerPlace] = []
        self._security: ClusterSecurity | None = None
        """None for PLAINTEXT."""
        if security.upper() != "PLAINTEXT":
            from kalda.testing.layout import ClusterSecurity

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
        self._home = home
        self._places = layout.lay_out(range(1, self._first_nodes + 1), home)
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

    def add_node(self, config: Mapping[str, object] | None = None) -> int:
        """Start a new node, and wait until all running nodes have it unfenced in their metadata; returns its number. It
        is a broker alone, and has no replicas until a topic is created or a partition is moved. `config` overrides its
        properties. Raises `StartError`."""
        node_id = len(self._places) + 1
        if config:
            _warn_of_unknown(config)
            self._node_configs[node_id] = {**self._node_configs.get(node_id, {}), **config}
        self._run(self._add(node_id))
        return node_id

    @property
    def network(self) -> Network:
        """The network between the nodes, and between them and their clients, whose faults a test sets and heals."""
        if self._network is None:
            raise WrongState("the cluster was made without network_faults=True, or is not running")
        return self._network

    # -- clients

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes, running or not."""
        return ",".join(f"{layout.HOST}:{place.advertised_port}" for place in self._places)

    def address(self, node_id: int) -> str:
        """One node's address."""
        return f"{layout.HOST}:{self._place(node_id).advertised_port}"

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

    def _quiet_config(self) -> dict[str, object]:
        return {**self.client_config(), "enable.metrics.push": False}

    def _admin(self) -> Admin:
        return Admin(self._quiet_config())

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

    # -- records and groups

    def produce(
        self,
        topic: str,
        records: Iterable[bytes | str | tuple[bytes | str | None, bytes | str | None] | None],
        *,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """Send values, or pairs of a key and a value, and wait until all are acknowledged. Text is encoded as UTF-8.
        Raises `KafkaError`."""

        return produce(self._quiet_config(), topic, records, partition)

    def consume_all(self, topic: str, *, timeout: float = 30.0) -> list[Record]:
        """All records that the topic has now, by partition and offset, without those of aborted and open transactions.
        Raises `CallTimeout` after `timeout` seconds."""

        return consume_all(self._quiet_config(), topic, timeout, self._run(self._written(topic)))

    def wait_for_group(
        self, group_id: str, *, members: int = 1, max_lag: int | None = None, timeout: float = 30.0
    ) -> Group:
        """Wait until a group is stable with that many members, or with 0 is empty, and where `max_lag` is given has
        committed offsets, with at most so many records behind them; returns it. Raises `CallTimeout` after `timeout`
        seconds."""

        return wait_for_group(self._quiet_config(), group_id, members, max_lag, timeout)

    # -- on the loop

    async def _written(self, topic: str) -> dict[TopicPartition, int]:
        """The last stable offset of each partition, at the leader that the newest image names."""

        def leads_its_own(node: Node) -> bool:
            led = [each for each in self._partitions(topic) if self._leader(*each) == node.config.node_id]
            return all(_led(node, each) is not None for each in led)

        await self._until(leads_its_own, f"the leaders of {topic} lead")
        ends = {}
        for partition in self._partitions(topic):
            node = self.nodes.get(self._leader(*partition))
            leader = None if node is None else _led(node, partition)
            if leader is not None:
                ends[partition] = leader.readable_end(read_committed=True)
        return ends

    def _partitions(self, topic: str) -> list[TopicPartition]:
        """By the newest image of all nodes."""
        found = self._newest_image().topics.by_name.get(topic)
        return [] if found is None else [TopicPartition(topic, index) for index in found.partitions]

    def _newest_image(self) -> MetadataImage:
        return max((node.image for node in self.nodes.values()), key=lambda image: image.offset)

    def _leader(self, topic: str, partition: int) -> int:
        """By the newest image of all nodes."""
        found = self._newest_image().topics.by_name.get(topic)
        return -1 if found is None or partition not in found.partitions else found.partitions[partition].leader

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise WrongState("the cluster is not running")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def _start_all(self) -> None:
        if self._has_network:
            self._network = Network(self._run)
            self._places = [await self._network.add(place) for place in self._places]
        for place in self._places:
            self._format(place)
        try:
            async with asyncio.TaskGroup() as starts:  # where one fails, the others are stopped
                for place in self._places:
                    starts.create_task(self._start(place))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        await self._wait_until_all_unfenced()

    def _format(self, place: layout.ServerPlace) -> None:
        scram = () if self._security is None else self._security.scram_arguments
        layout.format_place(place, self._places, self._config_of(place), self.cluster_id, RealDisk(), scram)

    async def _add(self, node_id: int) -> None:
        [place] = layout.lay_out([node_id], self._home, is_controller=False)
        if self._network is not None:
            place = await self._network.add(place)
        self._places.append(place)
        self._format(place)
        await self._start(place)
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
        self._place(node_id)
        if node_id not in self.nodes:
            raise ValueError(
                f"node {node_id} is not running; those that are: {', '.join(map(str, sorted(self.nodes)))}"
            )
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


def _warn_of_unknown(config: Iterable[str]) -> None:
    """To the caller of the caller: a misspelt key has no effect, and what nodes log is not shown by tests."""
    for name in unknown_properties(config):
        near = BROKER.near(name)
        meant = f"; did you mean {near}?" if near else ""
        warnings.warn(f"property {name} of the nodes is not known{meant}", UserWarning, stacklevel=3)


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
    return all(_led(node, TopicPartition(topic.name, index)) is not None for index in led)


def _led(node: Node, partition: TopicPartition) -> Partition | None:
    """The partition on the node, where the node leads it."""
    found = None if node.replicas is None else node.replicas.find(*partition)
    return found if found is not None and found.is_leader else None


# What tests do with the records and groups of a cluster, over ordinary clients: `Cluster.produce`, `consume_all` and
# `wait_for_group`.

Text: TypeAlias = bytes | str | None
_CLIENTS_POLL_S: Final = 0.02
_STABLE: Final = "Stable"
_EMPTY: Final = "Empty"
_NOT_YET: Final = frozenset(
    (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce(
    config: Mapping[str, object],
    topic: str,
    records: Iterable[Text | tuple[Text, Text]],
    partition: int | None,
) -> list[RecordMetadata]:
    """Sends values, or pairs of a key and a value, and waits until all are acknowledged."""
    with Producer(config) as producer:
        futures = []
        for each in records:
            key, value = each if isinstance(each, tuple) else (None, each)
            futures.append(producer.send(topic, _bytes(value), key=_bytes(key), partition=partition))
        producer.flush()
        return [future.result() for future in futures]


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def consume_all(
    config: Mapping[str, object], topic: str, timeout_s: float, written: Mapping[TopicPartition, int]
) -> list[Record]:
    """All committed records that the topic has now, by partition and offset: those before the offsets `written`, and
    what a broker has beyond. A leader that was separated answers with its own end until it has the metadata of the next
    one."""
    deadline_s = time.monotonic() + timeout_s
    with Admin(config) as admin:
        topics = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, each.partition) for each in topics.value(topic).partitions]
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        left = {each: max(end, written.get(each, 0)) for each, end in consumer.end_offsets(*partitions).items()}
        found: list[Record] = []
        while left := {each: end for each, end in left.items() if consumer.position(each) < end}:
            if time.monotonic() >= deadline_s:
                raise CallTimeout(f"not within {timeout_s:.0f} s: all of {topic} is read; left are {_named(left)}")
            found += consumer.poll(timeout=0.1)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _named(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{partition} up to {end}" for partition, end in offsets.items())


def wait_for_group(
    config: Mapping[str, object], group_id: str, members: int, max_lag: int | None, timeout_s: float
) -> Group:
    """Waits until the group is stable with that many members, and its lag is at most `max_lag`."""
    deadline_s = time.monotonic() + timeout_s
    with Admin(config) as admin:
        while True:
            seen = "there is no such group"
            found = admin.describe_groups([group_id])
            error = found.errors.get(group_id)
            if error is None:
                group = found.value(group_id)
                is_there = group.state == (_STABLE if members else _EMPTY) and len(group.members) == members
                lag = _lag(admin, group_id) if is_there and max_lag is not None else 0
                if is_there and lag is not None and lag <= (max_lag or 0):
                    return group
                seen = f"it is {group.state} with {len(group.members)} members"
                if is_there:
                    seen += " and has committed nothing" if lag is None else f" and a lag of {lag}"
            elif error.code not in _NOT_YET:
                raise error
            if time.monotonic() >= deadline_s:
                lagging = "" if max_lag is None else f" and a lag of at most {max_lag}"
                raise CallTimeout(
                    f"not within {timeout_s:.0f} s: group {group_id} has {members} members{lagging}; {seen}"
                )
            time.sleep(_CLIENTS_POLL_S)


def _lag(admin: Admin, group_id: str) -> int | None:
    """The records behind the committed offsets; None where nothing is committed."""
    committed = admin.list_group_offsets(group_id).check()
    if not committed:
        return None
    ends = admin.list_offsets(dict.fromkeys(committed, OffsetSpec.LATEST)).check()
    return sum(ends.value(each).offset - committed.value(each).offset for each in committed)
