"""Logs that a start finds, and of which the broker has no replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.storage.log_manager import LogManager
from kalda.testing import Cluster

PARTITIONS = 16


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
