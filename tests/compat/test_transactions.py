"""Transactions of real clients: confluent-kafka (librdkafka), aiokafka (the oldest versions only), kafka-python."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import NewTopic
from lone_node import LoneNode
from node_cluster import ClusterNode, NodeCluster
from transactional_clients import (
    WAIT_S,
    Committers,
    commit_or_abort,
    made,
    producer_of,
    send,
    visible,
    waited_for,
)

import kalda
from kalda.cli.common.command_admin import CommandAdmin
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.transactions import DescribeTransactionsRequest

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]
SETTINGS: dict[str, object] = {
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Three nodes, whose transactions survive one of them."""
    with NodeCluster(tmp_path_factory.mktemp("trio"), 3, SETTINGS) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(params=["one node", "three nodes"])
def bootstrap(request: pytest.FixtureRequest, node: LoneNode) -> str:
    """The address of a single node, then that of a cluster."""
    if request.param == "one node":
        return node.address
    cluster: NodeCluster = request.getfixturevalue("trio")
    return cluster.addresses


# -- confluent-kafka


def test_commit_and_abort(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("transactions")
    made(bootstrap, topic)
    producer = producer_of(bootstrap, topic)
    for number, is_committed in enumerate([True, False, True, False]):
        producer.begin_transaction()
        send(producer, topic, range(4), f"{number}")
        if is_committed:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    waited_for(
        lambda: visible(bootstrap, topic) == sorted(f"{t} {n}" for t in (0, 2) for n in range(4)), "committed records"
    )
    assert len(visible(bootstrap, topic, "read_uncommitted")) == 16


def test_an_open_transaction_is_not_visible(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("transactions")
    made(bootstrap, topic)
    producer = producer_of(bootstrap, topic)
    producer.begin_transaction()
    send(producer, topic, range(2), "open")
    assert visible(bootstrap, topic) == []
    assert len(visible(bootstrap, topic, "read_uncommitted")) == 2
    producer.commit_transaction(WAIT_S)
    waited_for(lambda: len(visible(bootstrap, topic)) == 2, "the commit")


def test_a_zombie_is_fenced(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("transactions")
    made(bootstrap, topic)
    zombie = producer_of(bootstrap, topic)
    zombie.begin_transaction()
    send(zombie, topic, range(2), "zombie")
    successor = producer_of(bootstrap, topic)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        zombie.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()
    successor.begin_transaction()
    send(successor, topic, range(2), "successor")
    successor.commit_transaction(WAIT_S)
    waited_for(lambda: visible(bootstrap, topic) == ["successor 0", "successor 1"], "the successor's records")


def test_offsets_are_part_of_the_transaction(bootstrap: str, fresh: Fresh) -> None:
    """Consume, transform, produce; aborted once and committed once."""
    source, sink = fresh("source"), fresh("sink")
    made(bootstrap, source)
    made(bootstrap, sink)
    feeder = producer_of(bootstrap, source)
    feeder.begin_transaction()
    send(feeder, source, range(10), "in")
    feeder.commit_transaction(WAIT_S)
    worker = producer_of(bootstrap, sink)
    for is_committed in (False, True):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": sink,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([source])
        worker.begin_transaction()
        taken, deadline = 0, time.monotonic() + WAIT_S
        while taken < 10:
            assert time.monotonic() < deadline, f"{taken} records were consumed"
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            worker.produce(sink, b"out " + message.value(), partition=message.partition())
            taken += 1
        worker.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
        )
        if is_committed:
            worker.commit_transaction(WAIT_S)
        else:
            worker.abort_transaction(WAIT_S)
        consumer.close()
    waited_for(lambda: visible(bootstrap, sink) == sorted(f"out in {n}" for n in range(10)), "every input once")
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": sink})
    committed = reader.committed([confluent_kafka.TopicPartition(source, index) for index in range(2)], WAIT_S)
    assert all(each.offset in (5, 6) for each in committed), "past the records, perhaps past the marker"
    reader.close()


def test_a_transaction_that_times_out_is_aborted(trio: NodeCluster, fresh: Fresh) -> None:
    topic = fresh("transactions")
    made(trio.addresses, topic)
    producer = producer_of(trio.addresses, topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    producer.begin_transaction()
    send(producer, topic, range(2), "late")
    other = producer_of(trio.addresses, f"{topic}-other")
    other.begin_transaction()
    send(other, topic, range(2), "in time")
    other.commit_transaction(WAIT_S)
    waited_for(lambda: visible(trio.addresses, topic) == ["in time 0", "in time 1"], "the end of the late transaction")
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)


def test_the_coordinator_dies_in_the_middle_of_transactions(trio: NodeCluster, fresh: Fresh) -> None:
    """kill -9 of whichever node coordinates, while producers run; every acknowledged commit is visible, whole."""
    topic = fresh("transactions")
    made(trio.addresses, topic)
    with Committers(trio.addresses, topic, 4) as committers:
        for node in trio.nodes.values():
            committers.wait_progress()
            node.kill()
            committers.wait_progress()
            node.start()
        committers.wait_progress()
    committers.check()


def test_the_coordinator_dies_before_the_last_marker(trio: NodeCluster, fresh: Fresh) -> None:
    """The outcome is decided, but the leader of a partition is stopped; then the coordinator is killed. Its successor
    writes the marker."""
    topic = fresh("transactions")
    producer = producer_of(trio.addresses, topic)
    coordinator = trio.leader("__transaction_state", coordinator_partition(topic, 4))
    stopped, other = (node for node in trio.nodes.values() if node is not coordinator)
    for name, leader in ((f"{topic}-reached", other), (f"{topic}-missed", stopped)):
        new = NewTopic(name, 1, replica_assignment=[[leader.node_id]], config={"min.insync.replicas": "1"})
        trio.admin.create_topics([new])[name].result(WAIT_S)
    producer.begin_transaction()
    for name in ("reached", "missed"):
        producer.produce(f"{topic}-{name}", name.encode(), partition=0)
    assert producer.flush(WAIT_S) == 0

    def remaining(node: ClusterNode) -> tuple[str, list[str]]:
        """The state, and the topics that lack their marker."""
        with node.client() as client:
            found = client.request(DescribeTransactionsRequest(transactional_ids=[topic])).transaction_states[0]
        return found.transaction_state, [each.topic for each in found.topics]

    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        commit_or_abort(producer)
        missed = ("PrepareCommit", [f"{topic}-missed"])
        waited_for(lambda: remaining(coordinator) == missed, "one marker is missing")
        coordinator.kill()
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    done = ("CompleteCommit", [])
    waited_for(lambda: done in map(remaining, (stopped, other)), "the successor has completed it", 2 * WAIT_S)
    for name in ("reached", "missed"):
        assert visible(trio.addresses, f"{topic}-{name}", partitions=1) == [name]
    coordinator.start()


def test_the_feature_changes_while_transactions_are_open(trio: NodeCluster, fresh: Fresh) -> None:
    """transaction.version goes down and up again: clients of both versions lose nothing, and see nothing in part."""
    topic, stop, committed = fresh("transactions"), threading.Event(), []
    made(trio.addresses, topic)

    def run() -> None:
        """A producer of version 2, where the cluster has it."""
        number = 0
        with kalda.Producer(bootstrap_servers=trio.addresses, transactional_id=f"{topic}-kalda") as producer:
            while not stop.is_set():
                number += 1
                values = [f"kalda.{number} {index}" for index in range(2)]
                with producer.transaction():
                    for index, value in enumerate(values):
                        producer.send(topic, value.encode(), partition=index)
                committed.extend(values)

    thread = threading.Thread(target=run)
    with Committers(trio.addresses, topic, 2) as committers, CommandAdmin(trio.addresses) as cluster:
        thread.start()
        for level in (1, 0, 2, 0, 1, 2):
            finalize(cluster, level)
            committers.wait_progress(5)
            before = len(committed)
            waited_for(lambda before=before: len(committed) > before + 10, f"commits at level {level}")  # type: ignore[misc]
        stop.set()
        thread.join(WAIT_S)
    committers.check()
    assert set(committed) <= set(visible(trio.addresses, topic))


def finalize(admin: CommandAdmin, level: int) -> None:
    """Change transaction.version, whichever way that is."""
    (now,) = (each.finalized for each in admin.describe_features().features if each.name == "transaction.version")
    way = UpgradeType.UPGRADE if level > now else UpgradeType.SAFE_DOWNGRADE
    admin.update_features({"transaction.version": level}, upgrade_type=way)


# -- aiokafka


def test_aiokafka(bootstrap: str, fresh: Fresh) -> None:
    """Commit, abort, offsets, fencing; all in version 0 of the APIs of transactions."""
    topic = fresh("aiokafka")
    made(bootstrap, topic)

    async def scenario() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"committed 0", partition=0)
                await producer.send_and_wait(topic, b"committed 1", partition=1)
                offsets = {aiokafka.TopicPartition(topic, 0): 1}
                await producer.send_offsets_to_transaction(offsets, f"{topic}-group")
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"aborted", partition=0)
                    raise ZeroDivisionError
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"fenced", partition=0)
            async with (
                aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as successor,
                successor.transaction(),
            ):
                await successor.send_and_wait(topic, b"successor", partition=1)
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await producer.commit_transaction()
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=f"{topic}-group", enable_auto_commit=False
        ) as consumer:
            assert await consumer.committed(aiokafka.TopicPartition(topic, 0)) == 1

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
    waited_for(lambda: visible(bootstrap, topic) == ["committed 0", "committed 1", "successor"], "the commits")


# -- kafka-python


def test_kafka_python(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("kafka-python")
    made(bootstrap, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for number, is_committed in enumerate([True, True, False]):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(topic, f"{number} {partition}".encode(), partition=partition)
            producer.send_offsets_to_transaction(
                {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(number + 1, "", -1)}, f"{topic}-group"
            )
            if is_committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(WAIT_S)
    waited_for(lambda: visible(bootstrap, topic) == ["0 0", "0 1", "1 0", "1 1"], "the commits")
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=f"{topic}-group", enable_auto_commit=False)
    try:
        assert consumer.committed(kafka.TopicPartition(topic, 0)) == 2, "that of the last commit, not of the abort"
    finally:
        consumer.close()
