"""Fetched batches to Spark's columns, compared with the records of the batches."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from kalda.client.consumer.columns import TYPES, SparkColumns
from kalda.clientcore.consuming.fetcher import Taken, aborted_batches
from kalda.records.batch import TimestampType, stamp
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch
from kalda.spark.source import ALL_COLUMNS, arrow_schema

SCHEMA = arrow_schema([(one.name, one.nullable) for one in ALL_COLUMNS])


def fetched(*batches: bytearray, start: int = 0, end: int | None = None, keep: Any = None) -> Taken:
    return Taken("logs", 3, memoryview(b"".join(batches)), start, end, keep)


def rows(source: Taken, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    batches = list(SparkColumns(schema).of(source))
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        assert batch.schema.equals(schema)
    return [row for batch in batches for row in batch.to_pylist()]


def batch_at(offset: int, *values: bytes, **options: Any) -> bytearray:
    return build_batch([(1000, None, value, ()) for value in values], base_offset=offset, **options)


def test_the_types_are_those_that_pyspark_derives() -> None:
    """PySpark compares the first record batch's schema with its own, and refuses any other."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert SCHEMA.equals(to_arrow_schema(ALL_COLUMNS, timezone="UTC"))
    assert SCHEMA.names == list(TYPES)


def test_every_column() -> None:
    records = [
        (1704067200123, b"k", b"v", [("a", b"1"), ("a", None)]),
        (0, None, None, ()),
        (-1, b"", b"", [("ü", b"")]),
    ]
    assert rows(fetched(build_batch(records, base_offset=40))) == [
        {
            "key": key,
            "value": value,
            "topic": "logs",
            "partition": 3,
            "offset": 40 + index,
            "timestamp": datetime.fromtimestamp(timestamp / 1000, UTC),
            "timestampType": 0,
            "headers": [{"key": name, "value": content} for name, content in headers] or None,
        }
        for index, (timestamp, key, value, headers) in enumerate(records)
    ]


def test_batches_of_any_size_in_turn() -> None:
    """Columns of one value are slices of one that was made for an earlier batch, or are new where that is too short."""
    columns = SparkColumns(SCHEMA)
    for count in (2, 1, 3, 3):
        values = [b"x"] * count
        (batch,) = columns.of(fetched(batch_at(0, *values)))
        batch.validate(full=True)
        assert batch.select(["topic", "partition", "timestampType"]).to_pylist() == [
            {"topic": "logs", "partition": 3, "timestampType": 0} for _ in values
        ]


def test_a_worker_without_pandas() -> None:
    """Importing pandas would cost each of Spark's workers half a second and 50 MB."""
    program = """
import sys
import pyarrow as pa
from kalda.clientcore.consuming.fetcher import Taken
from kalda.records.builder import build_batch
from kalda.client.consumer.columns import TYPES, SparkColumns
batch = memoryview(build_batch([(1000, b"k", b"v", ())] * 3))
columns = SparkColumns(pa.schema(list(TYPES.items())))
assert [batch.num_rows for batch in columns.of(Taken("logs", 3, batch, 1, 3, None))] == [2]
print(sorted({"pandas", "pyarrow.compute"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_no_record_has_headers() -> None:
    assert [row["headers"] for row in rows(fetched(batch_at(0, b"x", b"y")))] == [None, None]


def test_records_outside_the_range_are_left_out() -> None:
    batches = [batch_at(0, b"0", b"1", b"2"), batch_at(7, b"7", b"8", b"9")]
    assert [row["offset"] for row in rows(fetched(*batches, start=1, end=8))] == [1, 2, 7]
    assert [row["offset"] for row in rows(fetched(*batches, start=2, end=7))] == [2]
    assert rows(fetched(*batches, start=10, end=12)) == []
    assert rows(fetched()) == []


def test_headers_of_a_part_of_a_batch() -> None:
    records = [(0, None, None, [(str(index), b"x" * index)] * (index % 3)) for index in range(9)]
    found = rows(fetched(build_batch(records), start=4, end=8))
    assert [len(row["headers"] or ()) for row in found] == [1, 2, 0, 1]
    assert found[1]["headers"] == [{"key": "5", "value": b"xxxxx"}] * 2


def test_each_batch_has_its_own_timestamp_type() -> None:
    late = {"timestamp_type": TimestampType.LOG_APPEND, "append_time_ms": 5000}
    batches = [batch_at(0, b"a", b"b"), batch_at(2, b"c", **late), batch_at(3, b"d", **late), batch_at(4, b"e")]
    found = rows(fetched(*batches))
    assert [row["timestampType"] for row in found] == [0, 0, 1, 1, 0]
    assert [row["timestamp"].timestamp() for row in found] == [1, 1, 5, 5, 1]


def test_only_the_columns_of_the_schema_in_its_order() -> None:
    schema = arrow_schema([("offset", False), ("value", True)])
    assert rows(fetched(batch_at(5, b"x")), schema) == [{"offset": 5, "value": b"x"}]


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def marker(offset: int, producer_id: int, commit: bool) -> bytearray:
        batch = transaction_marker_batch(
            producer_id=producer_id, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=0
        )
        stamp(batch, 0, offset, 0)
        return batch

    def written(offset: int, value: bytes, producer_id: int) -> bytearray:
        own = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        return batch_at(offset, value, **own)

    batches = [
        written(0, b"aborted", 7),
        written(1, b"committed", 8),
        marker(2, 7, False),
        written(3, b"again", 7),
        marker(4, 8, True),
        marker(5, 7, True),
    ]
    void = aborted_batches(memoryview(b"".join(batches)), [(7, 0)])
    committed = fetched(*batches, keep=lambda header: header.base_offset not in void)
    assert [row["value"] for row in rows(committed)] == [b"committed", b"again"]
    assert [row["value"] for row in rows(fetched(*batches))] == [b"aborted", b"committed", b"again"]


def test_a_timestamp_beyond_sparks_range_is_an_error_or_null() -> None:
    last_ms = (2**63 - 1) // 1000
    times_ms = [last_ms, last_ms + 1, -last_ms, -last_ms - 1, -1, 2**63 - 1]
    source = fetched(build_batch([(time_ms, None, b"", ()) for time_ms in times_ms], base_offset=40))
    with pytest.raises(ValueError, match=f"logs-3, offset 41: the timestamp {last_ms + 1} is too far from 1970"):
        rows(source)
    schema = arrow_schema([("timestamp", True)])
    (batch,) = SparkColumns(schema, overflowing_times_are_null=True).of(source)
    batch.validate(full=True)
    micros = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert micros == [last_ms * 1000, None, -last_ms * 1000, None, -1000, None]
    assert len(rows(source, arrow_schema([("offset", True)]))) == 6
