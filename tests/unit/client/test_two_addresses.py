"""A name with several addresses, as `localhost` is on most machines, of which some take no connections; and what a
client does that cannot reach any broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_world import Cluster, Member
from harness.blocking import BlockingConnection
from model_cluster import World
from scripted_broker import AcknowledgingBroker

from kalda import Admin, Consumer, Producer, aio
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.connections import Close, Connect, ConnectionConfig, Connections, SocketAddress, Write
from kalda.clientcore.connections.errors import Backoff
from kalda.clientcore.connections.metadata import Broker
from kalda.network.client.client import Reach, RpcClient, RpcPolicy
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import decode_request_header, encode_response
from kalda.protocol.messages.metadata import ApiVersion, ApiVersionsResponse, MetadataRequest

TIMEOUT_S = 20
NAME = "two.kalda.test"
REFUSES, ACCEPTS = "127.0.0.2", "127.0.0.1"


class Names:
    """The resolver of this process, with `NAME`."""

    def __init__(self) -> None:
        self.addresses = [REFUSES, ACCEPTS]
        self.lookups = 0
        self._real = socket.getaddrinfo

    def resolve(self, host: Any, port: Any, *options: Any, **keys: Any) -> Any:
        if host != NAME:
            return self._real(host, port, *options, **keys)
        if keys.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        self.lookups += 1
        return [found for address in self.addresses for found in self._real(address, port, *options, **keys)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.resolve)
    return made


@pytest.fixture
def broker() -> Iterator[AcknowledgingBroker]:
    with AcknowledgingBroker() as made:
        made.host = NAME
        yield made


def produce(servers: str) -> None:
    with Producer(bootstrap_servers=servers, enable_idempotence=False, max_block_ms=TIMEOUT_S * 1000) as producer:
        producer.send("t", b"v").result(TIMEOUT_S)


def produce_on_a_loop(servers: str) -> None:
    async def run() -> None:
        async with aio.Producer(bootstrap_servers=servers, enable_idempotence=False) as producer:
            async with asyncio.timeout(TIMEOUT_S):
                await (await producer.send("t", b"v"))

    asyncio.run(run())


def list_topics_by_consumer(servers: str) -> None:
    with Consumer(bootstrap_servers=servers) as consumer:
        assert list(consumer.list_topics(timeout=TIMEOUT_S)) == ["t"]


def list_topics_by_consumer_on_a_loop(servers: str) -> None:
    async def run() -> None:
        async with aio.Consumer(bootstrap_servers=servers) as consumer:
            assert list(await consumer.list_topics(timeout=TIMEOUT_S)) == ["t"]

    asyncio.run(run())


def list_topics_by_admin(servers: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        assert list(admin.list_topics(timeout=TIMEOUT_S)) == ["t"]


def list_topics_by_admin_on_a_loop(servers: str) -> None:
    async def run() -> None:
        async with aio.Admin(bootstrap_servers=servers) as admin:
            assert list(await admin.list_topics(timeout=TIMEOUT_S)) == ["t"]

    asyncio.run(run())


def ask_by_blocking_connection(servers: str) -> None:
    host, _, port = servers.partition(":")
    with BlockingConnection(host, int(port)) as connection:
        assert connection.request(MetadataRequest()).cluster_id == "scripted"


def ask_by_rpc(servers: str) -> None:
    host, _, port = servers.partition(":")

    async def run() -> None:
        client = RpcClient(host, int(port), RpcPolicy(), Reach(lambda: 0.5))
        for _ in range(2):
            connection = await client.connection()
            assert (await connection.request(MetadataRequest())).cluster_id == "scripted"
            connection.close()
        client.close()

    asyncio.run(run())


@pytest.mark.parametrize("addresses", [[REFUSES, ACCEPTS], [ACCEPTS, REFUSES], [REFUSES, "127.0.0.3", ACCEPTS]])
@pytest.mark.parametrize(
    "use",
    [
        produce,
        produce_on_a_loop,
        list_topics_by_consumer,
        list_topics_by_consumer_on_a_loop,
        list_topics_by_admin,
        list_topics_by_admin_on_a_loop,
        ask_by_blocking_connection,
        ask_by_rpc,
    ],
)
def test_an_address_that_refuses_costs_one_attempt(
    broker: AcknowledgingBroker, names: Names, use: Callable[[str], None], addresses: list[str]
) -> None:
    names.addresses = addresses
    use(f"{NAME}:{broker.port}")
    assert names.lookups <= 3  # one for each connection: to the bootstrap server, and to the node that it names


def test_eight_producers_at_a_time_send(broker: AcknowledgingBroker, names: Names) -> None:
    for _ in range(8):
        produce(f"{NAME}:{broker.port}")
    assert names.lookups <= 2 * 8


def test_the_next_attempt_of_a_node_begins_behind_an_address_that_does_not_answer(
    broker: AcknowledgingBroker, names: Names
) -> None:
    names.addresses = [REFUSES, ACCEPTS]
    tried: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        connect, waits = loop.create_connection, asyncio.Event()

        async def recorded(make: Any, host: str, port: int, **options: Any) -> Any:
            tried.append(host)
            if host == REFUSES:
                waits.set()
                await asyncio.Event().wait()
            return await connect(make, host, port, **options)

        loop.create_connection = recorded  # type: ignore[method-assign,assignment]
        client = RpcClient(NAME, broker.port, RpcPolicy(), Reach(lambda: 0.5))
        attempt = asyncio.ensure_future(client.connection())
        await waits.wait()
        attempt.cancel()
        for _ in range(2):
            (await client.connection()).close()
        client.close()

    asyncio.run(run())
    assert tried == [REFUSES, ACCEPTS, ACCEPTS]


# -- the connections, without sockets

FIRST: SocketAddress = (socket.AF_INET6, ("::1", 1, 0, 0))
SECOND: SocketAddress = (socket.AF_INET, ("127.0.0.1", 1))
THIRD: SocketAddress = (socket.AF_INET, ("127.0.0.2", 1))


class Shell:
    """Carries actions out by hand."""

    def __init__(self, *targets: SocketAddress) -> None:
        self.connections = Connections(ConnectionConfig("c", "1", Backoff(50, 1_000, lambda: 0.5)))
        self.connections.set_nodes({1: Broker(1, "two", 1, None)}, 0)
        self.targets = targets
        self.tried: list[SocketAddress] = []
        self.connection_id = 0
        self.requests: list[memoryview] = []

    def act(self) -> None:
        for action in self.connections.take_actions():
            if isinstance(action, Connect) and action.target is None:
                self.connections.on_resolved(action.connection_id, self.targets)
                self.act()
            elif isinstance(action, Connect):
                assert action.target is not None
                self.tried.append(action.target)
                self.connection_id = action.connection_id
            elif isinstance(action, Write):
                self.requests.append(memoryview(b"".join(action.buffers))[4:])
            else:
                assert isinstance(action, Close)

    def connect(self, now_ms: int) -> None:
        assert not self.connections.is_ready(1, now_ms)
        self.act()

    def refuse(self, now_ms: int) -> None:
        self.connections.on_connect_failed(self.connection_id, "refused", now_ms)
        self.act()

    def accept(self, now_ms: int) -> None:
        self.connections.on_connected(self.connection_id, now_ms)
        self.act()

    def list_versions(self, now_ms: int, api_key: ApiKey = ApiKey.METADATA) -> None:
        header = decode_request_header(bytes(self.requests.pop()))
        answer = ApiVersionsResponse(api_keys=[ApiVersion(api_key=api_key, min_version=0, max_version=12)])
        frame = b"".join(encode_response(header.correlation_id, answer, header.api_version))
        self.connections.on_frame(self.connection_id, memoryview(frame), now_ms)
        self.act()


def test_a_node_has_failed_when_all_its_addresses_have() -> None:
    shell = Shell(FIRST, SECOND)
    shell.connect(0)
    shell.refuse(1)
    assert shell.tried == [FIRST, SECOND]
    assert shell.connections.is_reachable(1, 1)
    shell.refuse(2)
    assert not shell.connections.is_reachable(1, 51)
    assert shell.connections.ready_at_ms(1, 2) == 52


def test_an_address_that_does_not_answer_is_followed_by_the_next() -> None:
    shell = Shell(FIRST, SECOND)
    shell.connect(0)
    shell.connections.run(10_000)
    shell.act()
    assert shell.tried == [FIRST, SECOND]
    assert shell.connections.deadline_ms(10_000) == 20_000


def test_an_address_at_which_another_program_listens_is_followed_by_the_next() -> None:
    shell = Shell(FIRST, SECOND, THIRD)
    refusals: list[object] = []
    shell.connections.on_refused = refusals.append
    shell.connect(0)
    shell.accept(1)
    shell.connections.on_lost(shell.connection_id, "closed", 2)
    shell.act()
    shell.accept(3)
    shell.connections.on_frame(shell.connection_id, memoryview(b"HTTP/1.1 400"), 4)
    shell.act()
    shell.accept(5)
    shell.list_versions(6)
    assert shell.tried == [FIRST, SECOND, THIRD]
    assert shell.connections.is_ready(1, 6)
    assert not refusals


def test_the_backoff_of_a_node_that_is_no_broker_counts_from_its_answer() -> None:
    shell = Shell(FIRST)
    shell.connect(0)
    shell.accept(1)
    shell.list_versions(500, ApiKey.VOTE)
    assert shell.connections.ready_at_ms(1, 500) == 550


def test_the_address_that_has_worked_is_tried_first() -> None:
    shell = Shell(FIRST, SECOND)
    shell.connect(0)
    shell.refuse(1)
    shell.accept(2)
    shell.list_versions(3)
    shell.connections.on_lost(shell.connection_id, "closed", 4)
    shell.connect(100)
    assert shell.tried == [FIRST, SECOND, SECOND]
    shell.refuse(101)
    assert shell.tried == [FIRST, SECOND, SECOND, FIRST]


def test_a_name_that_is_not_found_any_more_has_no_address() -> None:
    shell = Shell(FIRST, SECOND)
    shell.connect(0)
    shell.accept(1)
    shell.list_versions(2)
    shell.connections.on_lost(shell.connection_id, "closed", 3)
    assert not shell.connections.is_ready(1, 100)
    (_, resolve) = shell.connections.take_actions()
    assert isinstance(resolve, Connect)
    shell.connections.on_connect_failed(resolve.connection_id, "no such name", 101)
    shell.act()
    assert shell.tried == [FIRST]
    assert not shell.connections.is_reachable(1, 101)


def test_a_node_that_comes_back_goes_on_with_its_backoff() -> None:
    shell = Shell(FIRST)
    shell.connect(0)
    shell.refuse(1)
    shell.connections.set_nodes({}, 2)
    shell.connections.set_nodes({1: Broker(1, "two", 1, None)}, 3)
    assert not shell.connections.is_reachable(1, 50)
    shell.connect(51)
    shell.refuse(52)
    assert shell.connections.ready_at_ms(1, 52) == 152
    shell.connections.set_nodes({1: Broker(1, "elsewhere", 1, None)}, 53)
    assert shell.connections.is_reachable(1, 53)


# -- only the bootstrap server can be reached, and not by the address that it names


def test_a_producer_returns_to_the_bootstrap_servers_less_often_each_time() -> None:
    world = World(partitions=1, brokers=2)
    world.partitions[0].leader = 1
    world.nodes = [1]
    world.down.add(1)
    world.send(b"v")
    world.run(20_000)
    assert 5 <= sum(key is ApiKey.METADATA for _, key, _ in world.requests) <= 60
    world.down.clear()
    world.run_until_idle(5_000)
    assert world.values == [b"v"]


def test_a_consumer_returns_to_the_bootstrap_servers_less_often_each_time() -> None:
    cluster = Cluster(brokers=2)
    cluster.add_topic("t", 1)
    cluster.logs[TopicPartition("t", 0)].leader = 1
    cluster.brokers, cluster.lists_dead = [1], True
    cluster.down.add(1)
    member = Member(cluster, **{"bootstrap.servers": "n0:1"}).assign(("t", 0))
    member.poll(20_000)
    assert 5 <= sum(key is ApiKey.METADATA for _, key, _ in cluster.requests) <= 60
    cluster.down.clear()
    cluster.append("t", 0, b"v")
    assert [record.value for record in member.poll(5_000)] == [b"v"]


def test_a_client_that_reaches_no_node_says_so_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    shell = Shell((socket.AF_INET, ("127.0.0.1", 1)))
    now_ms = 0

    def warned_until(end_ms: int) -> list[str]:
        nonlocal now_ms
        caplog.clear()
        while now_ms < end_ms:
            shell.connect(now_ms)
            shell.refuse(now_ms)
            now_ms += 1_000
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert warned_until(3_000) == []
    (message,) = warned_until(30_000)
    assert "c: no node was reached for 3 s: " in message
    assert "refused" in message
    (again,) = warned_until(40_000)
    assert "for 33 s" in again
    shell.connect(now_ms)
    shell.accept(now_ms)
    shell.list_versions(now_ms)
    shell.connections.on_lost(shell.connection_id, "gone", now_ms)
    shell.act()
    now_ms += 1_000
    assert warned_until(now_ms + 2_500) == []
