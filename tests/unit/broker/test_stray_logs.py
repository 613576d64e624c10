"""Logs that a start finds, and of which the broker has no replica."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.storage.dirs.log_manager import LogManager
from kalda.testing import Cluster

PARTITIONS = 16
TIMEOUT_S = 30


def test_logs_of_a_directory_that_fails_while_they_are_opened_are_not_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, broken = tmp_path / "d0", tmp_path / "d1"
    with Cluster(config={"log.dirs": f"{whole},{broken}"}, directory=tmp_path) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        logs = sorted(path.name for path in broken.glob("orders-*"))
        assert len(logs) == PARTITIONS // 2
        cluster.kill_node(1)  # after an unclean stop all logs are opened, one by one
        segment = broken / logs[-1] / f"{0:020}.log"
        segment.unlink()
        segment.mkdir()
        cluster.start_node(1)
    assert f"log directory {broken} is offline" in caplog.text
    assert "set aside" not in caplog.text
    assert sorted(path.name for path in broken.glob("orders-*")) == logs


def test_the_log_of_a_replica_that_cannot_be_opened_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the records. The next start would make an empty log in its place, and serve that."""

    def refuse(*_: object) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no descriptor is left")

    with Cluster(directory=tmp_path) as cluster:
        cluster.create_topic("orders")
        cluster.stop_node(1)
        with monkeypatch.context() as patched:
            patched.setattr(LogManager, "get_or_create_log", refuse)
            cluster.start_node(1)
        assert "orders-0 is not served: its replica could not be opened, and the log stays" in caplog.text
        assert [path.name for path in cluster.directory(1).glob("orders-*")] == ["orders-0"]


def test_records_whose_topic_id_is_lost_stay_where_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An empty log in their place would be the leader's. Once the id is there again, they are served."""
    with Cluster(directory=tmp_path) as cluster:
        cluster.create_topic("orders")
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        producer.produce("orders", b"one")
        assert producer.flush(TIMEOUT_S) == 0
        file = cluster.directory(1) / "orders-0" / "partition.metadata"
        cluster.stop_node(1)
        content = file.read_bytes()
        file.write_bytes(b"damaged")
        cluster.start_node(1)
        assert "orders-0 has records, and its partition.metadata is missing or damaged" in caplog.text
        assert [path.name for path in cluster.directory(1).glob("orders-*")] == ["orders-0"]
        assert file.read_bytes() == b"damaged"
        cluster.stop_node(1)
        file.write_bytes(content)
        cluster.start_node(1)
        cluster.wait_for_leader("orders")
        consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
        at = confluent_kafka.TopicPartition("orders", 0)
        assert consumer.get_watermark_offsets(at, timeout=TIMEOUT_S) == (0, 1)
        consumer.close()


def test_a_log_of_a_later_version_is_offline_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(directory=tmp_path) as cluster:
        for topic in ("orders", "others"):
            cluster.create_topic(topic)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        producer.produce("orders", b"one")
        assert producer.flush(TIMEOUT_S) == 0
        partition = cluster.directory(1) / "orders-0"
        epochs = partition / "leader-epoch-checkpoint"
        cluster.stop_node(1)
        content = epochs.read_bytes()
        epochs.write_bytes(b"1" + content[1:])
        before = {path.name: path.read_bytes() for path in partition.iterdir()}
        cluster.start_node(1)
        cluster.wait_for_leader("others")
        assert f"{partition} is offline: {epochs} has version 1, only 0 is known" in caplog.text
        consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
        at = confluent_kafka.TopicPartition("others", 0)
        assert consumer.get_watermark_offsets(at, timeout=TIMEOUT_S) == (0, 0)
        cluster.stop_node(1)
        assert {path.name: path.read_bytes() for path in partition.iterdir()} == before
        epochs.write_bytes(content)
        cluster.start_node(1)
        cluster.wait_for_leader("orders")
        at = confluent_kafka.TopicPartition("orders", 0)
        assert consumer.get_watermark_offsets(at, timeout=TIMEOUT_S) == (0, 1)
        consumer.close()
