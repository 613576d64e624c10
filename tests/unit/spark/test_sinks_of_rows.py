"""Rows to topics and partitions, their checksum, and the options of a sink."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kalda.spark.exactly_once import RowSum, TaskIdentity, batches_group_of
from kalda.spark.options import OptionError
from kalda.spark.row_writer import moments_in, parts_of
from kalda.spark.sink_options import write_options

VALUE = StructType([StructField("value", BinaryType())])


def options(**given: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": "h:1", "topic": "t", **{k.replace("__", "."): v for k, v in given.items()}}


def test_rows_are_split_by_topic_and_partition_in_their_order() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": ["a", "b", "a", "a", "b"],
            "partition": pa.array([1, 0, None, 1, 0], pa.int32()),
            "value": ["0", "1", "2", "3", "4"],
        }
    )
    found = [(topic, partition, part.column("value").to_pylist()) for topic, partition, part in parts_of(rows, None)]
    assert found == [("a", 1, ["0", "3"]), ("a", None, ["2"]), ("b", 0, ["1", "4"])]
    many = pa.RecordBatch.from_pydict({"partition": pa.array([2, 1] * 500, pa.int32()), "value": list(range(1000))})
    parts = {partition: part.column("value").to_pylist() for _, partition, part in parts_of(many, "x")}
    assert parts == {1: list(range(1, 1000, 2)), 2: list(range(0, 1000, 2))}
    (whole,) = parts_of(rows.select(["value"]), "x")
    assert (whole.topic, whole.partition, whole.rows.num_rows) == ("x", None, 5)
    with pytest.raises(ValueError, match="null topic present in the data"):
        list(parts_of(pa.RecordBatch.from_pydict({"topic": ["a", None], "value": ["0", "1"]}), None))


@pytest.mark.parametrize(
    ("zone", "time", "moment"),
    [
        ("UTC", datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 12)),
        ("Z", datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 12)),
        ("Asia/Kolkata", datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 6, 30)),
        ("+05:30", datetime(2026, 3, 1, 12, 0, 0, 1), datetime(2026, 3, 1, 6, 30, 0, 1)),
        ("GMT-8", datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 20)),
        ("Europe/Berlin", datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 0, 30)),  # twice: the earlier
        ("Europe/Berlin", datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 29, 1, 30)),  # skipped: it is 3:30
    ],
)
def test_times_without_a_zone_are_those_of_the_session(zone: str, time: datetime, moment: datetime) -> None:
    found = moments_in(pa.array([time, None], pa.timestamp("us")), zone)
    assert found.cast(pa.timestamp("us", "UTC")).to_pylist() == [moment.replace(tzinfo=UTC), None]


def test_the_checksum_depends_on_the_rows_but_not_on_their_order_or_batches() -> None:
    randomly = random.Random(1)
    rows = [(randomly.choice([None, b"k%d" % n]), b"value %d" % n * (n % 4)) for n in range(200)]

    def total(given: list[tuple[bytes | None, bytes]], size: int) -> str:
        found = RowSum()
        for first in range(0, len(given), size):
            keys, values = zip(*given[first : first + size], strict=True)
            batch = pa.RecordBatch.from_pydict(
                {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
            )
            found.add(batch)
        return found.text()

    shuffled = randomly.sample(rows, len(rows))
    assert total(rows, 7) == total(shuffled, 50) == total(rows, 200)
    assert total(rows[1:], 7) != total(rows, 7)
    assert total([*rows[1:], (None, rows[0][1] + b"x")], 7) != total(rows, 7)


def test_a_slice_of_a_batch_has_the_checksum_of_its_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["ab", "cd", None, "ef"]})
    sliced, copied = RowSum(), RowSum()
    sliced.add(batch.slice(1, 2))
    copied.add(pa.RecordBatch.from_pydict({"value": ["cd", None]}))
    assert sliced.text() == copied.text() == '{"rows":2,"key":0,"value":2,"sum":199}'


def test_names_of_transactions_and_groups() -> None:
    identity = TaskIdentity("q", 3, 7)
    assert (identity.transactional_id, identity.group) == ("kalda-spark-q-3", "kalda-spark-q-3")
    assert batches_group_of("q") == "kalda-spark-q-tasks"
    assert batches_group_of("q-3") != identity.group  # one query named "q", another one "q-3"


def test_transactions_may_stay_open_as_long_as_brokers_allow() -> None:
    plain = write_options(options(), VALUE, is_streaming=True)
    assert "transaction.timeout.ms" not in plain.kafka
    once = write_options(options(kalda__exactly__once="true"), VALUE, is_streaming=True)
    assert once.kafka["transaction.timeout.ms"] == "900000"
    given = options(kalda__exactly__once="true", kafka__transaction__timeout__ms="5000")
    assert write_options(given, VALUE, is_streaming=True).kafka["transaction.timeout.ms"] == "5000"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kalda__exactly__once__name": "x"}, "it has no effect without kalda.exactly.once=true"),
        ({"kalda__exactly__once__check": "false"}, "it has no effect without kalda.exactly.once=true"),
        ({"kalda__exactly__once": "true", "kalda__exactly__once__batch": "3"}, "numbers its batches itself"),
        ({"kalda__exactly__once": "yes"}, "true or false is expected"),
        ({"kalda__exactly__once": "true", "kafka__enable__idempotence": "false"}, "also enabling idempotence"),
        ({"kalda__exactlyonce": "true"}, "there is no such option; the nearest is kalda.exactly.once"),
    ],
)
def test_what_a_streaming_sink_refuses(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options(options(**given), VALUE, is_streaming=True)
    assert words in str(caught.value)


def test_a_batch_with_a_number_needs_a_name() -> None:
    given = options(kalda__exactly__once="true", kalda__exactly__once__batch="3")
    with pytest.raises(OptionError, match=r"set kalda\.exactly\.once\.name too"):
        write_options(given, VALUE, is_streaming=False)
    named = write_options(given | options(kalda__exactly__once__name="n"), VALUE, is_streaming=False)
    assert (named.name, named.batch) == ("n", 3)


def test_types_of_columns() -> None:
    text = StructType([StructField("value", StringType()), StructField("other", StringType())])
    assert write_options(options(), text, is_streaming=False).columns == ("value",)
    with pytest.raises(ValueError, match="partition attribute type must be an int, and it is string"):
        write_options(options(), StructType([*text, StructField("partition", StringType())]), is_streaming=False)
