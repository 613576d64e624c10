"""A node that is killed (SIGKILL) again and again while clients go on: what was acknowledged stays, once and in order.

The page cache outlives a process, so nothing that the node wrote is lost; what is tried here is that it had written
everything it acknowledged, and that it understands what it left half done. For what a loss of power leaves, see
`tests/sim`. `KALDA_CRASH_ROUNDS` sets how often the node is killed.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode

pytestmark = pytest.mark.compat

ROUNDS = int(os.environ.get("KALDA_CRASH_ROUNDS", "5"))
PARTITIONS = 3
SETTINGS = {
    # Everything that runs now and then, runs often enough to be killed in the middle.
    "log.initial.task.delay.ms": 50,
    "log.retention.check.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "metadata.log.segment.bytes": 8 << 20,
}
PADDING = b" " + bytes(random.Random(1).randbytes(500))


def number_of(value: bytes) -> int:
    """Which record this is."""
    return int(value.partition(b" ")[0])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    with LoneNode(tmp_path, SETTINGS) as made:
        made.format()
        yield made


def create(node: LoneNode, name: str, partitions: int = PARTITIONS, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([topic])[name].result(30)


class Writer:
    """An idempotent producer that is always a little ahead of what is waited for; it keeps what it was told is safe."""

    AHEAD = 400

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.failures: list[KafkaError] = []
        self.count = 0
        self._allowed = self.AHEAD
        self._progress = threading.Condition()
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            while number >= self._allowed and not self._stop.is_set():
                self._producer.poll(0.02)
            if self._stop.is_set():
                break
            value = b"%d" % number + PADDING
            self._producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=self._told)
            self._producer.poll(0)
        self._producer.flush(60)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        with self._progress:
            if error is not None:
                self.failures.append(error)
            else:
                value, partition = message.value(), message.partition()
                assert value is not None
                assert partition is not None
                self.acknowledged[partition].append(number_of(value))
                self.count += 1
            self._progress.notify_all()

    def wait_for(self, count: int) -> None:
        """Until that many more records are acknowledged."""
        with self._progress:
            goal = self.count + count
            self._allowed = goal + self.AHEAD
            assert self._progress.wait_for(lambda: self.count >= goal or self.failures, 60), "no progress"
        assert not self.failures, self.failures[:3]

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        assert not self.failures, self.failures[:3]


def read_all(node: LoneNode, topic: str, partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """Every record's value, by partition, from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    consumer.assign([TopicPartition(topic, index, 0) for index in found])
    left = set(found)
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"partitions {left} have no end"
        for message in consumer.consume(1000, 1):
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error)
    consumer.close()
    return found


def commit(node: LoneNode, group: str, offsets: list[TopicPartition]) -> None:
    """Commit, and return only when the node has said yes."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group, "enable.auto.commit": False})
    for each in consumer.commit(offsets=offsets, asynchronous=False):
        assert each.error is None
    consumer.close()


def committed(node: LoneNode, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group, "enable.auto.commit": False})
    found = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 30)
    consumer.close()
    return {each.partition: each.offset for each in found}


def test_what_was_acknowledged_stays_once_and_in_order(node: LoneNode) -> None:
    rng = random.Random(20)
    node.start()
    create(node, "events", segment_ms="300", file_delete_delay_ms="100")
    writer = Writer(node.address, "events")
    for number in range(ROUNDS):
        writer.wait_for(rng.choice((1, 200, 2_000)))
        offsets = [TopicPartition("events", index, number * 10 + index) for index in range(PARTITIONS)]
        commit(node, "group", offsets)
        node.kill()
        node.start()
        assert committed(node, "group", "events") == {index: number * 10 + index for index in range(PARTITIONS)}
    writer.wait_for(1)
    writer.finish()
    for partition, values in read_all(node, "events").items():
        numbers = [number_of(value) for value in values]
        assert numbers == sorted(set(numbers)), f"partition {partition} has doubles, or lost its order"
        missing = set(writer.acknowledged[partition]) - set(numbers)
        assert not missing, f"partition {partition} lost {len(missing)} of {len(numbers)}: {sorted(missing)[:10]}"
    node.stop()


class Changer:
    """Creates, fills and deletes topics without a pause; keeps what must be there, and what must not."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 100})
        self._stop = threading.Event()
        self.created: set[str] = set()
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()
        self.changes = 0
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _attempt(self, name: str, future: Any, done: set[str]) -> None:
        self.created.discard(name)
        try:
            future.result(30)
        except Exception:
            self.unsure.add(name)
            return
        done.add(name)
        with self._progress:
            self.changes += 1
            self._progress.notify_all()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            name = f"topic-{number}"
            topic = NewTopic(name, 4, 1, config={"segment.ms": "100"})
            self._attempt(name, self._admin.create_topics([topic], request_timeout=2)[name], self.created)
            if number % 2 and name in self.created:
                self._attempt(name, self._admin.delete_topics([name], request_timeout=2)[name], self.deleted)

    def wait_for(self, count: int) -> None:
        with self._progress:
            goal = self.changes + count
            assert self._progress.wait_for(lambda: self.changes >= goal, 60), "no progress"

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)


