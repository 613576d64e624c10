"""The process of Spark: a table of windows over the orders, kept in the topic `sales`, and at the end a lake.

The project is written beside the results and is one of `kalda pipeline run`. The windows are written in the mode
`update`: a record is the newest row of a window and a kind of goods, its key; the latest records are the table. The
lake is written by Spark's own sink of Parquet files, which needs no jar.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from kalda.cli.demo.children import end_of_input, report
from kalda.cli.demo.shop import ORDERS, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SALES = "sales"
SPECIFICATION = """\
# What `kalda demo` runs by Spark. By hand, while the nodes run:
#     kalda pipeline run orders --follow
name: orders
storage: storage
libraries:
  - glob:
      include: definitions/**
"""
DEFINITIONS = f'''\
"""The sales of each five seconds, by kind, as a topic; and all orders as files of Parquet."""

from pathlib import Path

from pyspark import pipelines as dp

SERVERS = {{"kafka.bootstrap.servers": "SERVERS"}}


@dp.temporary_view
def orders():
    stream = spark.readStream.format("kalda").options(**SERVERS, subscribe="{ORDERS}", startingOffsets="earliest")
    rows = stream.option("kafka.isolation.level", "read_committed").load()
    return rows.selectExpr("from_json(cast(value AS string), '{SCHEMA}') AS value", "timestamp")


dp.create_sink("sales", "kalda", {{**SERVERS, "topic": "{SALES}"}})


@dp.append_flow(target="sales", spark_conf={{"kalda.output.mode": "update", "kalda.trigger": "1 second"}})
def windows():
    return spark.sql("""
        SELECT cast(slot AS binary) AS key, cast(to_json(struct(*)) AS binary) AS value FROM (
            SELECT concat(date_format(window.start, 'HH:mm:ss'), ' ', value.kind) AS slot,
                   date_format(window.start, 'HH:mm:ss') AS since, value.kind AS kind, count(*) AS orders,
                   sum(value.cents) AS cents
            FROM orders
            GROUP BY window(timestamp, '5 seconds'), value.kind)
    """)


dp.create_sink("lake", "parquet", {{"path": str(Path(__file__).parents[2] / "lake")}})


@dp.append_flow(target="lake")
def loaded():
    return spark.readStream.table("orders").select("value.*", "timestamp")
'''
_SETTINGS = {
    # Java's quick compiler alone, and its simplest collector: the session is short and the cores have other work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
}


def missing() -> str | None:
    """What this machine lacks for Spark, and what to do; None where nothing is missing."""
    from importlib.util import find_spec

    from kalda.spark.java import java_advice

    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: pip install 'kalda[pipeline]'"
    return java_advice()


def main(servers: str, directory: Path) -> int:
    """Keep the windows until the end of the input; then load the lake. What Java prints goes to the log."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ended = end_of_input()
    from kalda.pipeline.engine.engine import RunOptions, run_project
    from kalda.pipeline.engine.query import StopEvent
    from kalda.pipeline.projects.specification import read_specification
    from kalda.pipeline.session import make_session

    os.environ.setdefault("PYSPARK_PYTHON", str(_python(directory)))
    (directory / "orders" / "definitions").mkdir(parents=True)
    (directory / "orders" / "spark-pipeline.yml").write_text(SPECIFICATION, encoding="utf-8")
    definitions = directory / "orders" / "definitions" / "orders.py"
    definitions.write_text(DEFINITIONS.replace('"SERVERS"', f'"{servers}"'), encoding="utf-8")
    spark = make_session("kalda-demo", settings=_SETTINGS, master="local[2]")
    specification = read_specification(directory / "orders")
    report(out, up=True)
    stop = StopEvent()

    def stop_at_the_end() -> None:
        ended.wait()
        stop.set()

    Thread(target=stop_at_the_end, daemon=True).start()
    run_project(spark, specification, RunOptions(follow=True, refresh=(SALES,)), given=stop)
    began = time.monotonic()
    run_project(spark, specification, RunOptions(refresh=("lake",)))
    report(out, lake=_counted(spark, directory / "lake") | {"seconds": time.monotonic() - began})
    spark.stop()
    return 0


def _python(directory: Path) -> Path:
    """A command for Spark's Python processes, eight of which start one after the other. Spark puts an archive first on
    their path, whose modules are compiled at each start: a second each time, of which the installed package takes a
    quarter. So the command leaves the path as it is here."""
    command = directory / "python"
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return command.absolute()


def _counted(spark: SparkSession, lake: Path) -> dict[str, Any]:
    """What is in the lake."""
    from pyspark.sql import functions as f

    counted = spark.read.parquet(str(lake)).agg(
        f.count("*").alias("orders"),
        f.countDistinct("number").alias("different"),
        f.max("number").alias("last"),
        f.sum("cents").alias("cents"),
    )
    files = list(lake.glob("*.parquet"))
    found = counted.first()
    assert found is not None
    return {**found.asDict(), "files": len(files), "bytes": sum(each.stat().st_size for each in files)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
