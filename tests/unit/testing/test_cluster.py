"""The embedded cluster with librdkafka and with an asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from kalda import CallTimeout, Consumer, Producer
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.broker.process.node import Node, StartError
from kalda.cli.common.command_admin import CommandAdmin
from kalda.testing import Cluster, plugin
from kalda.testing.cluster import consume_all
from waiting import wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def lone() -> Iterator[Cluster]:
    with Cluster(config={"num.partitions": 3}) as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def consume(cluster: Cluster, topic: str, count: int, group: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, TIMEOUT_S)]
    finally:
        consumer.close()


def test_records_come_back(lone: Cluster) -> None:
    lone.create_topic("orders")
    produce(lone, "orders", [b"a", b"b", b"c"])
    assert consume(lone, "orders", 3, "readers") == [b"a", b"b", b"c"]


def test_properties_are_overridden(lone: Cluster) -> None:
    lone.create_topic("wide", partitions=-1)
    assert len(lone.nodes[1].image.topics.by_name["wide"].partitions) == 3


def test_a_topic_that_exists_is_not_created_again(lone: Cluster) -> None:
    lone.create_topic("twice")
    with pytest.raises(ApiError) as refused:
        lone.create_topic("twice")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_nodes_that_do_not_exist_or_are_already_running(lone: Cluster) -> None:
    with pytest.raises(ValueError, match="there is no node 2: the cluster has the nodes 1 to 1"):
        lone.kill_node(2)
    with pytest.raises(StartError, match="already running"):
        lone.start_node(1)


@pytest.mark.parametrize("end", [Cluster.stop_node, Cluster.kill_node])
def test_a_node_comes_back_with_its_records(
    kalda_cluster_factory: Callable[..., Cluster], end: Callable[[Cluster, int], None]
) -> None:
    cluster = kalda_cluster_factory()
    cluster.create_topic("kept")
    produce(cluster, "kept", [b"1", b"2"])
    end(cluster, 1)
    assert cluster.nodes == {}
    cluster.start_node(1)
    produce(cluster, "kept", [b"3"])
    assert consume(cluster, "kept", 3, "after") == [b"1", b"2", b"3"]


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        cluster.create_topic("left")
        directory = cluster.directory(1)
    assert (directory / "left-0").is_dir()
    assert (directory / ".kafka_cleanshutdown").exists()


def test_in_a_coroutine() -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def round_trip() -> bytes:
        async with Cluster() as cluster:
            await asyncio.to_thread(cluster.create_topic, "async")
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                await producer.send_and_wait("async", b"hello")
            async with aiokafka.AIOKafkaConsumer(
                "async", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer:
                value: bytes = (await consumer.getone()).value
                return value

    assert asyncio.run(round_trip()) == b"hello"


def test_a_node_is_added_and_leads() -> None:
    with Cluster() as cluster:
        assert cluster.add_node({"log.segment.bytes": 1_048_576}) == 2
        cluster.create_topic("orders", partitions=2, assignment=[[2, 1], [1, 2]])
        assert cluster.leader("orders") == 2
        assert cluster.nodes[2].config["log.segment.bytes"] == 1_048_576
        cluster.produce("orders", ["a"], partition=0)
        cluster.kill_node(2)
        cluster.start_node(2)
        assert [record.value for record in cluster.consume_all("orders")] == [b"a"]
        assert cluster.bootstrap_servers.count(",") == 1


def test_records_are_produced_and_consumed_at_once(lone: Cluster) -> None:
    lone.create_topic("helped", partitions=2)
    written = lone.produce("helped", [("k", "v"), (b"k", None)], partition=1)
    written += lone.produce("helped", ["value", None], partition=0)
    assert [(each.partition, each.offset) for each in written] == [(1, 0), (1, 1), (0, 0), (0, 1)]
    found = [(each.partition, each.key, each.value) for each in lone.consume_all("helped")]
    assert found == [(0, None, b"value"), (0, None, None), (1, b"k", b"v"), (1, b"k", None)]


def test_records_that_the_leader_has_are_waited_for(lone: Cluster) -> None:
    """A client may ask a leader of before, whose end is another."""
    lone.create_topic("waited")
    partition = TopicPartition("waited", 0)
    assert lone._run(lone._written("waited")) == {partition: 0}
    with ThreadPoolExecutor(1) as one:
        found = one.submit(consume_all, lone.client_config(), "waited", 30.0, {partition: 2})
        lone.produce("waited", ["first", "second"])
        assert [record.value for record in found.result()] == [b"first", b"second"]
    assert lone._run(lone._written("waited")) == {partition: 2}


def test_records_of_an_open_transaction_are_not_consumed(lone: Cluster) -> None:
    lone.create_topic("pending")
    lone.produce("pending", ["before"])
    with Producer({**lone.client_config(), "transactional.id": "open"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("pending", b"open").result()
        assert [each.value for each in lone.consume_all("pending")] == [b"before"]
        producer.abort_transaction()
    assert [each.value for each in lone.consume_all("pending")] == [b"before"]


def test_a_group_is_waited_for(lone: Cluster) -> None:
    lone.create_topic("awaited", partitions=1)
    lone.produce("awaited", ["a", "b"])
    with pytest.raises(CallTimeout, match="group awaited has 1 members; there is no such group"):
        lone.wait_for_group("awaited", timeout=0)
    config = {**lone.client_config(), "group.id": "awaited", "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.subscribe(["awaited"])
        assert len(consumer.poll(TIMEOUT_S)) == 2
        assert len(lone.wait_for_group("awaited").members) == 1
        with pytest.raises(CallTimeout, match="it is Stable with 1 members and has committed nothing"):
            lone.wait_for_group("awaited", max_lag=0, timeout=0)
        consumer.commit({("awaited", 0): 1})
        with pytest.raises(CallTimeout, match="and a lag of 1"):
            lone.wait_for_group("awaited", max_lag=0, timeout=0)
        consumer.commit()
        assert lone.wait_for_group("awaited", max_lag=0).state == "Stable"
    assert lone.wait_for_group("awaited", members=0).state == "Empty"


def test_three_brokers_have_each_other_in_their_metadata() -> None:
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("spread", partitions=3)
        assert all(sorted(node.image.cluster.brokers) == [1, 2, 3] for node in cluster.nodes.values())
        leaders = {p.leader for p in cluster.nodes[1].image.topics.by_name["spread"].partitions.values()}
        assert leaders == {1, 2, 3}


def test_nothing_is_left_running(kalda_cluster_factory: Callable[..., Cluster]) -> None:
    before = threading.active_count()
    cluster = kalda_cluster_factory()
    directory = cluster.directory(1)
    cluster.stop()
    assert threading.active_count() <= before
    assert not directory.exists()
    cluster.stop()


def open_files() -> list[str]:
    """What the descriptors of this process are for. Descriptors that were closed have no name."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(name if name.startswith("/") else name.partition(":")[0] for name in names)


