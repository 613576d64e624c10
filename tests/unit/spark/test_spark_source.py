"""The parts of the source that need no session: the Python of Spark's workers, and refusals of streaming options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from kalda.spark import source
from kalda.spark.options import OptionError, ReadOptions, TopicSubscription


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


def test_a_stream_with_a_wrong_option_is_refused_when_spark_calls_its_reader() -> None:
    """PySpark replaces an exception of `streamReader` by one of its own."""
    made = source.KaldaSource({"kafka.bootstrap.servers": "a:1", "subscribe": "logs", "endingOffsets": "latest"})
    reader = made.streamReader(source.COLUMNS)
    for call in (reader.initialOffset, lambda: reader.latestOffset({}, None), lambda: reader.partitions({}, {})):
        with pytest.raises(OptionError, match="endingOffsets = 'latest': an end is not valid"):
            call()


def test_the_schema_is_refused_where_neither_a_batch_nor_a_stream_has_such_options() -> None:
    common = {"kafka.bootstrap.servers": "a:1", "subscribe": "logs"}
    for one in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        assert source.KaldaSource({**common, **one}).schema() == source.COLUMNS
    with pytest.raises(OptionError, match="minPartitions"):
        source.KaldaSource({**common, "minPartitions": "x"}).schema()


@pytest.mark.parametrize("partition", [None, InputPartition(None)])
def test_a_task_without_ranges_has_no_rows(partition: InputPartition | None) -> None:
    """Where none was planned, Spark 4.1 passes None, and later releases a partition without a value."""
    options = ReadOptions({"bootstrap.servers": "127.0.0.1:1"}, TopicSubscription(topics=("t",)))
    assert list(source.rows(options, [("value", True)], partition)) == []
