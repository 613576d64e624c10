"""kafka-python: a client in pure Python that uses the newest versions, with topic ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka.codec import has_snappy
from lone_node import LoneNode

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]
WAIT_MS = 20_000


@pytest.fixture
def admin(node: LoneNode) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=node.address)
    yield client
    client.close()


@pytest.fixture
def topic(admin: KafkaAdminClient, fresh: Fresh) -> str:
    name = fresh("kafka-python")
    admin.create_topics([NewTopic(name, 2, 1)])
    return name


@pytest.fixture
def consumers(node: LoneNode) -> Iterator[Callable[..., KafkaConsumer]]:
    """Makes consumers that read from the start, and closes them at the end."""
    opened: list[KafkaConsumer] = []

    def consumer(*topics: str, **settings: object) -> KafkaConsumer:
        config = {"bootstrap_servers": node.address, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        each = KafkaConsumer(*topics, **{**config, "heartbeat_interval_ms": 200, **settings})
        opened.append(each)
        return each

    yield consumer
    for each in opened:
        each.close()


def produced(node: LoneNode, topic: str, count: int, **settings: object) -> None:
    producer = KafkaProducer(bootstrap_servers=node.address, **settings)
    try:
        sent = [
            producer.send(
                topic,
                value=f"value {number}".encode(),
                key=f"key {number}".encode(),
                headers=[("n", str(number).encode())],
                partition=0,
                timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(count)
        ]
        for each in sent:
            each.get(WAIT_MS / 1000)
    finally:
        producer.close()


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    """At least `count` records."""
    taken: list[Any] = []
    while len(taken) < count:
        came = consumer.poll(timeout_ms=WAIT_MS)
        assert came, f"{len(taken)} of {count} records came"
        for records in came.values():
            taken.extend(records)
    return taken


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_survive(
    node: LoneNode, topic: str, consumers: Callable[..., KafkaConsumer], codec: str | None
) -> None:
    if codec == "snappy" and not has_snappy():
        pytest.skip("needs python-snappy")
    produced(node, topic, 200, compression_type=codec)
    for number, record in enumerate(take(consumers(topic), 200)):
        assert (record.offset, record.key) == (number, f"key {number}".encode())
        assert (record.value, record.timestamp) == (f"value {number}".encode(), 1_700_000_000_000 + number)
        assert [(key, bytes(value)) for key, value in record.headers] == [("n", str(number).encode())]


def test_reads_by_time(node: LoneNode, topic: str, consumers: Callable[..., KafkaConsumer]) -> None:
    produced(node, topic, 50)
    consumer, at, empty = consumers(), TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([at, empty])
    found = consumer.offsets_for_times({at: 1_700_000_000_030, empty: 0})
    assert (found[at].offset, found[empty]) == (30, None)
    assert consumer.end_offsets([at, empty]) == {at: 50, empty: 0}
    consumer.seek(at, 30)
    consumer.seek(empty, 0)
    assert take(consumer, 20)[0].key == b"key 30"


def test_group_shares_commits_and_resumes(
    node: LoneNode, topic: str, fresh: Fresh, consumers: Callable[..., KafkaConsumer]
) -> None:
    group = fresh("group")
    produced(node, topic, 10)
    first = consumers(topic, group_id=group)
    assert len(take(first, 10)) == 10
    first.commit()
    second = consumers(topic, group_id=group)
    while len(first.assignment()) != 1 or len(second.assignment()) != 1:
        assert not first.poll(timeout_ms=50)
        assert not second.poll(timeout_ms=50)
    assert first.assignment() | second.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    first.close()
    second.close()
    produced(node, topic, 1)
    assert [record.offset for record in take(consumers(topic, group_id=group), 1)] == [10]


def test_admin(
    admin: KafkaAdminClient, node: LoneNode, topic: str, fresh: Fresh, consumers: Callable[..., KafkaConsumer]
) -> None:
    group = fresh("group")
    produced(node, topic, 5)
    consumer = consumers(topic, group_id=group)
    take(consumer, 5)
    consumer.commit()
    consumer.close()
    assert {at.partition: offset.offset for at, offset in admin.list_group_offsets(group)[group].items()}[0] == 5
    admin.create_partitions({topic: NewPartitions(3)})
    described = admin.describe_topics([topic])[0]
    assert len(described["partitions"]) == 3
    admin.delete_groups([group])
    admin.delete_topics([topic])
    assert topic not in {each["name"] for each in admin.describe_topics()}
