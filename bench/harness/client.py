"""One client process: `python -m harness.client WORKLOAD PORT TOPIC COUNT [SIZE]`; prints its figures as JSON.

It is a process of its own, so that it does not share the harness's interpreter. Producing and consuming use librdkafka,
with batches of up to 1 MB and 5 ms of linger; raw requests and round trips use one plain socket, so that the node's own
cost is measured. For the same reason the client is fast: it reads a thousand records at a time, which fit into its
cache, and garbage collection is off. Both save a quarter of a consumer's cost.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from harness.blocking import BlockingConnection
from harness.transacting import isolation, pipelined_thousands, thousands, transact, transact_many
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

Figures = dict[str, float]
_CHUNK = 10_000
_TAKEN = 1_000
_WINDOW = 50
_BATCH_BYTES = 500_000
_READ_BYTES = 8 * 1024 * 1024


def produce(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second, from the first call until all are acknowledged by all in-sync replicas."""
    return _produce(port, topic, count, size, partitions=1)


def produce_spread(port: int, topic: str, count: int, size: int) -> Figures:
    """`produce` to three partitions in turn, a chunk each."""
    return _produce(port, topic, count, size, partitions=3)


def _produce(port: int, topic: str, count: int, size: int, *, partitions: int) -> Figures:
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    producer.list_topics(topic)
    value = bytes(size)
    chunks: list[list[dict[str, object]]] = [
        [{"value": value, "partition": partition} for _ in range(_CHUNK)] for partition in range(partitions)
    ]
    began, worked = time.perf_counter(), time.process_time()
    for number in range(count // _CHUNK):
        left = chunks[number % partitions]
        while producer.produce_batch(topic, left) < len(left):
            # Messages that did not fit into the queue are marked: wait, and send them again.
            left = [message for message in left if message.pop("_error", None) is not None]
            producer.poll(0.005)
        producer.poll(0)
    if producer.flush(120):
        raise SystemExit("not everything was acknowledged")
    return _rate(count, began, worked)


def _rate(count: int, began: float, worked: float) -> Figures:
    """Records a second, and the number of cores that this process has used."""
    took = time.perf_counter() - began
    return {"per_s": count / took, "cores": (time.process_time() - worked) / took}


def consume(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second, from the assignment until the last one was returned to Python."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 256 * 1024,
            "fetch.message.max.bytes": 8 * 1024 * 1024,
        }
    )
    consumer.list_topics(topic)
    began, worked = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    got = 0
    while got < count:
        messages = consumer.consume(_TAKEN, 30)
        if not messages:
            raise SystemExit(f"only {got} of {count} records came")
        got += len(messages)
    figures = _rate(got, began, worked)
    consumer.close()
    return figures


class Raw:
    """A plain socket that sends the same frame again and again. All answers must have the size of the first one."""

    def __init__(self, port: int, request: Request, version: int) -> None:
        body = b"".join(encode_request(request, version, 1, "bench"))
        self.frame = len(body).to_bytes(4, "big") + body
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 20)
        self.socket.sendall(self.frame)
        self.answer_size = 4 + int.from_bytes(self._exactly(4), "big")
        self._exactly(self.answer_size - 4)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data

    def pipelined(self, count: int, window: int = _WINDOW) -> Figures:
        """Requests a second with `window` to twice as many of them in flight."""
        burst = self.frame * window
        began = time.perf_counter()
        self.socket.sendall(burst)
        sent, got = window, 0
        while got < count * self.answer_size:
            while sent - got // self.answer_size <= window and sent < count:
                self.socket.sendall(burst)
                sent += window
            got += self.socket.recv_into(self._buffer)
        return {"per_s": count / (time.perf_counter() - began)}

    def round_trips(self, count: int) -> Figures:
        """Percentiles of the time that one request at a time takes, in µs."""
        return percentiles(self.durations_us(count))

    def durations_us(self, count: int) -> list[float]:
        """The time that each of `count` requests takes, one at a time, in µs."""
        taken = []
        for _ in range(count):
            began = time.perf_counter_ns()
            self.socket.sendall(self.frame)
            got = 0
            while got < self.answer_size:
                got += self.socket.recv_into(self._buffer)
            taken.append((time.perf_counter_ns() - began) / 1000)
        return taken


