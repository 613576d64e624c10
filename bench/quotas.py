"""Whether clients with a quota get the rate of that quota: real clients, one node, three times its windows.

    python bench/quotas.py [--quick] [--seconds 33] [--rates 1,5,20] [--clients librdkafka,kafka-python,...]
                           [--only produce|consume] [--system kalda|kafka|both]

Each client produces, or consumes, as fast as it can under `producer_byte_rate` or `consumer_byte_rate` of its client
id. Printed is the rate of the bytes of its records over the quota, when its first bursts are over. The quota counts
whole requests and responses, so the ratio is a little below 1. A rate of 0 is no quota: printed are MB/s.

`librdkafka` produces in its default batches of a megabyte, `librdkafka-64k` in batches of 64 KB, which are small
against each quota. The Java clients are those of Apache Kafka's own performance tests; `raw` is two plain sockets that
share the quota, with requests of a megabyte, which pause only while the node reads nothing from them. All rates of one
client and direction are measured at the same time, with `--system both` on a node of each system.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

from harness.client import produce_request
from harness.nodes import Node
from harness.systems import KALDA, apache_kafka, java_command

from kalda.cli.common.command_admin import CommandAdmin
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.partitions import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from kalda.protocol.notation import Request

_RECORD = os.urandom(10_000)
_RAW_BYTES = 1_000_000
_WINDOWS_S = 22.0
"""A new client may use all of the first windows at once. Eleven seconds later that burst is forgotten, and a smaller
one follows, by Kafka's rules; the rate is measured after both."""


