"""aiokafka: an asyncio client that uses old versions only (Produce 8, Fetch 11, Metadata 5, ListOffsets 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError
from lone_node import LoneNode

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]
WAIT_S = 20


async def made(node: LoneNode, name: str, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        await admin.close()


async def produced(node: LoneNode, topic: str, count: int, **settings: object) -> None:
    async with AIOKafkaProducer(bootstrap_servers=node.address, **settings) as producer:
        for number in range(count):
            await producer.send(
                topic,
                f"value {number}".encode(),
                f"key {number}".encode(),
                0,
                1_700_000_000_000 + number,
                [("n", str(number).encode())],
            )
        await producer.flush()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[object]:
    async with asyncio.timeout(WAIT_S):
        return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_survive(node: LoneNode, fresh: Fresh, codec: str | None, idempotent: bool) -> None:
    async def scenario() -> None:
        topic = fresh("aiokafka")
        await made(node, topic, 1)
        await produced(node, topic, 200, compression_type=codec, enable_idempotence=idempotent)
        async with AIOKafkaConsumer(topic, bootstrap_servers=node.address, auto_offset_reset="earliest") as consumer:
            for number, record in enumerate(await take(consumer, 200)):
                assert (record.offset, record.key) == (number, f"key {number}".encode())
                assert (record.value, record.timestamp) == (f"value {number}".encode(), 1_700_000_000_000 + number)
                assert record.headers == (("n", str(number).encode()),)

    asyncio.run(scenario())


def test_reads_by_time(node: LoneNode, fresh: Fresh) -> None:
    async def scenario() -> None:
        topic = fresh("aiokafka")
        await made(node, topic, 2)
        await produced(node, topic, 50)
        at, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with AIOKafkaConsumer(bootstrap_servers=node.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([at, empty])
            found = await consumer.offsets_for_times({at: 1_700_000_000_030, empty: 0})
            assert (found[at].offset, found[at].timestamp, found[empty]) == (30, 1_700_000_000_030, None)
            assert await consumer.beginning_offsets([at]) == {at: 0}
            assert await consumer.end_offsets([at, empty]) == {at: 50, empty: 0}
            consumer.seek(at, 30)
            assert (await take(consumer, 1))[0].key == b"key 30"

    asyncio.run(scenario())


def test_group_shares_commits_and_resumes(node: LoneNode, fresh: Fresh) -> None:
    async def scenario() -> None:
        topic, group = fresh("aiokafka"), fresh("group")
        await made(node, topic, 2)
        await produced(node, topic, 10)
        settings = {
            "bootstrap_servers": node.address,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
        }
        async with AIOKafkaConsumer(topic, **settings) as first:
            await take(first, 10)
            await first.commit()
            async with AIOKafkaConsumer(topic, **settings) as second, asyncio.timeout(WAIT_S):
                while len(first.assignment()) != 1 or len(second.assignment()) != 1:
                    assert not await first.getmany(timeout_ms=50)
                    assert not await second.getmany(timeout_ms=50)
                assert first.assignment() | second.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        await produced(node, topic, 1)
        async with AIOKafkaConsumer(topic, **settings) as third:
            assert [record.offset for record in await take(third, 1)] == [10]

    asyncio.run(scenario())


def test_topics_and_groups_through_admin(node: LoneNode, fresh: Fresh) -> None:
    async def scenario() -> None:
        topic = fresh("aiokafka")
        admin = AIOKafkaAdminClient(bootstrap_servers=node.address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 1, 1)])
            again = await admin.create_topics([NewTopic(topic, 1, 1)])
            assert again.topic_errors[0][:2] == (topic, TopicAlreadyExistsError.errno)
            described = (await admin.describe_topics([topic]))[0]
            assert (described["error_code"], len(described["partitions"])) == (0, 1)
            assert (await admin.describe_cluster())["cluster_id"]
            await admin.list_consumer_groups()
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(scenario())
