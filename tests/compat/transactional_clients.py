"""Transactional producers of librdkafka, and what their consumers see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 30


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


PAUSE_S = 0.03
"""Between a producer's transactions: the tests wait for the faults, and the nodes have the machine for them."""


class Committers:
    """Producers on threads of their own, each of which commits transactions of two records, one to each partition."""

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._stop = threading.Event()
        self._committed: list[str] = []
        """The values of all transactions whose commit was acknowledged."""
        self._threads = [threading.Thread(target=self._run, args=(f"p{index}",)) for index in range(count)]

    def __enter__(self) -> Committers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)

    def _run(self, name: str) -> None:
        producer, number = None, 0
        while not self._stop.is_set():
            number += 1
            values = [f"{name}.{number} {index}" for index in range(2)]
            try:
                producer = producer or producer_of(self._bootstrap, f"{self._topic}-{name}")
                producer.begin_transaction()
                for index, value in enumerate(values):
                    producer.produce(self._topic, value.encode(), partition=index)
                commit_or_abort(producer)
            except confluent_kafka.KafkaException as failure:
                if failure.args[0].fatal():
                    producer = None
                continue
            self._committed.extend(values)
            self._stop.wait(PAUSE_S)

    def wait_progress(self, transactions: int = 10) -> None:
        """Until so many more were committed."""
        wanted = len(self._committed) + 2 * transactions
        waited_for(lambda: len(self._committed) >= wanted, "no transactions are committed", 4 * WAIT_S)

    def check(self) -> None:
        """Every acknowledged transaction is visible, and no transaction in part. To be called at the end."""
        waited_for(lambda: set(self._committed) <= set(visible(self._bootstrap, self._topic)), "acknowledged records")
        seen = visible(self._bootstrap, self._topic)
        halves = {value.rsplit(" ", 1)[0] for value in seen}
        assert seen == sorted(f"{half} {index}" for half in halves for index in range(2)), "visible in part, or twice"
