"""`kalda.spark` beside Spark's own Kafka connector, both on one `local[2]` session and with one Kalda node.

A topic of records with 100 B values is written once, straight from Arrow columns. Each round reads it with both, one
after the other: into an aggregate, into an aggregate with only the value read, into Parquet, as JSON into windows, and
as a stream with Trigger.AvailableNow. It writes half as many rows with both: rows that the query makes, rows of a
cached frame and of Parquet files; and exactly once with Kalda's, beside the at-least-once writes of Spark's. A stream
over 100 partitions in small batches gives the fixed cost of a micro-batch: the median of what Spark reports for a
batch. A stream of one record every few milliseconds gives the time from a send until `foreachBatch` has the record;
Java becomes faster for minutes, so an even number of rounds has both sources early and late as often.
Where Maven cannot fetch the other connector's jars (`KALDA_SPARK_KAFKA_JARS` names a folder that has them), only Kalda
is measured.

A third source is the ceiling: a Python data source that makes one such record batch in memory and yields it again and
again, without a broker, and drops the rows that it is given. Its cost is that of Spark's conversion between rows and
columns of Python, and no Python reader or writer can be faster. Spark does not prune the columns of a Python data
source, so a query pays for all columns of the schema; a smaller schema can be given to `read`, as for the second
figure. CPU is that of all processes on the two cores together, so 2 divided by the sum of both lines bounds the rate on
an idle machine.

    python bench/spark.py [--quick] [--rows 8000000] [--partitions 4] [--rounds 3] [--only write,stream] [--tcp]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from harness import systems
from harness.ceiling import register_ceiling
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.sparks import VALUE_BYTES, connector_jars, cpu_s, fill, rounded, session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kalda import Admin, Producer
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.partitions import OffsetSpec

TOPIC, SMALL, WRITTEN, LIVE = "rows", "small", "written", "live"
SMALL_BATCHES = 10
READ = {"aggregate", "value", "parquet", "windows", "stream"}
"""The tasks that read the large topic."""
LIVE_S, LIVE_EVERY_S = 8.0, 0.005
KALDA, SPARK, CEILING = "kalda.spark", "Spark's own", "no broker"
FORMATS = {KALDA: "kalda", SPARK: "kafka", CEILING: "ceiling"}


def fill_small(node: Node) -> None:
    """100 partitions, with a row in each for every small batch; and the topic of the live stream."""
    node.create_topics([SMALL], 100)
    node.create_topics([LIVE], 4)
    with Producer({"bootstrap.servers": f"127.0.0.1:{node.port}"}) as producer:
        for index in range(100 * SMALL_BATCHES):
            producer.send(SMALL, b"x" * VALUE_BYTES, partition=index % 100)


class Work:
    """The measured queries on one topic, with each source."""

    def __init__(self, spark: SparkSession, node: Node, rows: int, partitions: int) -> None:
        self.spark = spark
        self.node = node
        self.rows = rows
        self.partitions = partitions
        self._cached: DataFrame | None = None
        self._written = 0

    def renew_topic(self) -> None:
        """A new topic to write to. The last one is checked and deleted, with what it has in the page cache: else the
        node would wait for the disk in later rounds."""
        with Admin({"bootstrap.servers": f"127.0.0.1:{self.node.port}"}) as admin:
            if self._written:
                last = {TopicPartition(self._topic, index): OffsetSpec.LATEST for index in range(4)}
                found = sum(each.offset for each in admin.list_offsets(last).values())
                if found and not 0 <= found - self.rows // 2 < 100:  # markers of transactions are counted too
                    raise SystemExit(f"{self.rows // 2} rows were to be written, and the topic has {found}")
                admin.delete_topics([self._topic]).check()
        self._written += 1
        self.node.create_topics([self._topic], 4)

    @property
    def _topic(self) -> str:
        return f"{WRITTEN}-{self._written}"

    def frame(self, source: str, schema: str | None = None) -> DataFrame:
        reader = self.spark.read.format(FORMATS[source])
        if schema is not None and source != SPARK:
            reader = reader.schema(schema)
        if source == CEILING:
            reader = reader.option("rows", self.rows).option("partitions", self.partitions)
        else:
            reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{self.node.port}").option("subscribe", TOPIC)
        frame: DataFrame = reader.load()
        return frame

    def _aggregate(self, frame: DataFrame) -> None:
        found = frame.selectExpr("count(*)", "sum(length(value))").first()
        if found is None or tuple(found) != (self.rows, self.rows * VALUE_BYTES):
            raise SystemExit(f"{self.rows} rows were written, and {found} were read")

    def aggregate(self, source: str) -> None:
        self._aggregate(self.frame(source))

    def aggregate_value(self, source: str) -> None:
        self._aggregate(self.frame(source, "value binary"))

    def parquet(self, source: str) -> None:
        target = self.node.directory / "parquet"
        self.frame(source).write.mode("overwrite").parquet(str(target))
        shutil.rmtree(target)

    def windows(self, source: str) -> None:
        """JSON parsed, and counted by windows of time."""
        text = """concat('{"n": ', offset, ', "s": "', substr(hex(value), 1, 20), '"}')"""
        parsed = self.frame(source).selectExpr("timestamp", f"from_json({text}, 'n bigint, s string') as row")
        counted = parsed.selectExpr("window(timestamp, '1 second') as w", "row.n").groupBy("w").count()
        found = sum(row["count"] for row in counted.collect())
        if found != self.rows:
            raise SystemExit(f"{self.rows} rows were written, and {found} were in windows")

    def stream(self, source: str) -> None:
        """All rows, in batches of a quarter."""
        seen: list[int] = []
        self._until_end(source, TOPIC, self.rows // 4, lambda frame: seen.append(frame.count()))
        if sum(seen) != self.rows:
            raise SystemExit(f"{self.rows} rows were streamed as {seen}")

    def small_batches(self, source: str) -> float:
        """The median of the milliseconds of `SMALL_BATCHES` micro-batches over 100 partitions with a row in each."""
        progress = self._until_end(
            source, SMALL, 100, lambda frame: frame.write.format("noop").mode("append").save()
        ).recentProgress
        found = [each.durationMs["triggerExecution"] for each in progress if each.numInputRows]
        if len(found) != SMALL_BATCHES:
            raise SystemExit(f"{SMALL_BATCHES} batches were written, and {len(found)} were read")
        return float(median(found))

    def live(self, source: str) -> float:
        """The median of the milliseconds from a send until `foreachBatch` has collected the record, in batches that
        follow each other without a pause."""
        times: list[float] = []
        begun = threading.Event()

        def collect(frame: DataFrame, _number: int) -> None:
            rows = frame.select("value").collect()
            now_ns = time.time_ns()
            times.extend((now_ns - int(row.value)) / 1e6 for row in rows)
            begun.set()

        reader = self.spark.readStream.format(FORMATS[source]).option("subscribe", LIVE)
        stream = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{self.node.port}").load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = stream.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
            with Producer({"bootstrap.servers": f"127.0.0.1:{self.node.port}", "linger.ms": 0}) as producer:
                for is_counted in (False, True):
                    until_s = time.monotonic() + LIVE_S / (1 if is_counted else 2)
                    while query.isActive and (time.monotonic() < until_s or not begun.is_set()):
                        producer.send(LIVE, b"%d" % time.time_ns())
                        time.sleep(LIVE_EVERY_S)
                    if not is_counted:
                        times.clear()
            query.processAllAvailable()  # to stop it within a batch would print Java's traces; raises its error
            query.stop()
        return median(times)

    def _until_end(self, source: str, topic: str, limit: int, do: Callable[[DataFrame], object]) -> StreamingQuery:
        """Stream the topic to its end. Returns the query, which has ended."""
        reader = self.spark.readStream.format(FORMATS[source])
        if source == CEILING:
            reader = reader.option("rows", self.rows).option("partitions", self.partitions)
        else:
            reader = reader.option("kafka.bootstrap.servers", f"127.0.0.1:{self.node.port}").option("subscribe", topic)
            reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", limit)
        stream = reader.load()
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = stream.writeStream.foreachBatch(lambda frame, _number: do(frame)).trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
        return query

    def write(self, source: str) -> None:
        self._write(source, self._made_rows())

    def write_once(self, source: str) -> None:
        """Spark's connector has no exactly-once writes: its plain ones are beside Kalda's."""
        self._write(source, self._made_rows(), exactly_once=True)

    def write_cached(self, source: str) -> None:
        """Rows that Spark has in memory."""
        if self._cached is None:
            self._cached = self._made_rows().cache()
            self._cached.count()
        self._write(source, self._cached)

    def write_files(self, source: str) -> None:
        """Rows of Parquet files."""
        path = self.node.directory / "rows.parquet"
        if not path.exists():
            self._made_rows().write.parquet(str(path))
        self._write(source, self.spark.read.parquet(str(path)))

    def _made_rows(self) -> DataFrame:
        """Rows that are made while they are written, which is a part of the cost."""
        return self.spark.range(0, self.rows // 2, 1, 4).selectExpr("rpad(cast(id as string), 100, 'x') as value")

    def _write(self, source: str, rows: DataFrame, *, exactly_once: bool = False) -> None:
        writer = rows.write.format(FORMATS[source]).mode("append").option("topic", self._topic)
        writer = writer.option("kafka.bootstrap.servers", f"127.0.0.1:{self.node.port}")
        if exactly_once and source == KALDA:
            writer = writer.option("kalda.exactly.once", "true")
        writer.save()


class Task(NamedTuple):
    """A measured query."""

    title: str
    do: Callable[[str], float | None]
    """Returns milliseconds where these are the figure, instead of the rows a second."""
    rows: int
    sources: Sequence[str]
    prepare: Callable[[], None] = lambda: None
    """Called before each measurement."""


def tasks_of(work: Work, sources: Sequence[str]) -> dict[str, Task]:
    rows, half = work.rows, work.rows // 2
    return {
        "aggregate": Task("into an aggregate", work.aggregate, rows, [*sources, CEILING]),
        "value": Task("only values, into an aggregate", work.aggregate_value, rows, [*sources, CEILING]),
        "parquet": Task("into Parquet", work.parquet, rows, [*sources, CEILING]),
        "windows": Task("JSON into windows", work.windows, rows, [*sources, CEILING]),
        "stream": Task("a stream, Trigger.AvailableNow", work.stream, rows, [*sources, CEILING]),
        "write": Task("written", work.write, half, [*sources, CEILING], work.renew_topic),
        "once": Task("written exactly once (Spark's: at least once)", work.write_once, half, sources, work.renew_topic),
        "cached": Task("written from a cached frame", work.write_cached, half, [*sources, CEILING], work.renew_topic),
        "files": Task("written from Parquet", work.write_files, half, [*sources, CEILING], work.renew_topic),
        "small": Task("a micro-batch of 100 partitions", work.small_batches, 0, sources),
        "live": Task("from a send to foreachBatch, p50", work.live, 0, sources),
    }


def measure_round(tasks: Iterable[Task], node: Node, figures: Figures, number: int) -> None:
    """Each task with each source; negative rounds warm the JVM up, and are not counted."""
    for task in tasks:
        for source in task.sources if number % 2 == 0 else reversed(task.sources):
            task.prepare()
            of_node, of_spark, began = node.cpu_s(), cpu_s(with_node=False), time.perf_counter()
            milliseconds = task.do(source)
            seconds = time.perf_counter() - began
            of_node, of_spark = node.cpu_s() - of_node, cpu_s(with_node=False) - of_spark
            if number < 0:
                continue
            if milliseconds is not None:
                figures.add(Figure(task.title, "ms", True), source, milliseconds)
                continue
            figures.add(Figure(task.title, "M rows/s"), source, task.rows / seconds / 1e6)
            for part, used in (("Spark", of_spark), ("the node", of_node)):
                figures.add(Figure(f"  CPU of {part}, {task.title}", "µs/row", True), source, used / task.rows * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round over a tenth of the rows")
    parser.add_argument(
        "--only", default="", help="aggregate,value,parquet,windows,stream,write,once,cached,files,small,live"
    )
    parser.add_argument("--tcp", action="store_true", help="Java and Python over TCP, as in a session of Spark's own")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = options.rows // 10, 1
    rows = rounded(options.rows)
    jars = connector_jars()
    sources = [KALDA, SPARK] if jars else [KALDA]
    if not jars:
        print("Spark's own Kafka source is not measured: no Maven, or no registry that has its jars")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the node ends with this process
    node = Node(systems.KALDA, "log.segment.delete.delay.ms=0\n")
    try:
        node.start()
        fill_small(node)
        spark = session(jars, spark_python_unix_domain_socket_enabled=not options.tcp)
        register_ceiling(spark)
        tasks = tasks_of(Work(spark, node, rows, options.partitions), sources)
        names = options.only.split(",") if options.only else list(tasks)
        chosen = [tasks[name] for name in names]
        if not READ.isdisjoint(names):
            fill(node, TOPIC, rows, options.partitions)
        figures = Figures()
        for number in range(-1, options.rounds):
            measure_round(chosen, node, figures, number)
        figures.show([*sources, CEILING])
        print(f"\nsaved to {figures.save('spark')}")
        spark.stop()
    finally:
        node.close()


if __name__ == "__main__":
    main()
