"""Compressed batches: how full they are, and how much of `buffer.memory` they take."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pytest
from model_cluster import World
from scripted_broker import AcknowledgingBroker

from kalda import Producer, aio
from kalda.protocol.apis import ApiKey
from kalda.records.builder import read_records

TIMEOUT_S = 30
BATCH_BYTES = 16_384


def sizes(world: World) -> list[int]:
    """Of all batches that were sent, in order."""
    return [
        len(data.records)
        for _, key, request in world.requests
        if key is ApiKey.PRODUCE
        for topic in request.topic_data
        for data in topic.partition_data
    ]


def world_of(**keys: object) -> World:
    settings = {"compression.type": "zstd", "linger.ms": 60_000, "delivery.timeout.ms": 200_000, **keys}
    return World(brokers=1, partitions=1, **settings)


def half(random: Random) -> bytes:
    """A record of which compression leaves about one half."""
    return random.randbytes(50).hex().encode()


def send(world: World, value: bytes) -> None:
    while world.send(value, 0) is None:
        world.run(10)


def expect_ratio(world: World, ratio: float) -> None:
    topic = world.core.accumulator.topics["t"]
    topic.compression_ratio = topic.observed_ratio = ratio


def test_batches_are_as_large_as_the_estimated_ratio_lets_them_be() -> None:
    """The estimate falls by 0.005 with each batch, as Kafka's; then batches are some 5 % below `batch.size`."""
    world, random = world_of(), Random(1)
    for number in range(30_000):
        send(world, half(random))
        if number % 200 == 0:
            world.run(20)
    world.run_until_idle()
    last = sizes(world)[-21:-1]
    assert 0.85 * BATCH_BYTES < sum(last) / len(last) <= BATCH_BYTES


def test_the_estimate_counts_records_without_the_header() -> None:
    world = world_of(**{"batch.size": 200, "compression.type": "gzip"})
    for _ in range(200):
        send(world, bytes(60))
        send(world, bytes(60))
        world.run_until_idle()
    ratio = world.core.accumulator.topics["t"].compression_ratio
    (size,) = set(sizes(world)[-5:])
    assert ratio == pytest.approx((size - 61) / (2 * 67), abs=0.01)


def test_batches_of_data_that_compress_very_well_are_full_too() -> None:
    world = world_of(**{"batch.size": 2_000})
    for number in range(30_000):
        send(world, b"status=200 path=/index.html agent=Mozilla user=%d" % (number % 40))
        if number % 20 == 0:
            world.run(20)
    world.run_until_idle()
    last = sizes(world)[-6:-1]
    assert sum(last) / len(last) > 0.6 * 2_000


def test_a_batch_takes_no_more_memory_than_its_records_need() -> None:
    world = world_of(**{"enable.idempotence": False})
    accumulator = world.core.accumulator
    send(world, b"v")
    world.run_until_idle()
    assert accumulator.topics["t"].compression_ratio == 1.0, "one byte does not say how well others compress"
    expect_ratio(world, 0.1)
    world.send(b"v", 0)
    pool = world.core.pool
    assert pool.total_bytes - pool.available_bytes == BATCH_BYTES
    for _ in range(200):
        send(world, bytes(100))
    assert len(sizes(world)) == 1
    used = pool.total_bytes - pool.available_bytes
    assert BATCH_BYTES < used <= 4 * BATCH_BYTES
    world.run_until_idle()
    assert pool.available_bytes == pool.total_bytes
    assert len(sizes(world)) == 2


def test_a_batch_that_cannot_have_more_memory_is_sent_as_it_is() -> None:
    world = world_of(**{"buffer.memory": 40_000})
    send(world, b"v")
    world.run_until_idle()
    expect_ratio(world, 0.01)
    for _ in range(2_000):
        send(world, bytes(100))
    world.run_until_idle()
    assert len(world.values) == 2_001
    assert world.core.pool.available_bytes == 40_000


@pytest.mark.parametrize(
    "keys",
    [
        {"buffer_memory": 70_000},
        {"buffer_memory": 10_000},
        {"buffer_memory": 10_000, "compression_type": "none"},
        {"buffer_memory": 3_000, "batch_size": 1_000, "max_request_size": 500_000},
    ],
)
def test_send_never_asks_for_more_than_there_is(keys: dict[str, Any]) -> None:
    """Where the estimate falls, and where `batch.size` is larger than all memory."""
    pa = pytest.importorskip("pyarrow")
    settings: dict[str, Any] = {"compression_type": "lz4", "enable_idempotence": False, **keys}
    memory = settings["buffer_memory"]
    with AcknowledgingBroker() as broker, Producer(bootstrap_servers=broker.address, **settings) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(4_000)]
        largest = producer.send("t", bytes(memory - 61 - 36 - 1))  # the most that the check lets pass
        producer.send_batch("t", pa.table({"value": [b"x" * 100] * 1_000})).result(TIMEOUT_S)
        assert largest.exception(TIMEOUT_S) is None
        producer.flush(TIMEOUT_S)
        assert {future.exception(0) for future in futures} == {None}
        pool = producer._core.pool
        assert pool.available_bytes == pool.total_bytes


