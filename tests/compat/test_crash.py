"""A node that is killed (SIGKILL) again and again while clients continue: acknowledged records stay, once and in order.

The page cache outlives a process, so nothing that the node wrote is lost. These tests check that it had written
everything that it acknowledged, and that it recovers from unfinished writes. For power losses, see `tests/sim`.
`KALDA_CRASH_ROUNDS` sets how often the node is killed.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode
from numbered_events import PARTITIONS, ROUNDS, Writer, create, number_of, read_all

pytestmark = pytest.mark.compat

SETTINGS = {
    # Periodic tasks run often enough that some are killed in the middle.
    "log.initial.task.delay.ms": 50,
    "log.retention.check.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "metadata.log.segment.bytes": 8 << 20,
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LoneNode]:
    with LoneNode(tmp_path, SETTINGS) as made:
        made.format()
        yield made


def commit(node: LoneNode, group: str, offsets: list[TopicPartition]) -> None:
    """Commit, and return when it was acknowledged."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group, "enable.auto.commit": False})
    for each in consumer.commit(offsets=offsets, asynchronous=False):
        assert each.error is None
    consumer.close()


def committed(node: LoneNode, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group, "enable.auto.commit": False})
    found = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], 30)
    consumer.close()
    return {each.partition: each.offset for each in found}


def test_acknowledged_records_stay_once_and_in_order(node: LoneNode) -> None:
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
    writer.check(read_all(node, "events"))
    node.stop()


class Changer:
    """Creates, fills and deletes topics without a pause; records which must exist, and which must not."""

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


def test_kills_while_topics_are_created_and_deleted(node: LoneNode) -> None:
    """At the same time segments roll, retention deletes, and snapshots of the metadata are written."""
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
    # Killed between the commit of the deletion and the rename: kept as a stray directory, as by Kafka. Of a topic that
    # exists there is none: a log that was never complete is deleted.
    for stray in (node.home / "data").glob("*-stray"):
        topic = stray.name.rpartition(".")[0].rpartition("-")[0]
        files = sorted((path.name, path.stat().st_size) for path in stray.iterdir())
        assert topic in changer.deleted | changer.unsure, (stray.name, files)


def read_all_that_is_left(node: LoneNode, topic: str) -> dict[int, list[bytes]]:
    """As `read_all`, for a topic whose first records are deleted by retention."""
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
