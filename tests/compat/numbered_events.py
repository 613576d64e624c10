"""A topic of numbered records: a producer that continues through all failures, and readers."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lone_node import LoneNode

ROUNDS = int(os.environ.get("KALDA_CRASH_ROUNDS", "5"))
"""How often a node is killed."""
PARTITIONS = 3
PADDING = b" " + bytes(random.Random(1).randbytes(500))


def number_of(value: bytes) -> int:
    """The number of a record."""
    return int(value.partition(b" ")[0])


def create(node: LoneNode, name: str, partitions: int = PARTITIONS, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address, "log_level": 0})
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([topic])[name].result(30)


class Writer:
    """An idempotent producer that always has some records in flight; it keeps the acknowledged ones."""

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
            self._producer.produce(self.topic, value, partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
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
        """Wait until this many more records are acknowledged."""
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

    def check(self, found: dict[int, list[bytes]]) -> None:
        """The records that were read include every acknowledged one, once and in order."""
        for partition, values in found.items():
            numbers = [number_of(value) for value in values]
            assert numbers == sorted(set(numbers)), f"partition {partition} has doubles, or lost its order"
            missing = set(self.acknowledged[partition]) - set(numbers)
            assert not missing, f"partition {partition} lost {len(missing)} of {len(numbers)}: {sorted(missing)[:10]}"


def read_all(node: LoneNode, topic: str, partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """The values of all records, by partition."""
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
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise AssertionError(error)
    consumer.close()
    return found
