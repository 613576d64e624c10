"""Transactions of real clients: confluent-kafka (librdkafka), aiokafka (the oldest versions only), kafka-python."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode
from node_cluster import NodeCluster

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]
WAIT_S = 30
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


def made(bootstrap: str, name: str, partitions: int = 2) -> None:
    """Create a topic and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(WAIT_S)


def producer_of(bootstrap: str, transactional_id: str, **settings: Any) -> confluent_kafka.Producer:
    """A producer that has fenced its predecessors."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **settings}
    )
    producer.init_transactions(WAIT_S)
    return producer


def send(producer: confluent_kafka.Producer, topic: str, values: Iterator[str] | list[str] | range, name: str) -> None:
    """Produce records to two partitions in turn, each `name` and a number."""
    for number in values:
        producer.produce(topic, f"{name} {number}".encode(), partition=int(number) % 2)
    assert producer.flush(WAIT_S) == 0


def visible(bootstrap: str, topic: str, isolation: str = "read_committed", partitions: int = 2) -> list[str]:
    """All values that a consumer of that isolation sees, sorted, up to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
        values, ended, deadline = [], set(), time.monotonic() + WAIT_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{len(ended)} partitions have ended, with {values}"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value().decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return sorted(values)
    finally:
        consumer.close()


def waited_for(check: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    """Until `check` holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


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
    committed: dict[str, list[str]] = {}
    stop = threading.Event()

    def run(name: str) -> None:
        producer = producer_of(trio.addresses, f"{topic}-{name}")
        number = 0
        while not stop.is_set():
            number += 1
            values = [f"{name}.{number} {index}" for index in range(2)]
            try:
                producer.begin_transaction()
                for index, value in enumerate(values):
                    producer.produce(topic, value.encode(), partition=index)
                commit_or_abort(producer)
            except confluent_kafka.KafkaException as failure:
                if failure.args[0].fatal():
                    producer = producer_of(trio.addresses, f"{topic}-{name}")
                continue
            committed.setdefault(name, []).extend(values)

    threads = [threading.Thread(target=run, args=(f"p{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    try:
        for node in trio.nodes.values():
            before = sum(map(len, committed.values()))
            waited_for(lambda before=before: sum(map(len, committed.values())) > before + 20, "commits", 60)
            node.kill()
            before = sum(map(len, committed.values()))
            waited_for(lambda before=before: sum(map(len, committed.values())) > before + 20, "commits", 60)
            node.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    seen = set(visible(trio.addresses, topic))
    assert {value for values in committed.values() for value in values} <= seen
    halves = {value.rsplit(" ", 1)[0] for value in seen}
    assert seen == {f"{half} {index}" for half in halves for index in range(2)}, "a transaction is visible in part"


def commit_or_abort(producer: confluent_kafka.Producer) -> None:
    """Commit, trying again for as long as the client allows it. Raises where the transaction was aborted."""
    while True:
        try:
            producer.commit_transaction(WAIT_S)
        except confluent_kafka.KafkaException as failure:
            error = failure.args[0]
            if error.retriable():
                continue
            if error.txn_requires_abort():
                producer.abort_transaction(WAIT_S)
            raise
        return


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
        for number, is_committed in enumerate([True, False, True]):
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
    waited_for(lambda: visible(bootstrap, topic) == ["0 0", "0 1", "2 0", "2 1"], "the commits")
