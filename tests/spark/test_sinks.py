"""Writing to topics: columns, plain writes, and batches that are written once whatever is run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from topics import World, cluster_of_tests

from kalda import Consumer
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.records.appending import murmur2
from kalda.spark.exactly_once import (
    NotRepeatable,
    TaskDone,
    TaskIdentity,
    TaskProducer,
    abort_batch,
    batches_group_of,
    commit_batch,
    write_in_transaction,
)
from kalda.spark.sink_options import write_options

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(spark: Any) -> Iterator[World]:
    with cluster_of_tests() as cluster, World(cluster, spark) as made:
        made.number("source", [40, 25])
        yield made


def committed(world: World, topic: str, isolation: str = "read_committed") -> list[Any]:
    """The topic's records, by Kalda's consumer."""
    with Consumer({"bootstrap.servers": world.servers, "isolation.level": isolation}) as consumer:
        partitions = [(topic, each.partition) for each in consumer.partitions_for(topic).partitions]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets()
        records: list[Any] = []
        while any(consumer.position(each) < ends[each] for each in consumer.assignment()):
            records += consumer.poll(0.2)
        return records


def write(world: World, frame: Any, **options: Any) -> None:
    frame.write.format("kalda").mode("append").options(**world.options(**options)).save()


def test_every_column_reaches_its_record(world: World) -> None:
    world.create("columns", 4)
    world.create("others", 1)
    rows = (
        "('columns', 'k1', cast('v1' as binary), 3, timestamp '2024-01-02 03:04:05.678Z', "
        "array(struct('h', cast('x' as binary)), struct('n', cast(null as binary)))), "
        "('columns', null, null, 0, null, null), "
        "('others', 'k2', cast('v2' as binary), null, timestamp '2024-01-02 00:00:00Z', array())"
    )
    frame = world.spark.sql(f"select * from values {rows} as t(topic, key, value, partition, timestamp, named)")
    headers = "cast(named as array<struct<key:string,value:binary>>) as headers"
    write(world, frame.selectExpr("topic", "key", "value", "partition", "timestamp", headers))
    first, second = sorted(committed(world, "columns"), key=lambda one: -one.partition)
    assert (first.partition, first.key, first.value, first.timestamp_ms) == (3, b"k1", b"v1", 1704164645678)
    assert list(first.headers) == [("h", b"x"), ("n", None)]
    assert (second.partition, second.key, second.value, list(second.headers)) == (0, None, None, [])
    (other,) = committed(world, "others")
    assert (other.key, other.value) == (b"k2", b"v2")


def test_what_is_written_can_be_read_back_and_keys_choose_partitions_as_kafka_does(world: World) -> None:
    world.create("keyed", 5)
    frame = world.spark.range(2_000).selectExpr("cast(id % 50 as string) as key", "cast(id as string) as value")
    write(world, frame, topic="keyed")
    records = committed(world, "keyed")
    assert Counter(one.value for one in records) == Counter(str(number).encode() for number in range(2_000))
    assert len({(one.key, one.partition) for one in records}) == 50
    assert all(one.partition == (murmur2(one.key) & 0x7FFFFFFF) % 5 for one in records)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id as value", {"topic": "x"}, "value attribute type must be a string or binary, and it is bigint"),
        ("'a' as key", {"topic": "x"}, "Required attribute 'value' not found"),
        ("'a' as value", {}, "topic option required when no 'topic' attribute is present"),
        ("'a' as value, 'b' as headers", {"topic": "x"}, "headers attribute type must be array<struct<key:string"),
        ("'a' as value", {"topic": "x", "kafka.key.serializer": "y"}, "kafka.key.serializer = 'y': it is not supp"),
        ("'a' as value", {"topic": "x", "kafka.transactional.id": "y"}, "set option kalda.exactly.once to true"),
        ("'a' as value", {"topic": "x", "kafka.acks": "7"}, "option kafka.acks = '7'"),
        ("'a' as value", {"topic": "x", "topics": "y"}, "there is no such option; the nearest is topic"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(world: World, columns: str, options: Any, words: str) -> None:
    frame = world.spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=words.replace("[", r"\[")) as caught:
        frame.write.format("kalda").mode("append").options(**world.options(), **options).save()
    assert "Traceback" not in str(caught.value)


def test_a_row_without_a_topic_fails_the_task(world: World) -> None:
    frame = world.spark.sql("select cast(null as string) as topic, 'a' as value")
    with pytest.raises(Exception, match="null topic present in the data") as caught:
        write(world, frame)
    assert "Traceback" not in str(caught.value)


def test_a_time_without_a_zone_is_that_of_the_session(world: World) -> None:
    world.create("zoned", 1)
    world.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        write(
            world, world.spark.sql("select 'a' as value, timestamp_ntz'2026-03-01 12:00' as timestamp"), topic="zoned"
        )
    finally:
        world.spark.conf.set("spark.sql.session.timeZone", "UTC")
    (record,) = committed(world, "zoned")
    assert datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) == datetime(2026, 3, 1, 6, 30, tzinfo=UTC)


def group(name: str, task: int | None) -> str:
    """Of a task, or of the batch."""
    return batches_group_of(name) if task is None else TaskIdentity(name, task).group


def recorded(world: World, name: str, task: int | None) -> OffsetAndEpoch:
    """What was committed with the last batch."""
    (found,) = world.admin.list_group_offsets(group(name, task)).succeeded.values()
    return found


def record(world: World, name: str, task: int | None, topic: str, at: OffsetAndEpoch) -> None:
    """Replace it."""
    world.admin.alter_group_offsets(group(name, task), {(topic, 0): at}).check()


class Copy:
    """A streaming query that copies the topic `source`, in transactions."""

    def __init__(self, world: World, directory: Path, target: str) -> None:
        self.world = world
        self.directory = directory / "checkpoint"
        self.target = target

    def run(self, **options: Any) -> str:
        stream = self.world.stream(subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=30)
        writer = stream.select("value").writeStream.format("kalda").option("checkpointLocation", str(self.directory))
        given = self.world.options(topic=self.target, kalda__exactly__once="true", **options)
        query = writer.options(**given).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return str(query.id)

    def forget_commit(self, batch: int) -> None:
        """As after a crash between the writes and Spark's commit log: the batch will be run again."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.directory / "commits" / name).unlink(missing_ok=True)


