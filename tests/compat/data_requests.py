"""Produce and Fetch requests as tests compare the answers to them."""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.ids import Uuid
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.records.builder import build_batch
from kalda.records.compression import Compression

TIME = 1_700_000_000_000


def batch(count: int = 1, codec: Compression = Compression.NONE, time_ms: int = TIME, **fields: int) -> bytearray:
    records = [(time_ms + at, b"k%d" % at, b"v%d" % at, ()) for at in range(count)]
    return build_batch(records, compression=codec, **fields)


def produce(
    name: str, topic_id: Uuid, *data: tuple[int, bytes | bytearray], acks: int = -1, timeout_ms: int = 5000
) -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=records) for index, records in data]
    topics = [TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def fetch(
    *wanted: tuple[str, Uuid, int, int],
    partition_bytes: int = 1_000_000,
    epoch: int = -1,
    fetched_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: Iterable[tuple[str, Uuid, int]] = (),
    max_bytes: int = 1_000_000,
    min_bytes: int = 1,
    isolation_level: int = 0,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=20,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchRequestFetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    FetchRequestFetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_bytes,
                        current_leader_epoch=epoch,
                        last_fetched_epoch=fetched_epoch,
                    )
                ],
            )
            for name, topic_id, index, offset in wanted
        ],
        forgotten_topics_data=[
            FetchRequestForgottenTopic(topic=name, topic_id=topic_id, partitions=[index])
            for name, topic_id, index in forget
        ],
    )