@pytest.fixture
def returned() -> Iterator[None]:
    """All descriptors and threads that a test's clusters had, without a collection of garbage."""
    with Cluster():  # what the process makes once is there afterwards
        pass
    gc.collect()
    files, threads = open_files(), set(threading.enumerate())
    gc.disable()
    try:
        yield
        try:
            wait_until(lambda: set(threading.enumerate()) <= threads, "all threads have ended")
        except AssertionError as error:
            error.add_note(f"these go on: {set(threading.enumerate()) - threads}")
            raise
        left = Counter(open_files()) - Counter(files)  # connections of tests before may have been closed meanwhile
        assert not left
    finally:
        gc.enable()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are listed in /proc, which Linux has")
class TestWhatANodeHas:
    def test_is_returned_by_stop(self, returned: None) -> None:
        for _ in range(2):
            with Cluster() as cluster:
                cluster.create_topic("t", partitions=3)

    def test_is_returned_by_a_kill_and_a_restart(self, returned: None) -> None:
        with Cluster(nodes=3, network_faults=True) as cluster:
            cluster.create_topic("t", partitions=3)
            cluster.kill_node(1)
            cluster.start_node(1)
            cluster.stop_node(2)
            cluster.start_node(2)
            cluster.kill_node(3)

    def test_is_returned_by_a_start_that_fails(self, returned: None) -> None:
        """One node finds its port taken; the others wait for the quorum."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            listener = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
            controller = "CONTROLLER://127.0.0.1:0"
            both = {"listeners": f"{listener},{controller}", "advertised.listeners": f"{listener},{controller}"}
            cluster = Cluster(nodes=3, node_configs={1: both})
            with pytest.raises(StartError, match="in use"):
                cluster.start()

    def test_is_returned_where_a_part_cannot_be_closed(self, returned: None, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = Cluster().start()
        node: Any = cluster.nodes[1]

        async def fail() -> None:
            raise ValueError("cannot be closed")

        close = node.running.broker.close
        monkeypatch.setattr(node.running.broker, "close", fail)
        with pytest.raises(ValueError, match="cannot be closed"):
            cluster.stop()
        asyncio.run(close())  # what the fault has left

    def test_is_nothing_before_its_start(self, returned: None) -> None:
        with Cluster() as cluster:
            config = cluster.nodes[1].config
            before = open_files()
            nodes = [Node(config) for _ in range(3)]
            assert open_files() == before
            del nodes


def test_pytest_finds_the_fixtures_of_an_installed_kalda() -> None:
    assert {each.load() for each in entry_points(group="pytest11", name="kalda")} == {plugin}


def test_the_session_has_a_cluster(kalda_cluster: Cluster) -> None:
    kalda_cluster.create_topic("shared")
    produce(kalda_cluster, "shared", [b"x"])
    assert consume(kalda_cluster, "shared", 1, "shared") == [b"x"]


def topics(cluster: Cluster) -> set[str]:
    with CommandAdmin(cluster.bootstrap_servers) as client:
        return set(client.list_topics(internal=True))


seen_topics: list[str] = []


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_has_a_topic_of_its_own_that_is_deleted_afterwards(
    kalda_cluster: Cluster, kalda_topic: str, run: int
) -> None:
    assert kalda_topic in topics(kalda_cluster)
    assert not topics(kalda_cluster) & set(seen_topics)
    seen_topics.append(kalda_topic)
    assert len(set(seen_topics)) == len(seen_topics)


def test_a_test_may_delete_its_topic_itself(kalda_cluster: Cluster, kalda_topic: str) -> None:
    kalda_cluster.delete_topic(kalda_topic)
    assert kalda_topic not in topics(kalda_cluster)
    with pytest.raises(ApiError, match="does not exist"):
        kalda_cluster.delete_topic(kalda_topic)