class Meter:
    """Bytes over time, from the end of the first windows on."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic() + _WINDOWS_S
        self.ends = self.began + seconds
        self.size = 0

    def add(self, size: int) -> bool:
        """Count bytes. False when the measurement is over."""
        now = time.monotonic()
        if self.began <= now < self.ends:
            self.size += size
        return now < self.ends

    def rate(self) -> float:
        return self.size / (self.ends - self.began)


def produce_librdkafka(address: str, topic: str, client_id: str, meter: Meter, batch_bytes: int = 1_000_000) -> None:
    from confluent_kafka import Producer

    errors: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            meter.add(len(_RECORD))

    config = {"bootstrap.servers": address, "client.id": client_id, "queue.buffering.max.kbytes": 4096}
    producer = Producer({**config, "message.timeout.ms": 300_000, "batch.size": batch_bytes})
    while meter.add(0):
        try:
            producer.produce(topic, _RECORD, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    producer.purge()
    producer.flush(1)
    if any("PURGE" not in error.upper() for error in errors):
        print(f"    errors: {sorted(set(errors))[:3]}")


def consume_librdkafka(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": client_id,
            "group.id": client_id,
            "queued.max.messages.kbytes": 4096,
            "fetch.queue.backoff.ms": 10,
            "fetch.message.max.bytes": 262_144,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while meter.add(0):
        for message in consumer.consume(100, 0.1):
            if message.error():
                print(f"    error: {message.error()}")
            else:
                meter.add(len(message.value()))
    consumer.close()


def produce_kafka_python(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaTimeoutError

    # It has no bound on what it buffers; here it is 4 MB, as with the other clients.
    room = threading.Semaphore(400)

    def delivered(_: object) -> None:
        meter.add(len(_RECORD))
        room.release()

    producer = KafkaProducer(bootstrap_servers=address, client_id=client_id, max_block_ms=120_000, batch_size=100_000)
    while meter.add(0):
        if room.acquire(timeout=1):
            producer.send(topic, _RECORD).add_callback(delivered)
    with contextlib.suppress(KafkaTimeoutError):  # what is left is not sent
        producer.close(1)


def consume_kafka_python(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=address, client_id=client_id, max_partition_fetch_bytes=262_144)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    while meter.add(0):
        for records in consumer.poll(100).values():
            for record in records:
                meter.add(len(record.value))
    consumer.close()


def produce_aiokafka(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address, client_id=client_id, max_batch_size=100_000, request_timeout_ms=120_000
        )
        await producer.start()
        while meter.add(0):
            sent = await producer.send(topic, _RECORD)
            sent.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else meter.add(len(_RECORD))
            )
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.wait([stopping], timeout=2)

    asyncio.run(run())


def consume_aiokafka(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address,
            client_id=client_id,
            max_partition_fetch_bytes=262_144,
            request_timeout_ms=120_000,
        )
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        while meter.add(0):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    meter.add(len(record.value))
        await consumer.stop()

    asyncio.run(run())


def produce_java(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from confluent_kafka import Consumer, TopicPartition

    sent = ("--topic", topic, "--num-records", "100000000", "--record-size", str(len(_RECORD)), "--throughput", "-1")
    config = (f"bootstrap.servers={address}", f"client.id={client_id}", "batch.size=100000", "buffer.memory=4194304")
    command = [*java_command("org.apache.kafka.tools.ProducerPerformance", "256M"), *sent, "--producer-props", *config]
    reader = Consumer({"bootstrap.servers": address, "group.id": "reader"})
    seen = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while meter.add(0) and process.poll() is None:
            time.sleep(0.1)
            _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), 10)
            meter.add((end - seen) * len(_RECORD))
            seen = end
        process.kill()
    reader.close()


def consume_java(address: str, topic: str, client_id: str, meter: Meter) -> None:
    with tempfile.NamedTemporaryFile("w") as config:
        config.write(f"client.id={client_id}\nmax.partition.fetch.bytes=262144\n")
        config.flush()
        read = ("--bootstrap-server", address, "--topic", topic, "--num-records", "100000000", "--group", client_id)
        shown = ("--show-detailed-stats", "--hide-header", "--reporting-interval", "100", "--timeout", "120000")
        command = [*java_command("org.apache.kafka.tools.ConsumerPerformance", "256M"), *read, *shown]
        limits = ("--fetch-size", "262144", "--command-config", config.name)
        with subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, text=True) as process:
            seen = 0
            for line in process.stdout or ():
                fields = line.split(",")
                if len(fields) < 5 or not fields[4].strip().isdigit():
                    continue  # a line of the client's log
                total = int(fields[4])
                if not meter.add((total - seen) * len(_RECORD)):
                    break
                seen = total
            process.kill()


def produce_raw(address: str, topic: str, client_id: str, meter: Meter) -> None:
    _on_two_sockets(address, client_id, produce_request(topic, _RAW_BYTES), 9, lambda _: meter.add(_RAW_BYTES))


def consume_raw(address: str, topic: str, client_id: str, meter: Meter) -> None:
    partition = FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=_RAW_BYTES)
    topics = [FetchRequestFetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=_RAW_BYTES, session_epoch=-1, topics=topics)
    # What is not records is some hundred bytes, of an answer that is throttled all of it.
    _on_two_sockets(address, client_id, request, 11, lambda size: meter.add(size if size > 1_000 else 0))


def _on_two_sockets(
    address: str, client_id: str, request: Request, version: int, answered: Callable[[int], bool]
) -> None:
    """Send the request again and again, one at a time on each socket, until `answered` is false for the answer's
    size."""
    body = b"".join(encode_request(request, version, 1, client_id))
    frame = len(body).to_bytes(4, "big") + body
    host, _, port = address.rpartition(":")

    def run() -> None:
        buffer = bytearray(4 * _RAW_BYTES)
        with socket.create_connection((host, int(port))) as connection:
            is_due = True
            while is_due:
                connection.sendall(frame)
                got, size = 0, 4
                while got < size:
                    got += connection.recv_into(memoryview(buffer)[got:])
                    if size == 4 and got >= 4:
                        size += int.from_bytes(buffer[:4], "big")
                is_due = answered(size)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def produce_kalda(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from kalda.client.producer.producer import Producer

    def delivered(_: object, error: Exception | None) -> None:
        if error is None:
            meter.add(len(_RECORD))
        elif meter.add(0):
            print(f"    error: {error}")

    config = {"bootstrap.servers": address, "client.id": client_id, "batch.size": 100_000, "buffer.memory": 4_194_304}
    producer = Producer({**config, "max.block.ms": 120_000, "delivery.timeout.ms": 300_000})
    while meter.add(0):
        producer.send(topic, value=_RECORD, on_delivery=delivered)
    producer.close(timeout=1)


def consume_kalda(address: str, topic: str, client_id: str, meter: Meter) -> None:
    from kalda.base.ids import TopicPartition
    from kalda.client.consumer.consumer import Consumer

    config = {"bootstrap.servers": address, "client.id": client_id, "max.partition.fetch.bytes": 262_144}
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while meter.add(0):
            for record in consumer.poll(0.1):
                meter.add(len(record.value or b""))


CLIENTS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "librdkafka": (produce_librdkafka, consume_librdkafka),
    "librdkafka-64k": (partial(produce_librdkafka, batch_bytes=65_536), consume_librdkafka),
    "kafka-python": (produce_kafka_python, consume_kafka_python),
    "aiokafka": (produce_aiokafka, consume_aiokafka),
    "java": (produce_java, consume_java),
    "kalda": (produce_kalda, consume_kalda),
    "raw": (produce_raw, consume_raw),
}


def fill(address: str, topic: str, size: int) -> None:
    """Have records to consume."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "batch.size": 200_000})
    for number in range(size // len(_RECORD)):
        producer.produce(topic, _RECORD)
        if number % 1000 == 0:
            producer.flush()
    producer.flush()


def measure(nodes: list[Node], names: list[str], rates: list[float], seconds: float, only: str) -> None:
    """All rates of a client at the same time, on all nodes."""

    def run(node: Node, name: str, direction: int, rate: float) -> None:
        client_id = f"{name}-{rate:g}-{direction}"
        meter = Meter(seconds)
        CLIENTS[name][direction](f"127.0.0.1:{node.port}", "full" if direction else client_id, client_id, meter)
        seen = f"{meter.rate() / rate / 1e6:.3f}" if rate else f"{meter.rate() / 1e6:.1f} MB/s without a quota"
        kind = "consume" if direction else "produce"
        print(f"{node.name:14} {name:14} {kind} {rate:5.1f} MB/s: {seen}", flush=True)

    for node in nodes:
        node.create_topics(["full"])
        if only != "produce":
            most = 50e6 if names == ["raw"] else max(rates) * 1e6 * (seconds + 2 * _WINDOWS_S)
            fill(f"127.0.0.1:{node.port}", "full", int(most))
    for name in names:
        for direction, key in enumerate(("producer_byte_rate", "consumer_byte_rate")):
            if not key.startswith(only):
                continue
            for node in nodes:
                prepare(node, name, direction, key, rates)
            threads = [
                threading.Thread(target=run, args=(node, name, direction, rate)) for node in nodes for rate in rates
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def prepare(node: Node, name: str, direction: int, key: str, rates: list[float]) -> None:
    """Limit the clients of one kind on a node, and make the topics that they produce to."""
    with CommandAdmin(f"127.0.0.1:{node.port}") as cluster:
        for rate in rates:
            client_id = f"{name}-{rate:g}-{direction}"
            if rate:
                cluster.alter_client_quotas({(("client-id", client_id),): {key: rate * 1e6}}).check()
            if not direction:
                node.create_topics([client_id])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=33.0)
    parser.add_argument("--rates", default="1,5,20", help="MB/s; 0 is no quota")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--only", choices=("produce", "consume"), default="", help="producers or consumers")
    parser.add_argument("--system", choices=("kalda", "kafka", "both"), default="kalda")
    parser.add_argument("--quick", action="store_true", help="one client, a third of the time")
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.clients = 11.0, "librdkafka-64k"
    rates = [float(rate) for rate in given.rates.split(",")]
    peer = None if given.system == "kalda" else apache_kafka("1G")
    nodes = [Node(system) for system in (KALDA if given.system != "kafka" else None, peer) if system is not None]
    try:
        for node in nodes:
            node.start()
        measure(nodes, given.clients.split(","), rates, given.seconds, given.only)
    finally:
        for node in nodes:
            node.close()


if __name__ == "__main__":
    main()
