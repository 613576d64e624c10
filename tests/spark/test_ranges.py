"""The offsets that a frame reads, and a database that stores them with the rows."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from topics import World

from kalda.spark import offset_ranges
from kalda.spark.partitions import OffsetRange, reading, starting_after
from kalda.testing import Cluster

pytestmark = pytest.mark.spark
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_offsets.py"


@pytest.fixture(scope="module")
def world(spark: Any) -> Iterator[World]:
    with Cluster() as cluster, World(cluster, spark) as made:
        made.number("stored", [30, 0, 5])
        yield made


def test_what_a_batch_reads(world: World) -> None:
    expected = [OffsetRange("stored", 0, 4, 30), OffsetRange("stored", 2, 4, 5)]
    start = {"stored": {"0": 4, "1": 0, "2": 4}}
    frame = world.frame(subscribe="stored", startingOffsets=start, minPartitions=7)
    assert offset_ranges(frame) == expected
    assert offset_ranges(frame.groupBy("partition").count()) == expected
    assert offset_ranges(world.frame(assign={"stored": [1]})) == []
    pinned = world.frame(**{name: json.loads(text) for name, text in reading(expected).items()})
    assert (offset_ranges(pinned), pinned.count()) == (expected, 27)
    with pytest.raises(ValueError, match="reads nothing by format"):
        offset_ranges(world.spark.range(3))


def test_rows_and_offsets_in_one_transaction_of_a_database(world: World, tmp_path: Path) -> None:
    """The second batch's transaction fails once: its rows and offsets come with the next run."""
    spec = importlib.util.spec_from_file_location("spark_offsets", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    file = tmp_path / "stored.db"
    database = example.open_database(f"sqlite:{file}")
    stores: list[list[OffsetRange]] = []

    class Failing:
        positions = database.positions

        def store(self, rows: Any, ranges: Any) -> None:
            if len(stores) == 1:
                stores.append([])
                raise OSError("the disk is full")
            stores.append(list(ranges))
            database.store(rows, ranges)

    with pytest.raises(Exception, match="the disk is full"):
        example.load(world.spark, world.servers, "stored", Failing(), 20)
    world.number_on("stored", [3], first=30)
    example.load(world.spark, world.servers, "stored", Failing(), 20)
    found = sqlite3.connect(file).execute("select number, position, value from records order by 1, 2").fetchall()
    assert found == [
        (number, offset, str(offset).encode()) for number, count in ((0, 33), (2, 5)) for offset in range(count)
    ]
    assert database.positions() == {("stored", 0): 33, ("stored", 2): 5}
    assert json.loads(starting_after({("a", 1): 5, ("a", 0): 7})) == {"a": {"0": 7, "1": 5}}
