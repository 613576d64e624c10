"""Transactional clients of a cluster of Kalda and Apache Kafka, and what their records have to be in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from mixed_nodes import MixedCluster, MixedNode
from mixed_requests import TIMEOUT_MS, elect_preferred

from kalda.base.errors import ErrorCode
from kalda.base.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from waiting import wait_until

TOPIC = "orders"
INTERNAL_PARTITIONS = 2
WAIT_S = TIMEOUT_MS / 1000
LATEST, UNCOMMITTED, COMMITTED = -1, 0, 1


def names_for(partition: int) -> Iterator[str]:
    """Keys that the leader of that partition of an internal topic coordinates."""
    number = 0
    while True:
        number += 1
        name = f"key-{number}"
        if coordinator_partition(name, INTERNAL_PARTITIONS) == partition:
            yield name


def producer_of(cluster: MixedCluster, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.addresses,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 100,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def send(producer: Producer, name: str, count: int = 3) -> list[bytes]:
    """Records to both partitions, which have arrived when this returns."""
    values = []
    for index in (0, 1):
        for number in range(count):
            values.append(f"{name} {index} {number}".encode())
            producer.produce(TOPIC, values[-1], partition=index)
    assert producer.flush(WAIT_S) == 0
    return values


def settle(what: object) -> None:
    """Commit or abort, again while the client says that it may be tried again."""
    deadline = time.monotonic() + 2 * WAIT_S
    while True:
        try:
            what(WAIT_S)  # type: ignore[operator]
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def committed_values(cluster: MixedCluster) -> list[bytes]:
    """What a read_committed consumer gets, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in (0, 1)])
    values: list[bytes] = []
    ended: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
        return len(ended) == 2

    wait_until(is_read, "both partitions are read", 90)
    consumer.close()
    return sorted(values)


def end_of(node: MixedNode, index: int, isolation: int) -> int:
    """The last offset that the leader shows to a consumer of that isolation; -1 where the node does not lead."""
    partition = ListOffsetsPartition(partition_index=index, timestamp=LATEST)
    topics = [ListOffsetsTopic(name=TOPIC, partitions=[partition])]
    with node.client() as client:
        found = (
            client.request(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics))
            .topics[0]
            .partitions[0]
        )
    return found.offset if found.error_code == ErrorCode.NONE else -1


def wait_decided(cluster: MixedCluster) -> None:
    """Until no transaction is open: the last stable offset has reached the high watermark everywhere."""

    def is_so() -> bool:
        for index in (0, 1):
            ends = [(end_of(node, index, COMMITTED), end_of(node, index, UNCOMMITTED)) for node in cluster.up]
            if not any(stable == high >= 0 for stable, high in ends):
                return False
        return True

    wait_until(is_so, "every transaction is decided", 60)


def commit_offsets(producer: Producer, group: str, offset: int) -> None:
    """As a consumer of that group, in the transaction."""
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], consumer.consumer_group_metadata(), WAIT_S)


def committed_offset(cluster: MixedCluster, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.addresses, "group.id": group, "log_level": 0})
    offsets: list[int] = []

    def has_asked() -> bool:
        """A node may not have applied its election yet: librdkafka leaves it to its caller to ask again."""
        try:
            found = consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
                raise
            return False
        offsets.append(found[0].offset)
        return True

    wait_until(has_asked, "the coordinator answers")
    consumer.close()
    return offsets[0]


def settle_cluster(cluster: MixedCluster) -> None:
    """All replicas are in sync, equal, and led by the preferred broker."""
    for name in (TOPIC, TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
        if name == OFFSETS_TOPIC:
            committed_offset(cluster, "first")  # creates it
        for index in range(2):
            cluster.wait_placed(name, index, isr=[1, 2])
        elect_preferred(cluster, name, 0, 1)
        for index in range(2):
            cluster.wait_same_files(f"{name}-{index}")


class Worker(threading.Thread):
    """Transactions one after another, every third one aborted; a new producer after a fatal error."""

    def __init__(self, cluster: MixedCluster, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._cluster = cluster
        self.committed: list[bytes] = []
        """Records of transactions whose commit was acknowledged."""
        self.may_be: list[list[bytes]] = []
        """Those of transactions whose end is not known to the client."""
        self.done = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        producer = producer_of(self._cluster, self.name)
        number = 0
        while not self.stopped.is_set():
            number += 1
            values = [f"{self.name} {number} {index}".encode() for index in (0, 1)]
            ends = False
            try:
                producer.begin_transaction()
                for index, value in enumerate(values):
                    producer.produce(TOPIC, value, partition=index)
                if number % 3 == 0:
                    settle(producer.abort_transaction)
                else:
                    ends = True
                    settle(producer.commit_transaction)
                    self.committed += values
                self.done += 1
            except KafkaException as failure:
                error = failure.args[0]
                if ends and not error.txn_requires_abort():
                    self.may_be.append(values)
                if error.txn_requires_abort():
                    with suppress(KafkaException):
                        settle(producer.abort_transaction)
                        continue
                producer = producer_of(self._cluster, self.name)


def wait_progress(workers: Sequence[Worker], count: int) -> None:
    """Until each worker has ended so many more transactions."""
    before = [worker.done for worker in workers]
    wait_until(
        lambda: all(worker.done >= done + count for worker, done in zip(workers, before, strict=True)),
        f"{count} transactions of each worker",
        120,
    )


def stop_and_judge(cluster: MixedCluster, workers: Sequence[Worker]) -> None:
    """Every transaction is visible as a whole or not at all, and those that were acknowledged are."""
    for worker in workers:
        worker.stopped.set()
    for worker in workers:
        worker.join(2 * WAIT_S)
        assert not worker.is_alive()
    wait_decided(cluster)
    seen = committed_values(cluster)
    assert len(set(seen)) == len(seen), "no record is there twice"
    expected = {value for worker in workers for value in worker.committed}
    unknown = [values for worker in workers for values in worker.may_be]
    assert expected <= set(seen), "no committed record is lost"
    for values in unknown:
        assert len(set(values) & set(seen)) in (0, 2), "a transaction is visible in part"
        expected |= set(values) & set(seen)
    assert set(seen) == expected, "no aborted record is seen"