def expected(world: World) -> Counter[bytes]:
    return Counter(one.value for one in committed(world, "source"))


def test_a_batch_that_is_run_again_is_not_written_again(world: World, tmp_path: Path) -> None:
    world.create("copied", 2)
    copy = Copy(world, tmp_path, "copied")
    name = copy.run()
    assert Counter(one.value for one in committed(world, "copied")) == expected(world)
    for task in (0, 1):
        at = recorded(world, name, task)
        assert at.offset == 3
        assert '"rows":' in at.metadata
    copy.forget_commit(2)
    assert copy.run() == name
    assert Counter(one.value for one in committed(world, "copied", "read_uncommitted")) == expected(world)


def test_a_batch_of_which_one_task_was_committed_is_completed(world: World, tmp_path: Path) -> None:
    """As after a driver that died between two of its requests: the other task's transaction is aborted."""
    world.create("halved", 2)
    copy = Copy(world, tmp_path, "halved")
    name = copy.run()
    copy.forget_commit(2)
    record(world, name, 0, "halved", recorded(world, name, 0)._replace(offset=2))
    before = committed(world, "halved")
    copy.run()
    added = committed(world, "halved")[len(before) :]
    assert 0 < len(added) < 30  # the batch's rows of that one task


def test_a_batch_that_is_not_the_same_when_it_is_run_again_is_refused(world: World, tmp_path: Path) -> None:
    world.create("changed", 1)
    copy = Copy(world, tmp_path, "changed")
    name = copy.run()
    copy.forget_commit(2)
    mine = recorded(world, name, 0)
    record(world, name, 0, "changed", mine._replace(metadata='{"rows":1,"key":0,"value":1,"sum":48}'))
    with pytest.raises(Exception, match="the query does not give each task the same rows each time"):
        copy.run()
    record(world, name, 0, "changed", mine)
    record(world, name, 1, "changed", recorded(world, name, 1)._replace(offset=2))
    tasks = recorded(world, name, None)
    record(world, name, None, "changed", tasks._replace(metadata='{"tasks":9}'))
    with pytest.raises(Exception, match=r'had \{"tasks":9\} when it was first written, of which 1 were committed'):
        copy.run()
    copy.run(kalda__exactly__once__check="false")


