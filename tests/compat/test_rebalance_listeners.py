"""What a rebalance listener may do: calls of the consumer in it, errors, and threads and tasks that poll beside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from lone_node import LoneNode

import kalda
from kalda import aio
from kalda.base.ids import TopicPartition
from kalda.client.admin.topics import NewTopic

pytestmark = pytest.mark.compat

PARTITIONS = 2
RECORDS = 10


@pytest.fixture
def topic(node: LoneNode, fresh: Callable[[str], str]) -> str:
    """With records in every partition."""
    name = fresh("listened")
    with kalda.Admin(bootstrap_servers=node.address) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS)])
    with kalda.Producer(bootstrap_servers=node.address) as producer:
        for number in range(PARTITIONS * RECORDS):
            producer.send(name, b"%d" % number, partition=number % PARTITIONS)
    return name


def keys_of(node: LoneNode, topic: str) -> dict[str, Any]:
    """A consumer's, in a group of the topic's name."""
    return {"bootstrap_servers": node.address, "group_id": topic, "auto_offset_reset": "earliest"}


def test_a_listener_finds_the_position_of_a_new_partition(node: LoneNode, topic: str) -> None:
    found: dict[TopicPartition, int] = {}
    with kalda.Consumer(**keys_of(node, topic)) as consumer:

        def assigned(partitions: list[TopicPartition]) -> None:
            found.update({partition: consumer.position(partition, timeout=60) for partition in partitions})
            consumer.seek(partitions[0], 7)

        consumer.subscribe([topic], on_assigned=assigned)
        records = consumer.poll(60)
        while len(records) < PARTITIONS * RECORDS - 7:
            records += consumer.poll(60)
    assert found == {TopicPartition(topic, index): 0 for index in range(PARTITIONS)}
    assert min(record.offset for record in records if record.partition == 0) == 7


def test_a_listener_of_asyncio_finds_the_position_of_a_new_partition(node: LoneNode, topic: str) -> None:
    found: list[int] = []

    async def run() -> None:
        async with aio.Consumer(**keys_of(node, topic)) as consumer:

            async def assigned(partitions: list[TopicPartition]) -> None:
                found.extend([await consumer.position(partition, timeout=60) for partition in partitions])

            consumer.subscribe([topic], on_assigned=assigned)
            assert await consumer.poll(60)

    asyncio.run(run())
    assert found == [0] * PARTITIONS


def test_a_listener_cannot_poll(node: LoneNode, topic: str) -> None:
    with kalda.Consumer(**keys_of(node, topic)) as consumer:
        consumer.subscribe([topic], on_assigned=lambda _partitions: consumer.poll(1))
        with pytest.raises(RuntimeError, match="a rebalance listener cannot poll"):
            consumer.poll(60)
        assert consumer.poll(60)


def test_a_listener_of_asyncio_cannot_poll(node: LoneNode, topic: str) -> None:
    async def run() -> None:
        async with aio.Consumer(**keys_of(node, topic)) as consumer:
            consumer.subscribe([topic], on_assigned=lambda _partitions: consumer.poll(1))
            with pytest.raises(RuntimeError, match="a rebalance listener cannot poll"):
                await consumer.poll(60)
            assert await consumer.poll(60)

    asyncio.run(run())


def test_a_listener_may_close_while_the_consumer_is_closed(node: LoneNode, topic: str) -> None:
    calls: list[int] = []
    consumer = kalda.Consumer(**keys_of(node, topic))

    def revoked(partitions: list[TopicPartition]) -> None:
        calls.append(len(partitions))
        consumer.close()

    consumer.subscribe([topic], on_revoked=revoked)
    assert consumer.poll(60)
    consumer.close()
    assert calls == [PARTITIONS]
    assert not consumer._io.is_alive()


def test_a_member_whose_listener_raises_at_the_end_has_left(node: LoneNode, topic: str) -> None:
    def fail(_partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError("of the listener")

    keys = {**keys_of(node, topic), "enable_auto_commit": False}
    first = kalda.Consumer(**keys)
    first.subscribe([topic], on_revoked=fail)
    assert first.poll(60)
    with pytest.raises(ZeroDivisionError, match="of the listener"):
        first.close()
    assert not first._io.is_alive()
    with kalda.Consumer(**keys) as second:  # it would wait for the session's end, 45 s
        second.subscribe([topic])
        assert second.poll(60)


def test_a_member_of_asyncio_whose_listener_raises_at_the_end_has_left(node: LoneNode, topic: str) -> None:
    async def fail(_partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError("of the listener")

    async def run() -> None:
        keys = {**keys_of(node, topic), "enable_auto_commit": False}
        first = aio.Consumer(**keys)
        first.subscribe([topic], on_revoked=fail)
        assert await first.poll(60)
        with pytest.raises(ZeroDivisionError, match="of the listener"):
            await first.close()
        async with aio.Consumer(**keys) as second:
            second.subscribe([topic])
            assert await second.poll(60)

    asyncio.run(run())


def test_one_of_two_threads_that_poll_calls_the_listener(node: LoneNode, topic: str) -> None:
    calls: list[int] = []
    entered, others_polled = threading.Event(), threading.Event()
    with kalda.Consumer(**keys_of(node, topic)) as consumer:

        def assigned(partitions: list[TopicPartition]) -> None:
            calls.append(len(partitions))
            entered.set()
            assert others_polled.wait(60)

        def poll_beside() -> None:
            assert entered.wait(60)
            empty.extend(consumer.poll(0.2))
            others_polled.set()

        empty: list[Any] = []
        consumer.subscribe([topic], on_assigned=assigned)
        other = threading.Thread(target=poll_beside)
        other.start()
        assert consumer.poll(20)
        other.join(60)
    assert calls == [PARTITIONS]
    assert empty == []


def test_one_of_two_tasks_that_poll_calls_the_listener(node: LoneNode, topic: str) -> None:
    calls: list[int] = []

    async def run() -> None:
        async with aio.Consumer(**keys_of(node, topic)) as consumer:
            entered, others_polled = asyncio.Event(), asyncio.Event()

            async def assigned(partitions: list[TopicPartition]) -> None:
                calls.append(len(partitions))
                entered.set()
                await asyncio.wait_for(others_polled.wait(), 20)

            async def poll_beside() -> None:
                await asyncio.wait_for(entered.wait(), 20)
                assert await consumer.poll(0.2) == []
                others_polled.set()

            consumer.subscribe([topic], on_assigned=assigned)
            polled, _ = await asyncio.gather(consumer.poll(20), poll_beside())
            assert polled

    asyncio.run(run())
    assert calls == [PARTITIONS]
