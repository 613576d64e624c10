"""Kalda's consumer and admin client against Apache Kafka: KIP-848 groups with patterns, classic groups, lookups."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from apache_kafka import ApacheKafkaNode
from consuming_members import Members

import kalda
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.topics import NewTopic
from kalda.clientcore.consumer import SubscriptionPattern
from waiting import wait_until

pytestmark = pytest.mark.compat
ROUNDS = int(os.environ.get("KALDA_MODERN_ROUNDS", "2"))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, jars: Path) -> Iterator[str]:
    quick = {
        "group.consumer.min.session.timeout.ms": 3_000,
        "group.consumer.session.timeout.ms": 3_000,
        "group.consumer.min.heartbeat.interval.ms": 300,
        "group.consumer.heartbeat.interval.ms": 300,
    }
    with ApacheKafkaNode(tmp_path_factory.mktemp("peer") / "kafka", jars, quick) as node:
        node.format()
        node.start()
        yield f"127.0.0.1:{node.port}"


@pytest.fixture
def topic(kafka: str, fresh: Callable[[str], str]) -> str:
    """A topic of four partitions with a thousand records."""
    name = fresh("on-kafka")
    with kalda.Admin({"bootstrap.servers": kafka}) as admin:
        admin.create_topics([NewTopic(name, 4, 1)]).check()
    with kalda.Producer({"bootstrap.servers": kafka}) as producer:
        for number in range(1_000):
            producer.send(name, b"%d" % number, partition=number % 4)
    return name


def poll_until(condition: Callable[[], bool], *consumers: kalda.Consumer) -> int:
    got = 0
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        for consumer in consumers:
            got += len(consumer.poll(0.1))
    return got


def test_a_modern_group(kafka: str, topic: str) -> None:
    settings = {
        "bootstrap.servers": kafka,
        "group.id": f"modern-{topic}",
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    with kalda.Consumer(settings) as one, kalda.Consumer(settings) as two:
        one.subscribe([topic])
        seen = 0
        end = time.monotonic() + 60
        while seen < 1_000:
            assert time.monotonic() < end
            seen += len(one.poll(0.5))
        one.commit()
        two.subscribe(SubscriptionPattern(f"{topic[:4]}.*{topic[-2:]}"))
        poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
        assert not one.assignment() & two.assignment()
        assert two.subscription() == frozenset()
        committed = two.committed(*[(topic, index) for index in range(4)])
        assert sum(each.offset for each in committed.values() if each is not None) == 1_000
        with kalda.Admin({"bootstrap.servers": kafka}) as admin:
            group = admin.describe_groups([settings["group.id"]]).value(settings["group.id"])
            assert group.type == "consumer"
            assert {p for member in group.members for p in member.partitions} == one.assignment() | two.assignment()
    with kalda.Consumer({**settings, "group.remote.assignor": "none such"}) as wrong:
        wrong.subscribe([topic])
        with pytest.raises(ApiError) as raised:
            wrong.poll(30)
        assert raised.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_modern_group_goes_on_through_kills_and_new_topics(kafka: str, fresh: Callable[[str], str]) -> None:
    """Every record is processed, also those of topics that the brokers' expression matches later."""
    prefix = fresh("regex")
    group, chance = f"group-{prefix}", random.Random(48)
    members = Members(kafka, group, f"{prefix}-[0-9]+", "consumer")
    expected: set[str] = set()
    with (
        kalda.Admin({"bootstrap.servers": kafka}) as admin,
        kalda.Producer({"bootstrap.servers": kafka}) as producer,
    ):
        try:
            for step in range(ROUNDS):
                admin.create_topics([NewTopic(f"{prefix}-{step}", 3, 1)]).check()
                members.start()
                if step:
                    members.kill(chance.choice(members.processes))
                    members.start()
                for number in range(300):
                    topic = f"{prefix}-{chance.randint(0, step)}"
                    producer.send(topic, f"{step}.{number}".encode(), partition=number % 3)
                    expected.add(f"{step}.{number}")
                producer.flush()
            wait_until(lambda: expected <= members.seen)

            def is_shared() -> bool:
                found = admin.describe_groups([group]).value(group)
                owned = [partition for member in found.members for partition in member.partitions]
                alive = len(found.members) == len(members.processes)
                return alive and len(owned) == len(set(owned)) == 3 * ROUNDS

            wait_until(is_shared)
        finally:
            members.stop()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_classic_group(kafka: str, topic: str, strategy: str) -> None:
    settings = {
        "bootstrap.servers": kafka,
        "group.id": f"{strategy}-{topic}",
        "partition.assignment.strategy": strategy,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "heartbeat.interval.ms": 300,
    }
    with kalda.Consumer(settings) as one, kalda.Consumer(settings) as two:
        one.subscribe(re.compile(re.escape(topic)))
        poll_until(lambda: len(one.assignment()) == 4, one)
        two.subscribe([topic])
        poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
        partition = (topic, 0)
        assert one.beginning_offsets(partition) == {TopicPartition(topic, 0): 0}
        assert one.end_offsets(partition) == {TopicPartition(topic, 0): 250}
        found = one.offsets_for_times({partition: 0})[TopicPartition(topic, 0)]
        assert found is not None
        assert found.offset == 0