def percentiles(taken: list[float]) -> Figures:
    """Of durations."""
    taken.sort()
    return {"p50_us": taken[len(taken) // 2], "p99_us": taken[len(taken) * 99 // 100]}


def produce_request(topic: str, size: int) -> ProduceRequest:
    """One batch of one record."""
    records = build_batch([(int(time.time() * 1000), None, bytes(size), ())])
    data = [PartitionProduceData(index=0, records=records)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def fetch_request(topic: str) -> FetchRequest:
    """Fetches the topic's first batch, which `produce_request` made: `max_bytes` has no room for two."""
    partitions = [FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=200)]
    topics = [FetchRequestFetchTopic(topic=topic, partitions=partitions)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def requests(port: int, topic: str, count: int, size: int) -> Figures:
    """Produce requests of one batch of one record, pipelined on one connection."""
    return Raw(port, produce_request(topic, size), 9).pipelined(count)


def fetches(port: int, topic: str, count: int, size: int) -> Figures:
    """Fetch requests of one batch of one record, pipelined on one connection."""
    return Raw(port, fetch_request(topic), 11).pipelined(count)


def _large_batch(size: int) -> tuple[int, bytes]:
    """(number of its records, itself): a batch of half a megabyte."""
    count = _BATCH_BYTES // (size + 10)
    now_ms = int(time.time() * 1000)
    return count, bytes(build_batch([(now_ms, None, bytes(size), ()) for _ in range(count)]))


def batches(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second in batches that are ready: what the node does where its client has nothing to do."""
    each, records = _large_batch(size)
    data = [PartitionProduceData(index=0, records=records)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    raw = Raw(port, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 9)
    return {"per_s": raw.pipelined(count // each, 2)["per_s"] * each}


def reads(port: int, topic: str, count: int, size: int) -> Figures:
    """Records a second in responses that are not decoded: the beginning of what `batches` has written, each time."""
    each, records = _large_batch(size)
    partitions = [FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=_READ_BYTES)]
    topics = [FetchRequestFetchTopic(topic=topic, partitions=partitions)]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=_READ_BYTES, session_epoch=-1, topics=topics)
    raw = Raw(port, request, 11)
    in_answer = raw.answer_size // len(records) * each
    return {"per_s": raw.pipelined(max(4, count // in_answer), 2)["per_s"] * in_answer}


def round_trip(port: int, topic: str, count: int, size: int) -> Figures:
    """Produce requests of one batch of one record, one at a time."""
    raw = Raw(port, produce_request(topic, size), 9)
    raw.round_trips(count // 10)
    return raw.round_trips(count)


def metadata(port: int, topic: str, count: int, size: int) -> Figures:
    """Metadata of one topic, one request at a time."""
    from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return Raw(port, request, 9).pipelined(count)


def end_to_end(port: int, topic: str, count: int, size: int) -> Figures:
    """Percentiles from librdkafka's `produce` until its consumer returns the record, one record at a time, in µs."""
    servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
    producer = Producer({**servers, "acks": "all", "linger.ms": 0})
    consumer = Consumer({**servers, "group.id": "bench", "fetch.wait.max.ms": 100, "enable.auto.commit": False})
    with BlockingConnection("127.0.0.1", port) as connection:
        connection.request(produce_request(topic, size))
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.assign([TopicPartition(topic, 0, end)])
    taken = []
    for at in range(count + count // 10):
        began = time.perf_counter_ns()
        producer.produce(topic, bytes(size), partition=0)
        producer.poll(0)
        message = consumer.poll(30)
        if message is None or message.error() is not None:
            raise SystemExit(f"no record came: {message and message.error()}")
        if at >= count // 10:
            taken.append((time.perf_counter_ns() - began) / 1000)
    producer.flush(10)
    consumer.close()
    taken.sort()
    return {"p50_us": taken[count // 2], "p99_us": taken[count * 99 // 100]}


WORKLOADS: dict[str, Callable[[int, str, int, int], Figures]] = {
    work.__name__: work
    for work in (
        produce,
        produce_spread,
        consume,
        requests,
        fetches,
        round_trip,
        metadata,
        end_to_end,
        batches,
        reads,
        transact,
        transact_many,
        thousands,
        pipelined_thousands,
        isolation,
    )
}


def main() -> None:
    name, port, topic, count = sys.argv[1:5]
    size = int(sys.argv[5]) if len(sys.argv) > 5 else 100
    gc.disable()
    print(json.dumps(WORKLOADS[name](int(port), topic, int(count), size)))


if __name__ == "__main__":
    main()
