"""Images of the logs and snapshots of real Apache Kafka nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from metadata_logs import NODES, log_batches, snapshots

from kalda.metadata.features import MetadataVersion
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.protocol.messages.metadata_records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from kalda.protocol.record_framing import VersionedRecord, encode_metadata_record


def replay(node: str, image: MetadataImage, first: int, end: int) -> MetadataImage:
    delta = MetadataDelta(image)
    for batch in log_batches(node):
        for index, (record, _) in enumerate(batch.records):
            if first <= batch.base_offset + index < end and not isinstance(
                record, BeginTransactionRecord | EndTransactionRecord
            ):
                delta.replay(record)
    return delta.apply(Provenance(end - 1, 0, 0))


def from_snapshot(records: list[VersionedRecord], base: MetadataImage = EMPTY) -> MetadataImage:
    delta = MetadataDelta(base)
    for record, _ in records:
        delta.replay(record)
    delta.finish_snapshot()
    return delta.apply(Provenance(0, 0, 0))


def encoded(records: list[VersionedRecord]) -> Counter[bytes]:
    """The records' bytes as a multiset. Kafka writes listeners and features in the order of its hash maps: they are
    sorted here."""
    for record, _ in records:
        if isinstance(record, RegisterBrokerRecord | RegisterControllerRecord):
            record.features.sort(key=lambda feature: feature.name)
            record.end_points.sort(key=lambda endpoint: endpoint.name)
    return Counter(encode_metadata_record(*record) for record in records)


def written(node: str) -> list[tuple[int, list[VersionedRecord]]]:
    return [(end, records) for end, records in snapshots(node).items() if end > 0]


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_gives_the_same_image_as_the_log_before_it(node: str) -> None:
    for end, records in written(node):
        assert replay(node, EMPTY, 0, end) == from_snapshot(records)


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_and_the_log_after_it_give_the_same_image_as_the_whole_log(node: str) -> None:
    end = log_batches(node)[-1].last_offset + 1
    for at, records in written(node):
        assert replay(node, EMPTY, 0, end) == replay(node, from_snapshot(records), at, end)


@pytest.mark.parametrize("node", NODES)
def test_an_image_writes_the_records_that_kafka_wrote(node: str) -> None:
    for _, records in written(node):
        assert encoded(from_snapshot(records).write()) == encoded(records)


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_replaces_any_other_image_completely(node: str) -> None:
    for _, other in written("node") + written("trio-2"):
        for _, records in written(node):
            assert from_snapshot(records, base=from_snapshot(other)) == from_snapshot(records)


def test_metadata_version_is_the_first_record_at_version_0() -> None:
    records = from_snapshot(snapshots("node")[323]).write()
    assert records[0].version == 0
    assert records[0].record.name == "metadata.version"  # type: ignore[attr-defined]


def test_the_image_of_the_upgraded_node() -> None:
    image = replay("node", EMPTY, 0, 324)
    assert image.features.metadata_version is MetadataVersion.IBP_4_3_IV0
    assert image.features.level("kraft.version") == 0
    assert image.cluster.brokers[1].fenced
    assert image.cluster.brokers[1].in_controlled_shutdown
    assert "manual" not in image.topics.by_name
    assert image.configs.of_topic("after-restart")["retention.ms"] == "7200000"
    assert image.scram.users() == ["alice"]
    assert image.producer_ids.next_producer_id == 2000
