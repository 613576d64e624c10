"""The parts of the source that need no session: how a task connects, and the Python of Spark's workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kalda.client.cluster_client import ClusterClient
from kalda.spark import source
from kalda.spark.options import read_options
from kalda.spark.planning import OffsetRange


def test_a_task_retries_for_its_whole_timeout_and_planning_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ClusterClient] = []

    class Stop(Exception):
        pass

    def refuse(self: ClusterClient, *_: object) -> None:
        made.append(self)
        raise Stop

    monkeypatch.setattr(ClusterClient, "leaders_now", refuse)
    given = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "logs", "kafka.default.api.timeout.ms": "12000"}
    options = read_options(given)
    with pytest.raises(Stop):
        next(source.fetch(options, OffsetRange("logs", 0, 0, 1)))
    (task,) = made
    assert (task.timeout_ms, task.first_contact_ms) == (12_000, 12_000)
    assert source.connect(options.fetch).first_contact_ms < 12_000


def test_a_python_without_kalda_is_named_with_the_variable_to_set(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    advice = source.python_advice(str(bare))
    assert advice is not None
    assert "cannot import kalda" in advice
    assert f"PYSPARK_PYTHON={sys.executable}" in advice
    assert "is not there" in (source.python_advice(str(tmp_path / "missing")) or "")
    assert source.python_advice(sys.executable) is None