def test_a_checkpoint_older_than_what_was_written_is_refused(world: World, tmp_path: Path) -> None:
    world.create("ahead", 1)
    copy = Copy(world, tmp_path, "ahead")
    name = copy.run()
    for batch in (1, 2):
        copy.forget_commit(batch)
        if batch == 2:
            for folder in ("offsets", "commits"):
                (copy.directory / folder / "2").unlink(missing_ok=True)
                (copy.directory / folder / ".2.crc").unlink(missing_ok=True)
    assert recorded(world, name, 0).offset == 3
    with pytest.raises(Exception, match="the checkpoint is older than what was written"):
        copy.run()


def test_a_batch_job_is_atomic_by_task_and_found_again_by_its_name(world: World) -> None:
    world.create("jobs", 2)
    frame = world.frame(subscribe="source").select("value")
    options = {"topic": "jobs", "kalda__exactly__once": "true", "kalda__exactly__once__name": "load-1"}
    for _ in range(2):
        write(world, frame, **options)
    assert Counter(one.value for one in committed(world, "jobs", "read_uncommitted")) == expected(world)
    failing = frame.selectExpr("if(value = cast('39' as binary), cast(raise_error('no') as binary), value) as value")
    with pytest.raises(Exception, match="no"):
        write(world, failing, topic="jobs", kalda__exactly__once="true")
    assert Counter(one.value for one in committed(world, "jobs")) == expected(world)


def test_a_task_that_has_committed_rows_and_then_has_none_is_refused(world: World) -> None:
    """Its rows may have moved to a task whose transaction was not committed: they would be written twice."""
    world.create("moved", 1)
    given = world.options(topic="moved", kalda__exactly__once="true", kalda__exactly__once__name="moved")
    options = write_options(given, StructType([StructField("value", StringType())]), is_streaming=False)

    def task(number: int, *values: str) -> TaskDone:
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
        return write_in_transaction(options, TaskIdentity("moved", number, 0), [rows])

    commit_batch(options, [task(0, "a"), task(1)])  # as where the driver dies before it ends the task 1, with "b"
    with pytest.raises(NotRepeatable, match="task 0 of batch 0 of moved has committed rows, and has none"):
        commit_batch(options, [task(0), task(1, "a", "b")])
    assert [one.value for one in committed(world, "moved")] == [b"a"]
    commit_batch(options, [task(0, "a"), task(1, "b")])
    assert [one.value for one in committed(world, "moved")] == [b"a", b"b"]


def test_a_transaction_that_is_ended_twice_is_ended_once(world: World) -> None:
    """The response to the driver's request may be lost, and the request is sent again."""
    world.create("twice", 1)
    schema = StructType([StructField("value", BinaryType())])
    options = write_options(world.options(topic="twice", kalda__exactly__once="true"), schema, is_streaming=False)
    identity = TaskIdentity("twice", 0)
    producer = TaskProducer({**options.kafka, "transactional.id": identity.transactional_id})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("twice", b"once")
    done = TaskDone(identity, 1, "twice", *producer.prepare())
    producer.close(timeout=0)  # as a task: any other close ends the transaction
    for _ in range(2):
        commit_batch(options, [done])
    abort_batch(options, [done])
    assert [one.value for one in committed(world, "twice")] == [b"once"]