def test_killed_while_topics_come_and_go(node: LoneNode) -> None:
    """Segments roll and retention deletes meanwhile, and snapshots of the metadata are written."""
    rng = random.Random(21)
    node.start()
    create(node, "events", segment_bytes="1048576", retention_bytes="3000000", file_delete_delay_ms="50")
    writer, changer = Writer(node.address, "events"), Changer(node.address)
    for _ in range(ROUNDS):
        changer.wait_for(rng.choice((1, 5, 20)))
        writer.wait_for(500)
        node.kill()
        node.start()
    changer.finish()
    writer.finish()
    topics = set(AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=30).topics)
    assert changer.created <= topics
    assert not changer.deleted & topics
    for partition, values in read_all_that_is_left(node, "events").items():
        numbers = [number_of(value) for value in values]
        expected = [number for number in writer.acknowledged[partition] if number >= numbers[0]]
        assert numbers == expected
    node.stop()
    assert list((node.home / "data/__cluster_metadata-0").glob("*.checkpoint")), "no snapshot was written"
    held = {path.name.rpartition("-")[0] for path in (node.home / "data").glob("topic-*-?")}
    assert not held & changer.deleted
    # Killed between the deletion's commit and the rename: set aside, as Kafka does, and not deleted.
    strays = {path.name.rpartition("-")[0] for path in (node.home / "data").glob("*-stray")}
    assert {name[: name.rindex("-")] for name in strays} <= changer.deleted | changer.unsure


def read_all_that_is_left(node: LoneNode, topic: str) -> dict[int, list[bytes]]:
    """As `read_all`, of a topic whose beginning retention takes away."""
    consumer = Consumer(
        {"bootstrap.servers": node.address, "group.id": "reader", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    )
    found: dict[int, list[bytes]] = {}
    for index in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), 30)
        consumer.assign([TopicPartition(topic, index, low)])
        values: list[bytes] = []
        at = low
        while at < high:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            values.append(message.value())
            at = message.offset() + 1
        found[index] = values
    consumer.close()
    return found


def test_a_second_crash_while_starting(node: LoneNode) -> None:
    """Killed at any moment of its start-up, it starts the next time."""
    node.start()
    create(node, "events")
    writer = Writer(node.address, "events")
    writer.wait_for(500)
    node.kill()
    for line in (r"listening on", r"active controller", r"registered with epoch", r"opened \d+ logs", r"is unfenced"):
        node.launch()
        node.wait_line(line)
        node.kill()
    node.start()
    writer.wait_for(100)
    writer.finish()
    for partition, values in read_all(node, "events").items():
        assert [number_of(value) for value in values] == writer.acknowledged[partition]
    node.stop()
