"""Pipelines of Kalda's engine beside what a user of Spark would write by hand, in one `local[2]` session with one node.

- `fresh`: a topic that gets 1,000 records a second, appended to a table of Delta with `--follow`, upkeep on. Freshness
  is the time from a record's timestamp to the commit that has it, for all records behind the first seconds. The peer is
  a query of Spark's own Kafka connector into Delta, with the same trigger and without upkeep.
- `changes`: changes of a topic (a tenth of them of new keys, one of fifty a delete) into a table with ten times as many
  rows, by `create_auto_cdc_flow`. The peer is `foreachBatch` with Spark's connector: the newest change of each key, and
  a MERGE.
- `batches`: batches of one record, one after the other. The thousandth is beside the tenth of another flow in the same
  session, which starts after it: Java is as warm then, and only the age of the table differs. Both are medians of the
  batches around them, upkeep included.
- `refresh`: from a request to `serve` until the first batch of the refresh is planned. The peer is Spark's own engine
  (`spark-pipelines run`), which starts Java for it.
- `check`: `kalda pipeline check --no-spark` of twenty flows whose topics are asked for; the peer is `spark-pipelines
  dry-run`.
- `status`: `kalda pipeline status` of a checkpoint with 10,000 batches.

Ratios are the peer's time over Kalda's; on a busy machine those of CPU say more. The jars of Delta are resolved from
Maven, and those of Spark's connector as in `spark.py`.

    python bench/pipelines.py [--quick] [--only fresh,changes] [--rows 10000000] [--rounds 3] [--seconds 40]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import pyarrow as pa
import pyarrow.parquet as pq
from harness import systems
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.sparks import connector_jars, cpu_s
from pyspark.sql import DataFrame, SparkSession

from kalda import Producer
from kalda.pipeline.engine.engine import RunOptions, run_project
from kalda.pipeline.engine.query import StopEvent
from kalda.pipeline.engine.runs import RunReport
from kalda.pipeline.engine.service import Service
from kalda.pipeline.projects.specification import Specification, read_specification
from kalda.pipeline.session import make_session

KALDA, BY_HAND = "Kalda", "by hand"
RATE, TICK_S, WARM_S = 1_000, 0.02, 20.0
PROGRAM = [sys.executable, "-m", "kalda.cli.main", "pipeline"]
OLD, YOUNG = 1_000, 10
COLUMNS = "k bigint, v string, n bigint, gone boolean"
HEAD = """\
from pyspark import pipelines as dp
def topic(name, **more):
    rows = spark.readStream.format("kalda").option("kafka.bootstrap.servers", "{servers}").option("subscribe", name)
    return rows.option("startingOffsets", "earliest").options(**more).load()
"""
APPEND = """
@dp.table{given}
def {name}():
    return topic("{name}"{more}).selectExpr("CAST(value AS string) AS v", "timestamp", "offset")
"""
CHANGES = f"""
@dp.temporary_view
def changes():
    return topic("changes").selectExpr("from_json(CAST(value AS string), '{COLUMNS}') AS c").select("c.*")

dp.create_streaming_table("rows")
dp.create_auto_cdc_flow("rows", "changes", keys=["k"], sequence_by="n", apply_as_deletes="gone",
                        except_column_list=["gone", "n"])
