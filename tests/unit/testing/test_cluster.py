"""The embedded cluster with librdkafka and with an asyncio client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.node import StartError
from kalda.client.cluster import ClusterClient
from kalda.testing import Cluster

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
    with pytest.raises(ValueError, match="node 2"):
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


def test_three_brokers_have_each_other_in_their_metadata() -> None:
    with Cluster(brokers=3) as cluster:
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


def test_the_session_has_a_cluster(kalda_cluster: Cluster) -> None:
    kalda_cluster.create_topic("shared")
    produce(kalda_cluster, "shared", [b"x"])
    assert consume(kalda_cluster, "shared", 1, "shared") == [b"x"]


def topics(cluster: Cluster) -> set[str]:
    with ClusterClient(cluster.bootstrap_servers) as client:
        return set(client.metadata().topics)


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
