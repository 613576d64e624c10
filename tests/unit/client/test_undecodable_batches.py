"""What `poll` and `poll_arrow` do with batches that cannot be decoded, of a broker that sends damage or bombs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

import pytest
from consumer_world import Cluster, Member

from kalda.base.ids import TopicPartition
from kalda.client.consumer.columns import to_one_batch
from kalda.clientcore.consuming.consumer_errors import UndecodableRecord
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.records.batch import HEADER_SIZE, LOG_OVERHEAD, read_header, write_header
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@cache
def bomb() -> bytes:
    """More than may be decompressed, in a megabyte."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    pieces = [squeeze.compress(piece) for _ in range((MAX_DECOMPRESSED_BYTES >> 20) + 1)]
    return b"".join(pieces) + squeeze.flush()


def with_body(batch: bytes, body: bytes, codec: Compression) -> bytes:
    """The batch with another body, and the checksum of that."""
    out = bytearray(batch[:HEADER_SIZE] + body)
    header = read_header(batch)
    write_header(out, 0, header._replace(attributes=int(codec), batch_length=len(out) - LOG_OVERHEAD))
    return bytes(out)


def poll_arrow(member: Member) -> list[tuple[int, int]]:
    """As the consumers' `poll_arrow`: partitions and offsets."""
    for _ in range(50):
        member.cluster.run(100)
        member.turn()
        taken = member.core.take_chunks(1_000)
        if taken:
            decoded = to_one_batch(taken)
            if decoded.failure is not None:
                member.core.put_back(decoded.rest)
                if decoded.batch is None:
                    raise decoded.failure
            assert decoded.batch is not None
            columns = decoded.batch.to_pydict()
            return list(zip(columns["partition"], columns["offset"], strict=True))
    return []


def poll(member: Member) -> list[tuple[int, int]]:
    """As the consumers' `poll`."""
    for _ in range(50):
        member.cluster.run(100)
        member.turn()
        taken = member.core.take_records(1_000)
        if taken:
            return [(record.partition, record.offset) for record in taken]
    return []


@pytest.mark.parametrize("take", [poll, poll_arrow])
@pytest.mark.parametrize("what", ["damage", "bomb"])
def test_no_other_record_is_lost_with_one_that_cannot_be_decoded(
    what: str, take: Callable[[Member], list[tuple[int, int]]]
) -> None:
    cluster = Cluster(brokers=1)
    cluster.add_topic("t", 2)
    for partition in (T0, T1):
        for value in (b"a", b"b", b"c"):
            cluster.append(*partition, value)
    log = cluster.logs[T0]
    body, codec = (bomb(), Compression.GZIP) if what == "bomb" else (b"\xff" * 40, Compression.NONE)
    log.batches[1] = with_body(log.batches[1], body, codec)
    member = Member(cluster, **{"max.partition.fetch.bytes": 4 << 20}).assign(T0, T1)
    member.is_polling = True
    found: set[tuple[int, int]] = set()
    failure: UndecodableRecord | None = None
    for _ in range(4):
        try:
            found.update(take(member))
        except UndecodableRecord as error:
            failure = error
            break
    assert failure is not None
    assert (failure.partition, failure.offset) == (T0, 1)
    assert "seek past it" in failure.message
    assert (0, 0) in found
    assert member.core.subscription.positions()[T0].offset == 1
    member.core.subscription.state(T0).seek(OffsetAndEpoch(2))
    for _ in range(3):
        found.update(take(member))
    assert found == {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)}