"""
MERGE = """
MERGE INTO delta.`{path}` AS t USING changed AS s ON t.k = s.k
WHEN MATCHED AND s.n > t.__sequence AND s.gone THEN DELETE
WHEN MATCHED AND s.n > t.__sequence THEN UPDATE SET t.v = s.v, t.__sequence = s.n
WHEN NOT MATCHED AND NOT s.gone THEN INSERT (k, v, __sequence) VALUES (s.k, s.v, s.n)
"""


def feed(port: int, topic: str, ends: object) -> None:
    """Send `RATE` records a second until `ends` is set; a process of its own."""
    with Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 0}) as producer:
        began, sent = time.monotonic(), 0
        while not ends.is_set():  # type: ignore[attr-defined]
            while sent < (time.monotonic() - began) * RATE:
                producer.send(topic, b"%0100d" % sent, partition=sent % 4)
                sent += 1
            time.sleep(TICK_S)


@contextmanager
def fed(port: int, topic: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ends = context.Event()
    process = context.Process(target=feed, args=(port, topic, ends))
    process.start()
    try:
        yield
    finally:
        ends.set()
        process.join()


def commits_of(table: Path) -> list[tuple[float, list[Path]]]:
    """The appends of a table: when each was committed, and its files."""
    found = []
    for file in sorted((table / "_delta_log").glob("[0-9]*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        added = [each["add"] for each in actions if each.get("add", {}).get("dataChange")]
        if added:
            found.append((file.stat().st_mtime, [table / each["path"] for each in added]))
    return found


def freshness_s(table: Path, since_s: float) -> list[float]:
    """For how long each record that was sent after `since_s` has waited for the commit that has it."""
    found: list[float] = []
    for committed_s, files in commits_of(table):
        for file in files:
            sent = pq.read_table(file, columns=["timestamp"]).column(0).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            found += [committed_s - each / 1e6 for each in sent.to_pylist() if each / 1e6 >= since_s]
    return found


def around(number: int) -> int:
    """How many batches before this one, and behind it, belong to its median."""
    return max(5, number // 100)


class Project:
    """A project in a directory of its own."""

    def __init__(self, directory: Path, definitions: str, node: Node, storage: str = "storage") -> None:
        self.directory = directory
        (directory / "definitions").mkdir(parents=True)
        text = f"name: {directory.name}\nstorage: file://{directory / storage}\n"
        text += "libraries: [{glob: {include: 'definitions/**'}}]\n"
        (directory / "spark-pipeline.yml").write_text(text, encoding="utf-8")
        head = HEAD.format(servers=f"127.0.0.1:{node.port}")
        (directory / "definitions" / "all.py").write_text(head + definitions, encoding="utf-8")

    @property
    def specification(self) -> Specification:
        return read_specification(self.directory)

    def table(self, name: str) -> Path:
        return self.directory / "spark-warehouse" / name

    def planned_s(self) -> float:
        """When the newest batch of any flow was planned; 0 where there is none."""
        return max((each.stat().st_mtime for each in self.directory.rglob("offsets/[0-9]*")), default=0.0)

    @contextmanager
    def following(self, spark: SparkSession) -> Iterator[RunReport]:
        stopped = StopEvent()
        reports: list[RunReport] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                run_project(spark, self.specification, RunOptions(follow=True), reports.append, stopped)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            while not reports:
                if failures:
                    raise SystemExit(f"the project has failed: {failures[0]}")
                time.sleep(0.02)
            yield reports[0]
        finally:
            stopped.set()
            thread.join()


class Work:
    """What is measured, each on topics and tables of its own."""

    def __init__(self, spark: SparkSession, node: Node, directory: Path, rows: int, seconds: float, old: int) -> None:
        self.spark, self.node, self.directory = spark, node, directory
        self.rows, self.seconds, self.old = rows, seconds, old
        self._count = 0

    def new(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def by_hand(self, topic: str) -> DataFrame:
        stream = self.spark.readStream.format("kafka").option("subscribe", topic)
        stream = stream.option("kafka.bootstrap.servers", f"127.0.0.1:{self.node.port}")
        return stream.option("startingOffsets", "earliest").load()

    def fresh(self, who: str) -> dict[Figure, float]:
        name = self.new("fresh")
        self.node.create_topics([name], 4)
        since_s = time.time() + WARM_S
        table = self.directory / name / "spark-warehouse" / name
        with fed(self.node.port, name):
            if who == KALDA:
                project = Project(self.directory / name, APPEND.format(name=name, given="", more=""), self.node)
                with project.following(self.spark) as report:
                    self._wait(since_s + self.seconds, lambda: next(iter(report.flows.values())).error)
            else:
                rows = self.by_hand(name).selectExpr("CAST(value AS string) AS v", "timestamp", "offset")
                writer = rows.writeStream.format("delta").trigger(processingTime="1 second")
                query = writer.option("checkpointLocation", str(self.directory / name / "checkpoint")).start(str(table))
                self._wait(since_s + self.seconds, query.exception)
                query.stop()
        waits = quantiles(freshness_s(table, since_s), n=100)
        return {
            Figure("freshness at 1,000 records/s, p99", "s", True): waits[98],
            Figure("freshness at 1,000 records/s, p50", "s", True): waits[49],
        }

    def _wait(self, until_s: float, failure: Callable[[], object]) -> None:
        while time.time() < until_s:
            if (error := failure()) is not None:
                raise SystemExit(f"the flow has failed: {error}")
            time.sleep(0.2)

    def fill_changes(self) -> None:
        """The changes of all rounds, and the table that each round copies."""
        self.node.create_topics(["changes"], 4)
        numbers = random.Random(1)
        with Producer({"bootstrap.servers": f"127.0.0.1:{self.node.port}", "linger.ms": 5}) as producer:
            for n in range(1, self.rows // 10 + 1):
                k = numbers.randrange(self.rows * 11 // 10)
                value = b'{"k": %d, "v": "changed %d", "n": %d, "gone": %s}'
                producer.send("changes", value % (k, n, n, b"false" if n % 50 else b"true"), partition=k % 4)
        rows = self.spark.range(self.rows).selectExpr("id AS k", "concat('row ', id) AS v", "0L AS __sequence")
        rows.write.format("delta").save(str(self.directory / "rows"))

    def changes(self, who: str) -> dict[Figure, float]:
        project = Project(self.directory / self.new("changes"), CHANGES, self.node)
        table = project.table("rows")
        shutil.copytree(self.directory / "rows", table)
        began = time.perf_counter()
        if who == KALDA:
            if not run_project(self.spark, project.specification, RunOptions()).is_good:
                raise SystemExit("the flow of changes has failed")
        else:
            stream = self.by_hand("changes").selectExpr(f"from_json(CAST(value AS string), '{COLUMNS}') AS c")
            writer = stream.select("c.*").writeStream.foreachBatch(lambda frame, _: self._merge(frame, table))
            writer = writer.trigger(availableNow=True).option("checkpointLocation", str(project.directory / "by-hand"))
            writer.start().awaitTermination()
        seconds = time.perf_counter() - began
        self._check_rows(table)
        shutil.rmtree(project.directory)
        return {Figure(f"{self.rows // 10:,} changes into {self.rows:,} rows", "s", True): seconds}

    def _merge(self, frame: DataFrame, table: Path) -> None:
        newest = "SELECT k, max_by(struct(v, n, gone), n) AS c FROM given GROUP BY k"
        frame.createOrReplaceTempView("given")
        frame.sparkSession.sql(f"SELECT k, c.* FROM ({newest})").createOrReplaceTempView("changed")
        frame.sparkSession.sql(MERGE.format(path=table))

    def _check_rows(self, table: Path) -> None:
        rows = self.spark.read.format("delta").load(str(table))
        found = rows.selectExpr("count(*)", "count_if(v LIKE 'changed%')", "count(DISTINCT k)").head()
        if found is None or found[0] != found[2] or not found[1]:
            raise SystemExit(f"rows, changed ones, keys: {found}")

    def batches(self, who: str) -> dict[Figure, float]:
        if who != KALDA:
            return {}
        old, first = self._batch_ms(self.old)
        young, _ = self._batch_ms(YOUNG)
        return {
            Figure("a batch of one record, the tenth", "ms", True): young,
            Figure(f"… the {self.old:,}th", "ms", True): old,
            Figure(f"… the {self.old:,}th over the tenth", "", True): old / young,
            Figure("… the tenth of the session", "ms", True): first,
        }

    def _batch_ms(self, count: int) -> tuple[float, float]:
        """What a batch costs around the one of this number, and around the tenth: 990 to 1010, and 5 to 15."""
        name, last = self.new("small"), count + around(count)
        self.node.create_topics([name])
        with Producer({"bootstrap.servers": f"127.0.0.1:{self.node.port}"}) as producer:
            for n in range(last + 1):
                producer.send(name, b"%d" % n)
        given = '(table_properties={"kalda.trigger": "0 seconds"})'
        text = APPEND.format(name=name, given=given, more=', maxOffsetsPerTrigger="1"')
        project = Project(self.directory / name, text, self.node)
        with project.following(self.spark) as report:
            flow = next(iter(report.flows.values()))
            while flow.batches <= last:
                if flow.error is not None:
                    raise SystemExit(f"the flow has failed: {flow.error}")
                time.sleep(0.05)
        at = [committed_s * 1e3 for committed_s, _ in commits_of(project.table(name))]
        costs = [after - before for before, after in pairwise(at)]
        old, young = (median(costs[n - around(n) : n + around(n)]) for n in (count, YOUNG))
        return old, young

    def refresh(self, who: str) -> dict[Figure, float]:
        name = self.new("refreshed")
        self.node.create_topics([name])
        text = APPEND.format(name=name, given="", more="")
        figure = Figure("a refresh, until its first batch is planned", "s", True)
        if who != KALDA:
            project = Project(self.directory / name, text, self.node)
            self._send_one(name)
            began = time.time()
            self._of_spark(project, "run")
            return {figure: project.planned_s() - began}
        project = Project(self.directory / name, text, self.node)
        service, stopped = Service(self.spark, [project.specification], are_paused=True), StopEvent()
        thread = threading.Thread(target=service.run, args=("127.0.0.1:0", "token", stopped))
        thread.start()
        found = []
        try:
            for _ in range(6):
                self._send_one(name)
                before, began = project.planned_s(), time.time()
                service.act(f"/projects/{name}/refresh", {})
                while project.planned_s() == before or service.projects[name].state != "paused":
                    if service.projects[name].error is not None:
                        raise SystemExit(f"the refresh has failed: {service.projects[name].error}")
                    time.sleep(0.02)
                found.append(project.planned_s() - began)
        finally:
            stopped.set()
            thread.join()
        return {figure: median(found[1:])}

    def _send_one(self, topic: str) -> None:
        with Producer({"bootstrap.servers": f"127.0.0.1:{self.node.port}"}) as producer:
            producer.send(topic, b"1")

    def _of_spark(self, project: Project, command: str) -> None:
        program = [*PROGRAM, "run", "--engine", "spark"]
        if command != "run":
            import pyspark

            home = Path(pyspark.__file__).parent
            program = [str(home / "bin" / "spark-pipelines"), command, "--spec"]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_REMOTE": "", "SPARK_MASTER": "local[2]"}
        given = project.directory if command == "run" else project.directory / "spark-pipeline.yml"
        del environment["SPARK_REMOTE"]
        self._run([*program, str(given)], environment)

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")

    def check(self, who: str) -> dict[Figure, float]:
        names = [self.new("checked") for _ in range(20)]
        self.node.create_topics(names)
        text = "".join(APPEND.format(name=name, given="", more="") for name in names)
        project = Project(self.directory / names[0], text, self.node)
        began = time.perf_counter()
        if who == KALDA:
            self._run([*PROGRAM, "check", "--no-spark", str(project.directory)])
        else:
            self._of_spark(project, "dry-run")
        return {Figure("check of twenty flows", "s", True): time.perf_counter() - began}

    def status(self, who: str) -> dict[Figure, float]:
        if who != KALDA:
            return {}
        name = self.new("old")
        self.node.create_topics([name])
        checkpoint = self.directory / name
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True)
        for number in range(10_000):
            lines = ["v1", json.dumps({"batchTimestampMs": 1_700_000_000_000 + number}), json.dumps({name: {"0": 0}})]
            (checkpoint / "offsets" / str(number)).write_text("\n".join(lines), encoding="utf-8")
            (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}', encoding="utf-8")
        server = ["--bootstrap-server", f"127.0.0.1:{self.node.port}"]
        began = time.perf_counter()
        self._run([*PROGRAM, "status", str(checkpoint), *server])
        return {Figure("status of 10,000 batches", "s", True): time.perf_counter() - began}


OF_SESSION = ("fresh", "changes", "batches")
TASKS = (*OF_SESSION, "refresh", "check", "status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table that changes go into")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=OLD, help="the one that is beside the tenth")
    parser.add_argument("--seconds", type=float, default=40.0, help="for which freshness is measured")
    parser.add_argument("--quick", action="store_true", help="one round, over a tenth of the rows and of the batches")
    parser.add_argument("--only", default=",".join(TASKS))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.batches = options.rows // 10, options.batches // 10
        options.rounds, options.seconds = 1, 10.0
    jars = connector_jars()
    sides = [KALDA, BY_HAND] if jars else [KALDA]
    if not jars:
        print("nothing is measured by hand: no Maven, or no registry that has the jars of Spark's Kafka source")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the node ends with this process
    node, directory = Node(systems.KALDA), Path(tempfile.mkdtemp(prefix="bench-pipelines-"))
    figures = Figures()
    try:
        node.start()
        settings = {"spark.driver.memory": "3g", "spark.jars": ",".join(map(str, jars))}
        spark = make_session("bench", ("delta",), settings, "local[2]")
        work = Work(spark, node, directory, options.rows, options.seconds, options.batches)
        tasks = options.only.split(",")
        if "changes" in tasks:
            work.fill_changes()
        for task in tasks:
            first = -1 if task == "changes" else 0  # while Java becomes faster, it is not counted
            for number in range(first, 1 if task == "batches" else options.rounds):
                for side in sides if number % 2 == 0 else reversed(sides):
                    before_s = cpu_s(with_node=False)
                    found = getattr(work, task)(side)
                    if found and task in OF_SESSION:
                        found[Figure(f"  CPU of Spark, {task}", "s", True)] = cpu_s(with_node=False) - before_s
                    for figure, value in found.items() if number >= 0 else ():
                        figures.add(figure, side, value)
                        print(f"{side}: {figure.title}: {value:.3f} {figure.unit}", flush=True)
        figures.show(sides)
        print(f"\nsaved to {figures.save('pipelines')}")
        spark.stop()
    finally:
        node.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
