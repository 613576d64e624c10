"""Decoding and encoding the messages of the data path, one partition a request, and a large metadata answer.

Each figure is the best of several repeats, so that other load of the machine has little effect.

    python bench/protocol.py [--quick]
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable

from kalda.protocol import codec, framing
from kalda.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kalda.protocol.notation import Message

TOPIC_ID = bytes(range(16))
RECORDS = bytes(200)


repeats = 7


def measure(label: str, work: Callable[[], object], number: int = 20_000) -> None:
    best = min(timeit.repeat(work, number=number, repeat=repeats)) / number * 1e6
    print(f"{label:40} {best:9.2f} µs")


def topic(version: int, first_with_id: int = 13) -> tuple[str, bytes]:
    """Name and id of the topic, of which a version has one."""
    return ("", TOPIC_ID) if version >= first_with_id else ("my-topic", bytes(16))


def produce_request(version: int) -> Message:
    name, topic_id = topic(version)
    data = [PartitionProduceData(index=3, records=RECORDS)]
    topics = [TopicProduceData(name=name, topic_id=topic_id, partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


def produce_response(version: int) -> Message:
    name, topic_id = topic(version)
    partitions = [PartitionProduceResponse(index=3, base_offset=123_456)]
    return ProduceResponse(
        responses=[TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=partitions)]
    )


def fetch_request(version: int) -> Message:
    name, topic_id = topic(version)
    partitions = [FetchRequestFetchPartition(partition=1, fetch_offset=12_345, partition_max_bytes=1 << 20)]
    topics = [FetchRequestFetchTopic(topic=name, topic_id=topic_id, partitions=partitions)]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics)


def fetch_response(version: int) -> Message:
    name, topic_id = topic(version)
    partitions = [FetchResponsePartitionData(partition_index=1, high_watermark=12_345, records=[memoryview(RECORDS)])]
    return FetchResponse(responses=[FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions)])


def metadata_response(version: int) -> Message:
    """1,000 partitions in 100 topics."""
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
        for index in range(10)
    ]
    topics = [
        MetadataResponseTopic(name=f"topic-{number}", topic_id=TOPIC_ID if version >= 10 else bytes(16))
        for number in range(100)
    ]
    for one in topics:
        one.partitions = partitions
    brokers = [MetadataResponseBroker(node_id=number, host="localhost", port=9092) for number in range(3)]
    return MetadataResponse(brokers=brokers, controller_id=1, topics=topics)


def measure_decoding(make: Callable[[int], Message], versions: tuple[int, ...]) -> None:
    for version in versions:
        message = make(version)
        cls = type(message)
        frame = memoryview(bytearray(20) + codec.encode(message, version))
        measure(f"{cls.__name__} v{version} decode", lambda c=cls, f=frame, v=version: codec.decode(c, f, v, 20))


def measure_encoding(make: Callable[[int], Message], versions: tuple[int, ...], number: int = 20_000) -> None:
    for version in versions:
        message = make(version)
        label = f"{type(message).__name__} v{version} encode"
        measure(label, lambda m=message, v=version: codec.encode_buffers(m, v), number)


def main() -> None:
    global repeats
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repeats")
    if parser.parse_args().quick:
        repeats = 2
    frame = memoryview(bytearray(b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x0ardkafka123" + bytes(30)))
    measure("request header decode", lambda: framing.decode_request_header(frame))
    measure_decoding(produce_request, (3, 9, 12, 13))
    measure_decoding(fetch_request, (11, 12, 15, 17))
    measure_encoding(produce_response, (3, 9, 12, 13))
    measure_encoding(fetch_response, (11, 12, 15, 17))
    measure_encoding(metadata_response, (1, 9, 13), number=30)


if __name__ == "__main__":
    main()
