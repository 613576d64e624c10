"""The snapshot that a node writes when it stops, and how a controller that starts far behind catches up."""

from __future__ import annotations

import pytest

from kalda.broker.quorum import quorum_side
from kalda.protocol.messages.metadata_records import NoOpRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.snapshots import parse_snapshot_name
from kalda.testing.cluster import Cluster


def snapshot_offsets(cluster: Cluster) -> list[int]:
    names = (path.name for path in (cluster.directory(1) / "__cluster_metadata-0").iterdir())
    return sorted(parsed[0].offset for name in names if (parsed := parse_snapshot_name(name)) is not None)


def test_a_clean_stop_leaves_a_snapshot_from_which_the_next_start_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_side, "_MIN_RECORDS_AT_STOP", 1)
    with Cluster() as cluster:
        topic_id = cluster.create_topic("orders", partitions=5)
        cluster.stop_node(1)
        assert len(snapshot_offsets(cluster)) == 2, "one of the format, one of the stop"
        cluster.start_node(1)
        node = cluster.nodes[1]
        assert len(node.image.topics.by_id[topic_id].partitions) == 5
        assert node.raft.log.latest_snapshot is not None
        assert node.raft.log.latest_snapshot_bytes > 100
        assert snapshot_offsets(cluster)[-1] == node.raft.log.latest_snapshot.offset


def test_a_kill_writes_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_side, "_MIN_RECORDS_AT_STOP", 1)
    with Cluster() as cluster:
        cluster.create_topic("orders")
        cluster.kill_node(1)
        assert len(snapshot_offsets(cluster)) == 1


def test_a_stop_after_a_few_records_writes_no_snapshot() -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders")
        cluster.stop_node(1)
        assert len(snapshot_offsets(cluster)) == 1


def test_a_stop_in_a_very_large_cluster_writes_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_side, "_MIN_RECORDS_AT_STOP", 1)
    monkeypatch.setattr(quorum_side, "_MAX_PARTITIONS_AT_STOP", 4)
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=5)
        cluster.stop_node(1)
        assert len(snapshot_offsets(cluster)) == 1


def test_the_thread_that_writes_a_snapshot_pauses() -> None:
    pauses_ms: list[int] = []
    records = [VersionedRecord(NoOpRecord(), 0)] * (2 * quorum_side._RECORDS_PER_PAUSE + 1)
    assert list(quorum_side._with_pauses(iter(records), pauses_ms.append)) == records
    assert pauses_ms == [quorum_side._PAUSE_MS] * 2


def test_a_controller_that_was_far_behind_is_made_from_the_image(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quorum_side, "MAX_REPLAYED_RECORDS", 4)
    with Cluster() as cluster:
        first = cluster.create_topic("orders", partitions=5)
        cluster.kill_node(1)
        with caplog.at_level("INFO", "kalda.quorum"):
            cluster.start_node(1)
        assert any("made from the image" in record.getMessage() for record in caplog.records)
        second = cluster.create_topic("payments", partitions=3)
        counts = {topic.id: len(topic.partitions) for topic in cluster.nodes[1].image.topics.by_id.values()}
        assert counts == {first: 5, second: 3}
        quorum = cluster.nodes[1].running.quorum
        assert quorum is not None
        assert quorum.controller is not None
        assert dict(quorum.controller.partitions.partition_counts) == counts