def test_the_asyncio_producer_never_asks_for_more_than_there_is() -> None:
    async def run(servers: str) -> None:
        keys: dict[str, Any] = {"compression_type": "lz4", "enable_idempotence": False, "buffer_memory": 10_000}
        async with aio.Producer(bootstrap_servers=servers, **keys) as producer:
            futures = [await producer.send("t", b"x" * 100) for _ in range(4_000)]
            await producer.flush(TIMEOUT_S)
            assert {future.exception() for future in futures} == {None}

    with AcknowledgingBroker() as broker:
        asyncio.run(run(broker.address))


def test_threads_append_while_batches_grow() -> None:
    with AcknowledgingBroker() as broker:
        seen: dict[int, int] = {}
        produce = broker.answers[ApiKey.PRODUCE]

        def count(request: Any, version: int) -> Any:
            for data in request.topic_data[0].partition_data:
                for record in read_records(bytes(data.records)):
                    name, number = map(int, (record.value or b"").split()[:2])
                    assert seen.get(name, -1) == number - 1
                    seen[name] = number
            return produce(request, version)

        broker.answers[ApiKey.PRODUCE] = count
        keys: dict[str, Any] = {"compression_type": "lz4", "enable_idempotence": False, "batch_size": 1_000}
        with Producer(bootstrap_servers=broker.address, linger_ms=20, **keys) as producer:

            def work(name: int) -> None:
                for number in range(2_000):
                    producer.send("t", b"%d %d %b" % (name, number, bytes(50)))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush(TIMEOUT_S)
        assert seen == dict.fromkeys(range(4), 1_999)


def test_a_split_makes_the_estimate_what_the_batch_was() -> None:
    world = world_of(**{"compression.type": "gzip", "batch.size": 500})
    send(world, b"v")
    world.run_until_idle()
    expect_ratio(world, 0.2)
    world.max_batch_bytes = 300
    random = Random(2)
    for _ in range(4):
        send(world, random.randbytes(100))
    world.run_until_idle()
    assert world.core.accumulator.topics["t"].compression_ratio >= 1.0
    assert len(world.values) == 5


def test_the_sticky_partition_stays_until_its_batch_is_full_when_compressed() -> None:
    """As Kafka's, it counts the bytes that are estimated to be sent: else batches are sent part-filled."""
    settings: dict[str, Any] = {"compression.type": "zstd", "linger.ms": 60_000, "delivery.timeout.ms": 200_000}
    world = World(brokers=1, partitions=8, **settings)
    world.send(b"v")
    world.run_until_idle()
    expect_ratio(world, 0.1)
    topic = world.core.accumulator.topics["t"]
    first = topic.partitioner.switches
    for _ in range(1_000):
        assert world.send(bytes(100)) is not None
        topic.appender.append(bytes(20), None, None, None, None, 1.0)  # as most records, where the batch has room
    assert topic.partitioner.switches == first, "some 130 KB of records are 14 KB when they are sent"
    for _ in range(2_000):
        assert world.send(bytes(100)) is not None
    assert topic.partitioner.switches > first


def test_batches_that_grow_with_their_records_share_a_memory_in_which_whole_ones_have_no_room() -> None:
    """`buffer.memory.allocation.strategy`: eight partitions, and the memory of four whole batches."""

    def taken(strategy: str) -> tuple[int, World]:
        settings = {"linger.ms": 60_000, "delivery.timeout.ms": 200_000, "buffer.memory": 4 * BATCH_BYTES}
        world = World(brokers=1, partitions=8, **settings, **{"buffer.memory.allocation.strategy": strategy})
        return sum(world.send(bytes(1_000), partition) is not None for partition in range(8)), world

    assert taken("full")[0] == 4
    count, world = taken("Incremental")
    assert count == 8
    for _ in range(40):
        send(world, bytes(1_000))
    world.run_until_idle()
    assert len(world.values) == 48
    assert max(sizes(world)) > BATCH_BYTES - 1_100, "they grow up to batch.size"
    assert world.core.pool.available_bytes == 4 * BATCH_BYTES
