"""Clients that record what was acknowledged to them: a writer, a member of a group; and the checks of these records."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from node_cluster import ClusterNode

from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from waiting import wait_until

PARTITIONS = 3
TOPIC = "orders"
QUICK_TO_ASK: dict[str, str | int | bool] = {
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 500,
}
"""Settings for a leader that is cut off or paused: it sends no error, so with its defaults librdkafka finds the new one
late."""

PAUSE_S = 0.003
"""Between records: the faults take their time, and meanwhile the nodes are not to be busy with records alone."""


class Writer(threading.Thread):
    """Writes numbered records to all partitions until it is stopped; records the acknowledged ones."""

    def __init__(
        self, addresses: str, settings: Mapping[str, str | int | bool] | None = None, topic: str = TOPIC
    ) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.failures: list[str] = []
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": addresses,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 90_000,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
                **(settings or {}),
            }
        )

    def run(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(PAUSE_S):
                break
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0, "not everything was acknowledged or refused"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition()].append(int(message.value()))

    @property
    def count(self) -> int:
        return sum(len(numbers) for numbers in list(self.acknowledged.values()))

    def wait_progress(self, records: int = 50) -> None:
        """Wait until every partition has acknowledged this many more."""
        goals = {index: len(self.acknowledged[index]) + records for index in range(PARTITIONS)}
        wait_until(
            lambda: all(len(self.acknowledged[index]) >= goal for index, goal in goals.items()),
            f"{records} more records of each partition are acknowledged",
        )

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


def read_all(addresses: str, topic: str = TOPIC) -> dict[int, list[int]]:
    """All values in the topic, by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[int]] = defaultdict(list)
    positions: dict[int, int] = defaultdict(lambda: -1)
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the topic cannot be read to its end"
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                index, offset = message.partition(), message.offset()
                assert offset > positions[index], f"offset {offset} of partition {index} was received twice"
                positions[index] = offset
                found[index].append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return found


def check(writer: Writer, found: dict[int, list[int]]) -> None:
    """No acknowledged record is missing, none was written twice, and the order is that of writing."""
    assert writer.failures == []
    for index in range(PARTITIONS):
        numbers = found[index]
        disorder = [pair for pair in itertools.pairwise(numbers) if pair[0] >= pair[1]]
        assert not disorder, f"partition {index} has records twice or out of order: {disorder[:5]}"
        missing = set(writer.acknowledged[index]) - set(numbers)
        assert not missing, f"partition {index} has lost {len(missing)} acknowledged records: {sorted(missing)[:10]}"


class Reader(threading.Thread):
    """One member of a group, which commits after every batch of records that it gets."""

    def __init__(self, addresses: str, topic: str = TOPIC) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self.seen: dict[int, set[int]] = defaultdict(set)
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": "survivors",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 15_000,
                "topic.metadata.refresh.fast.interval.ms": 100,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.commits = 0

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            messages = [each for each in self._consumer.consume(500, 0.2) if each.error() is None]
            for message in messages:
                self.seen[message.partition()].add(int(message.value()))
            if messages:
                try:
                    self._consumer.commit(asynchronous=False)
                    self.commits += 1
                except KafkaException:
                    continue  # the coordinator has moved, or there is a new generation: the next commit shows which
        self._consumer.close()

    def wait_progress(self) -> None:
        """Wait until it got more records of every partition, and has committed them."""
        goals = {index: len(self.seen[index]) + 20 for index in range(PARTITIONS)}
        commits = self.commits + 2
        wait_until(
            lambda: self.commits >= commits and all(len(self.seen[index]) >= goal for index, goal in goals.items()),
            "the group continues",
            60,
        )

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


def quorum(node: ClusterNode) -> tuple[int, int]:
    """Leader and epoch of the metadata quorum, from one node."""
    asked = DescribeQuorumRequestTopicData(
        topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    with node.client() as client:
        received = client.request(DescribeQuorumRequest(topics=[asked])).topics[0].partitions[0]
    return received.leader_id, received.leader_epoch
