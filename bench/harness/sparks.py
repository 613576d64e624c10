"""A Spark session, Spark's own connector and a topic of equal values, for the benchmarks that read with Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import kalda.spark
from harness.figures import HERE
from harness.nodes import Node
from kalda import Producer

VALUE_BYTES = 100
_CHUNK = 100_000
_PYSPARK = "4.2.0"


def connector_jars() -> list[Path]:
    """The jars of Spark's Kafka source and of its dependencies; empty where they cannot be fetched."""
    named = os.environ.get("KALDA_SPARK_KAFKA_JARS")
    if named:
        return sorted(Path(named).glob("*.jar"))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / f"spark-kafka-{_PYSPARK}"
    done = cache / ".done"
    if not done.exists() and shutil.which("mvn"):
        pom = HERE / "peer" / "spark" / "pom.xml"
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={cache}"]
        if subprocess.run(copy, stdout=sys.stderr).returncode == 0:
            done.touch()
    return sorted(cache.glob("*.jar")) if done.exists() else []


def rounded(rows: int) -> int:
    """The number of rows that `fill` writes where so many are asked for."""
    return rows // _CHUNK * _CHUNK


def fill(node: Node, topic: str, rows: int, partitions: int, compression: str = "none") -> None:
    """Values that differ, so that caches gain nothing from equal ones; straight from Arrow columns. With a compression
    they are hexadecimal digits, which it makes half as long."""
    node.create_topics([topic], partitions)
    random = os.urandom(VALUE_BYTES * _CHUNK)
    if compression != "none":
        random = random[: len(random) // 2].hex().encode()
    ends = pa.array(range(0, VALUE_BYTES * _CHUNK + 1, VALUE_BYTES), pa.int32())
    values = pa.Array.from_buffers(pa.binary(), _CHUNK, [None, ends.buffers()[1], pa.py_buffer(random)])
    columns = pa.RecordBatch.from_arrays([values], ["value"])
    began = time.perf_counter()
    config = {"bootstrap.servers": f"127.0.0.1:{node.port}", "compression.type": compression}
    with Producer(config) as producer:
        for chunk in range(rows // _CHUNK):
            producer.send_batch(topic, columns, partition=chunk % partitions)
    print(f"wrote {rows:,} rows of {VALUE_BYTES} B at {rows / (time.perf_counter() - began) / 1e6:.2f} M rows/s")


def drop_from_cache(node: Node, topic: str) -> None:
    """Write the topic's segments to the disk, and drop their pages: the next read is cold."""
    os.sync()
    for path in node.directory.rglob(f"{topic}-*/*.log"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def session(jars: Sequence[Path] = (), master: str = "local[2]", **more: object) -> SparkSession:
    """A session with Kalda's format. `more`: settings, as of `kalda.spark.session`."""
    settings = {
        "spark.driver.memory": "3g",
        "spark.jars": ",".join(map(str, jars)),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    return kalda.spark.session("bench", master, **settings, **more)


def cpu_s(*, with_node: bool) -> float:
    """CPU seconds that Spark and its Python workers have used, and with `with_node` the node."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if with_node or "kalda.cli.main" not in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue  # a worker that has just ended is counted with its parent
    return total
