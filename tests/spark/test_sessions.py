"""The source and the sink in sessions of each kind, in processes of their own: a standalone cluster with two workers,
Spark Connect, a cluster with SASL and TLS, other versions of Spark.

`KALDA_SPARK_SESSIONS=1` runs them; each takes a minute. `KALDA_SPARK_PYTHONS` names more interpreters, with commas
between: those of environments with other versions of PySpark.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from changes_project import LIGHT, Project, ends_of, fill, light_settings, logged
from jars import delta_jars
from kills import Job

from kalda import Consumer, Producer
from kalda.testing import Cluster
from waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "KALDA_SPARK_SESSIONS" not in os.environ, reason="takes minutes: set KALDA_SPARK_SESSIONS=1 to run it"
    ),
]
JOB = Path(__file__).with_name("round_trip_job.py")
SOURCES = Path(__file__).parents[2] / "src"
ROWS = 600
PYTHONS = [sys.executable, *filter(None, os.environ.get("KALDA_SPARK_PYTHONS", "").split(","))]


@contextmanager
def filled(**settings: Any) -> Iterator[Cluster]:
    """A cluster with `ROWS` records in four partitions of the topic `in`, and an empty topic `out`."""
    with Cluster(**settings) as cluster:
        cluster.create_topic("in", partitions=4)
        cluster.create_topic("out", partitions=2)
        with Producer(cluster.client_config()) as producer:
            for number in range(ROWS):
                producer.send("in", b"%d" % number, None, number % 4)
        yield cluster


def run(cluster: Cluster, directory: Path, python: str = sys.executable, **settings: Any) -> dict[str, Any]:
    """What the job has counted."""
    options = {f"kafka.{name}": value for name, value in cluster.client_config().items()}
    given = {"servers": cluster.bootstrap_servers, "checkpoint": str(directory / "checkpoint"), "options": options}
    environment = {**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [python, str(JOB), json.dumps(given | settings)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == ROWS
    assert found["written"] == [ROWS, ROWS]
    assert found["streamed"] == [2 * ROWS, ROWS]
    return found


class Standalone(NamedTuple):
    url: str
    workers: list[subprocess.Popen[bytes]]
    """Their executors end when they do."""


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """A Spark cluster of a master and two workers with a core each, in processes on loopback."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    master = ["Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["Worker", "-h", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0"]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(SOURCES)}
    with ExitStack() as stack:

        def start(name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
            log = directory / f"{name}.log"
            command = [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{arguments[0].lower()}.{arguments[0]}",
            ]
            with open(log, "w") as file:
                process = subprocess.Popen(
                    command + arguments[1:], stdout=file, stderr=file, env=environment, start_new_session=True
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("master", master)
        wait_for(directory / "master.log", "I have been elected leader")
        names = ("worker-1", "worker-2")
        workers = [start(name, [*worker, "-d", str(directory / name), url]) for name in names]
        for name in names:
            wait_for(directory / f"{name}.log", "Successfully registered with master")
        yield Standalone(url, workers)


def wait_for(log: Path, words: str) -> None:
    wait_until(lambda: words in log.read_text(), f"{words!r} in {log}", 120)


def test_a_standalone_cluster_with_two_workers(tmp_path: Path) -> None:
    with filled() as cluster, standalone(tmp_path) as spark:
        found = run(cluster, tmp_path, master=spark.url, spark={"spark.executor.memory": "512m"})
    assert found["directories"] == 2  # both workers have read


def test_a_project_on_a_standalone_cluster(tmp_path: Path) -> None:
    """Appended rows and changes of type 1, with executors on both workers, one of which is killed in between."""
    if not delta_jars():
        pytest.skip("needs the jars of Delta, see KALDA_DELTA_JARS")
    randomly, kinds = random.Random(7), ("append", "scd1")
    with Cluster() as cluster, standalone(tmp_path) as spark:
        servers = cluster.bootstrap_servers
        cluster.create_topic("in", partitions=3)
        project = Project(tmp_path / "project", servers, kinds)
        command = ["-m", "kalda.cli.main", "pipeline", "run", str(project.directory), "--follow", *light_settings()]
        for setting in ("spark.executor.memory=512m", "spark.driver.host=127.0.0.1"):
            command += ["--spark", setting]
        job = Job(command, tmp_path / "job.log", project.checkpoints, {**LIGHT, "SPARK_MASTER": spark.url})
        try:
            fill(servers, randomly, 0, 600)
            job.wait_for_batches(1, ends_of(servers, "in"))
            assert [len(list(tmp_path.glob(f"worker-{n}/app-*/*/stderr"))) for n in (1, 2)] == [1, 1]
            fill(servers, randomly, 600, 600)
            spark.workers[0].kill()
            for kind in kinds:
                project.judge(logged(servers, "in"), kind, is_end=False)
            job.wait_for_batches(1_000_000, ends_of(servers, "in"))
            for kind in kinds:
                project.judge(logged(servers, "in"), kind, is_end=True)
            assert job.starts == 1
        finally:
            job.kill()


@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pip install 'pyspark[connect]'")
def test_spark_connect(tmp_path: Path) -> None:
    with filled() as cluster:
        run(cluster, tmp_path, remote="local[2]")


def test_sasl_over_tls(tmp_path: Path) -> None:
    """Options `kafka.security.protocol` and the like, of the source, the sink, and the driver's requests."""
    with filled(security="SASL_SSL") as cluster:
        assert "sasl.jaas.config" in cluster.client_config()
        run(cluster, tmp_path, master="local[2]")


@pytest.mark.parametrize("python", PYTHONS)
def test_each_version_of_spark(tmp_path: Path, python: str) -> None:
    with filled() as cluster:
        print(run(cluster, tmp_path, python, master="local[2]")["version"])


PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
OPTIONS = {options}


@dp.table
def words():
    stream = spark.readStream.format("kalda").options(**OPTIONS).option("subscribe", "in")
    return stream.option("startingOffsets", "earliest").load().selectExpr("cast(value as string) as word", "partition")


@dp.materialized_view
def counts():
    return spark.read.table("words").groupBy("partition").count()


dp.create_sink("published", "kalda", {{**OPTIONS, "topic": "out"}})


@dp.append_flow(target="published")
def publish():
    return spark.readStream.table("words").selectExpr("upper(word) as value")
"""
SPECIFICATION = """
name: words
storage: {storage}
libraries:
  - glob:
      include: {include}
configuration:
  spark.sql.shuffle.partitions: "1"
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs pip install 'pyspark[pipelines]'")
def test_declarative_pipelines(tmp_path: Path) -> None:
    """`--engine spark`: `pyspark.pipelines` with topics as sources and sinks; a second run has only what is new."""
    (tmp_path / "storage").mkdir()
    specification = tmp_path / "spark-pipeline.yml"
    specification.write_text(
        SPECIFICATION.format(storage=(tmp_path / "storage").as_uri(), include="words.py"), encoding="utf-8"
    )
    environment = {**os.environ, "SPARK_MASTER": "local[2]", "PYTHONPATH": str(SOURCES)}
    settings = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false"]
    command = [sys.executable, "-m", "kalda.cli.main", "pipeline", "run", str(tmp_path), "--engine", "spark"]
    for setting in settings:
        command += ["--spark", setting]
    with filled() as cluster:
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        (tmp_path / "words.py").write_text(PIPELINE.format(options=options), encoding="utf-8")
        for run in (1, 2):
            done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
            assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-5_000:]
            assert ends(cluster, "out") == run * ROWS
            with Producer(cluster.client_config()) as producer:
                for number in range(ROWS):
                    producer.send("in", b"%d" % number, None, number % 4)


def ends(cluster: Cluster, topic: str) -> int:
    """How many records a topic has."""
    with Consumer(cluster.client_config()) as consumer:
        partitions = [(topic, each.partition) for each in consumer.partitions_for(topic).partitions]
        return sum(consumer.end_offsets(*partitions).values())
