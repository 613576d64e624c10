"""A consumer reads batches of the message formats 0 and 1, which a broker sends as they are in its log."""

from __future__ import annotations

import pytest
from consumer_world import Cluster, Member
from legacy_batches import legacy_batch

from kalda.base.ids import TopicPartition
from kalda.client.consumer.columns import to_one_batch
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.records.batch import TimestampType, read_header
from kalda.records.compression import Compression

T0 = TopicPartition("t", 0)
FORMATS = [
    (magic, codec)
    for magic in (0, 1)
    for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
]


def cluster_with(magic: int, codec: Compression) -> Cluster:
    """Nine records in old batches of three, then one in a batch of now."""
    cluster = Cluster(brokers=1)
    cluster.add_topic("t", 1)
    log = cluster.logs[T0]
    for first in (0, 3, 6):
        rows = [(at, 1_000 + at, None if at % 3 else b"key", b"value %d" % at) for at in range(first, first + 3)]
        whole, position = legacy_batch(magic, rows, codec), 0
        while position < len(whole):
            size = read_header(whole, position).size_bytes
            log.batches.append(whole[position : position + size])
            position += size
    log.end = 9
    cluster.append("t", 0, b"value 9")
    return cluster


@pytest.mark.parametrize("start", [0, 1, 5, 8])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_poll_returns_their_records_from_any_offset(magic: int, codec: Compression, start: int) -> None:
    member = Member(cluster_with(magic, codec)).assign(T0)
    member.is_polling = True
    member.core.subscription.state(T0).seek(OffsetAndEpoch(start))
    found = []
    for _ in range(20):
        member.cluster.run(100)
        member.turn()
        found += member.core.take_records(2)
    assert [record.offset for record in found] == list(range(start, 10))
    assert [record.value for record in found] == [b"value %d" % at for at in range(start, 10)]
    old = found[:-1]
    assert {record.timestamp_type for record in old} == {TimestampType.CREATE if magic else TimestampType.NONE}
    assert [record.timestamp_ms for record in old] == [1_000 + r.offset if magic else -1 for r in old]
    assert [record.key for record in old] == [None if r.offset % 3 else b"key" for r in old]


@pytest.mark.parametrize("rows", [2, 1_000])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_poll_arrow_returns_their_records(magic: int, codec: Compression, rows: int) -> None:
    pytest.importorskip("pyarrow")
    member = Member(cluster_with(magic, codec)).assign(T0)
    member.is_polling = True
    member.core.subscription.state(T0).seek(OffsetAndEpoch(1))
    offsets: list[int] = []
    types: list[int] = []
    for _ in range(20):
        member.cluster.run(100)
        member.turn()
        decoded = to_one_batch(member.core.take_chunks(rows))
        assert decoded.failure is None
        if decoded.batch is not None:
            assert decoded.batch.num_rows <= rows
            offsets += decoded.batch.column("offset").to_pylist()
            types += decoded.batch.column("timestampType").to_pylist()
    assert offsets == list(range(1, 10))
    assert types == [0 if magic else -1] * 8 + [0]
