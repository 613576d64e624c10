"""Kalda's consumer beside confluent-kafka, aiokafka and kafka-python: one node, one topic, one partition.

    python bench/consumers.py [--quick] [--records 1000000] [--size 100] [--rounds 3] [--only NAME ...]

Every client runs in a process of its own, in turn with the others, on the cores that the node uses too. Rates are of
records that were returned to Python; each record's value is read. The last column is the CPU time of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from harness.client import produce
from harness.nodes import Node
from harness.systems import systems

_TOPIC = "records"
_TAKEN = 1_000
_FETCH_BYTES = 8 * 1024 * 1024
"""Of one partition in one response: for clients that can be given it."""


def _kalda(server: str) -> dict[str, object]:
    return {
        "bootstrap.servers": server,
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": _FETCH_BYTES,
    }


def kalda_poll(server: str, count: int) -> int:
    from kalda import Consumer

    got = size = 0
    with Consumer(_kalda(server)) as consumer:
        consumer.assign([(_TOPIC, 0)])
        while got < count:
            for record in consumer.poll(30, _TAKEN):
                size += len(record.value)
                got += 1
    return size


def kalda_iterate(server: str, count: int) -> int:
    from kalda import Consumer

    size = 0
    with Consumer(_kalda(server)) as consumer:
        consumer.assign([(_TOPIC, 0)])
        for record in consumer:
            size += len(record.value)
            if record.offset == count - 1:
                break
    return size


def kalda_arrow(server: str, count: int) -> int:
    from kalda import Consumer

    got = size = 0
    with Consumer(_kalda(server)) as consumer:
        consumer.assign([(_TOPIC, 0)])
        while got < count:
            batch = consumer.poll_arrow(30)
            if batch is not None:
                got += batch.num_rows
                size += batch.column("value").nbytes
    return size


def kalda_aio(server: str, count: int) -> int:
    from kalda.aio import Consumer

    async def run() -> int:
        size = 0
        async with Consumer(_kalda(server)) as consumer:
            consumer.assign([(_TOPIC, 0)])
            async for record in consumer:
                size += len(record.value)
                if record.offset == count - 1:
                    break
        return size

    return asyncio.run(run())


def confluent(server: str, count: int) -> int:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {
        "bootstrap.servers": server,
        "group.id": "bench",
        "enable.auto.commit": False,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 256 * 1024,
        "fetch.message.max.bytes": _FETCH_BYTES,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(_TOPIC, 0, OFFSET_BEGINNING)])
    got = size = 0
    while got < count:
        for message in consumer.consume(_TAKEN, 30):
            size += len(message.value())
            got += 1
    consumer.close()
    return size


def aiokafka(server: str, count: int) -> int:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> int:
        size = 0
        consumer = AIOKafkaConsumer(
            bootstrap_servers=server, auto_offset_reset="earliest", max_partition_fetch_bytes=_FETCH_BYTES
        )
        await consumer.start()
        consumer.assign([TopicPartition(_TOPIC, 0)])
        got = 0
        while got < count:
            for records in (await consumer.getmany(timeout_ms=30_000, max_records=_TAKEN)).values():
                for record in records:
                    size += len(record.value)
                got += len(records)
        await consumer.stop()
        return size

    return asyncio.run(run())


def kafka_python(server: str, count: int) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=server, auto_offset_reset="earliest", max_partition_fetch_bytes=_FETCH_BYTES
    )
    consumer.assign([TopicPartition(_TOPIC, 0)])
    got = size = 0
    while got < count:
        for records in consumer.poll(30_000, _TAKEN).values():
            for record in records:
                size += len(record.value)
            got += len(records)
    consumer.close()
    return size


_CLIENTS: dict[str, tuple[Callable[[str, int], int], str, float]] = {
    "confluent": (confluent, "confluent_kafka", 1.0),
    "kalda poll": (kalda_poll, "kalda.client.consumer.consumer", 1.0),
    "kalda for": (kalda_iterate, "kalda.client.consumer.consumer", 1.0),
    "kalda poll_arrow": (kalda_arrow, "kalda.client.consumer.columns", 1.0),
    "kalda.aio for": (kalda_aio, "kalda.client.consumer.aio_consumer", 1.0),
    "aiokafka": (aiokafka, "aiokafka", 0.5),
    "kafka-python": (kafka_python, "kafka", 0.1),
}
"""The client, what it imports before it is measured, and its share of the records: slow ones would take minutes."""


def _measure(name: str, port: int, count: int) -> None:
    work, module, _ = _CLIENTS[name]
    importlib.import_module(module)
    began, worked = time.perf_counter(), time.process_time()
    work(f"127.0.0.1:{port}", count)
    took, cpu = time.perf_counter() - began, time.process_time() - worked
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"per_s": count / took, "cpu_us": cpu / count * 1e6, "memory_mb": memory_mb}))


def main() -> None:
    """Measure all clients, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(_CLIENTS), default=list(_CLIENTS), metavar="NAME")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the records")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.records = 1, 100_000
    if given.measure:
        _measure(given.measure[0], int(given.measure[1]), given.records)
        return
    node = Node(systems("1g", alone=True)[0])
    node.start()
    try:
        node.create_topics([_TOPIC])
        produce(node.port, _TOPIC, given.records, given.size)
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in given.only}
        for _ in range(given.rounds):
            for name in given.only:
                count = int(given.records * _CLIENTS[name][2])
                command = [sys.executable, __file__, "--measure", name, str(node.port), "--records", str(count)]
                done = subprocess.run(command, check=True, capture_output=True, timeout=300)
                seen[name].append(json.loads(done.stdout))
    finally:
        node.stop()
    print(f"{'client':18} {'M records/s':>12} {'µs CPU a record':>16} {'MB resident':>12}")
    for name, figures in seen.items():
        rate, cpu, memory = (statistics.median(f[key] for f in figures) for key in ("per_s", "cpu_us", "memory_mb"))
        print(f"{name:18} {rate / 1e6:12.3f} {cpu:16.2f} {memory:12.0f}")


if __name__ == "__main__":
    main()
