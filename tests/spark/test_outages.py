"""A run that goes on, while what it needs fails for a moment: the disk of its tables or of its state is full, a right
is withdrawn, the schema registry is down. Its status has one sentence, and afterwards each row is there once, for
readers that are not Spark.

`KALDA_SPARK_ROUNDS` runs them: each takes a minute.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from changes_project import LIGHT, SPECIFICATION, Project, ends_of, fill, light_settings, logged, snapshot
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from jars import delta_jars
from kills import Job

from kalda import Admin, Producer
from kalda.base.configs.resources import ConfigResourceType
from kalda.client.admin.acls import Acl, AclFilter
from kalda.network.free_ports import free_ports
from kalda.pipeline.engine.status import statuses
from kalda.testing import Cluster
from kalda.testing.schema_registry import SchemaRegistry
from waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("KALDA_SPARK_ROUNDS" not in os.environ, reason="takes minutes: set KALDA_SPARK_ROUNDS"),
    pytest.mark.skipif(not delta_jars(), reason="needs the jars of Delta, see KALDA_DELTA_JARS"),
]
KINDS = ["append", "scd1", "sink"]
REGISTERED = """
from pyspark import pipelines as dp
from kalda.pipeline import decoded


@dp.table(table_properties={{"kalda.restart.backoff.max.ms": "2000"}})
def coded():
    options = {{"kafka.bootstrap.servers": {servers!r}, "subscribe": "coded", "startingOffsets": "earliest"}}
    frame = spark.readStream.format("kalda").options(**options).load()
    return decoded(frame, "registry", registry={url!r}, subject="coded-value").select("value.*", "reason")
"""
LINK = Path(__file__).with_name("store_link.py")


@contextmanager
def running(project: Path, checkpoints: list[Path]) -> Iterator[Job]:
    command = ["-m", "kalda.cli.main", "pipeline", "run", "--follow", str(project), *light_settings()]
    job = Job(command, project / "run.log", checkpoints, LIGHT)
    try:
        yield job
    finally:
        job.kill()


def said(project: Path) -> str:
    """The notes of the flows, and what the run has logged."""
    notes = [note for each in statuses(project, {}, asks=False) for note in each.notes]
    return "\n".join([*notes, (project / "run.log").read_text()])


def wait_for(project: Path, job: Job, text: str) -> None:
    def is_said() -> bool:
        assert job.is_running, job.last_lines()
        return text in said(project)

    try:
        wait_until(is_said, text, 200, 0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said(project)[-3_000:]}") from None
    shown = next(line for line in said(project).splitlines() if text in line)
    print(f"\n{shown[-400:]}", flush=True)


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 24 MB at a place. Yields a file that can fill it."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=True)
    try:
        yield place / "ballast"
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Runs a project with flows into a table, by MERGE and into a topic, while something fails."""
    randomly = random.Random(int(os.environ.get("KALDA_SPARK_SEED", "7")))
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(config=authorizer))
        servers = cluster.bootstrap_servers
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=3)

        def go(place: str, begin: Callable[[Path], None], end: Callable[[Path], None], sentence: str) -> None:
            project = Project(tmp_path / "project", servers, KINDS)
            ballast = stack.enter_context(small_disk(project.directory / place))
            fill(servers, randomly, 0, 450)
            job = stack.enter_context(running(project.directory, project.checkpoints))
            job.wait_for_batches(1_000_000, ends_of(servers, "in"))
            fill(servers, randomly, 450, 450)
            time.sleep(randomly.uniform(0, 2))
            begin(ballast)
            with suppress(Exception):
                fill(servers, randomly, 900, 450)
            wait_for(project.directory, job, sentence)
            time.sleep(randomly.uniform(0, 4))
            end(ballast)
            job.wait_for_batches(1_000_000, ends_of(servers, "in"))
            log = logged(servers, "in")
            for kind in KINDS:
                if kind == "sink":
                    expected = sorted(each.value or b"" for records in log.values() for each in records)
                    found = logged(servers, "out").values()
                    assert sorted(each.value or b"" for records in found for each in records) == expected
                else:
                    project.judge(log, kind, is_end=True)
            assert job.starts == 1
            assert job.end() == 0, job.last_lines()

        go.servers = servers  # type: ignore[attr-defined]
        yield go


@pytest.mark.skipif(os.getuid() != 0, reason="needs a root that may mount a file system")
@pytest.mark.parametrize(
    ("place", "sentence"),
    [("spark-warehouse", "No space left on device"), ("storage", "No space left on device")],
)
def test_a_full_disk(world: Callable[..., None], place: str, sentence: str) -> None:
    world(place, fill_disk, Path.unlink, sentence)


def test_a_right_that_is_withdrawn(world: Callable[..., None]) -> None:
    """Of reading the topic; the run may write to it, as it could before."""
    read, write, deny, allow = 3, 4, 2, 3
    topic = int(ConfigResourceType.TOPIC)
    rules = [Acl(topic, "in", 3, "User:ANONYMOUS", "*", read, deny), Acl(topic, "in", 3, "User:*", "*", write, allow)]
    with Admin({"bootstrap.servers": world.servers}) as admin:  # type: ignore[attr-defined]
        world(
            "elsewhere",
            lambda _: admin.create_acls(rules).check(),
            lambda _: admin.delete_acls([AclFilter()]).check(),
            "this user has no right",
        )


def test_a_registry_that_is_down(tmp_path: Path) -> None:
    """While a flow needs a schema that it has not seen."""
    (port,) = free_ports(1)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        cluster.create_topic("coded", partitions=1)
        registry = stack.enter_context(SchemaRegistry())
        client = SchemaRegistryClient({"url": registry.url})
        fields = [{"name": "n", "type": "int"}, {"name": "m", "type": "int", "default": 0}]
        texts = [json.dumps({"type": "record", "name": "R", "fields": fields[:count]}) for count in (1, 2)]
        command = [sys.executable, str(LINK), str(port), registry.url.rpartition(":")[2]]
        link = subprocess.Popen(command)
        stack.callback(lambda: link.kill())

        def produce(number: int, text: str, count: int) -> None:
            prefix = b"\0" + client.register_schema("coded-value", Schema(text, "AVRO")).to_bytes(4, "big")
            with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
                for each in range(count):
                    value = bytes([2 * (number + each)])
                    producer.send("coded", prefix + value + (b"\x0a" if text == texts[1] else b""))

        project = tmp_path / "project"
        project.mkdir()
        specification = {"name": "registered", **SPECIFICATION}
        (project / "spark-pipeline.yml").write_text(json.dumps(specification))
        url = f"http://127.0.0.1:{port}"
        (project / "flows.py").write_text(REGISTERED.format(servers=cluster.bootstrap_servers, url=url))
        produce(0, texts[0], 10)
        job = stack.enter_context(running(project, [project / "storage" / "kalda" / "checkpoints" / "coded"]))
        table = project / "spark-warehouse" / "coded"

        def rows() -> list[int]:
            found = snapshot(table)
            return [] if found is None else [n for (n,) in found.rows("n")]

        wait_until(lambda: rows() == list(range(10)), "the first rows", 200, 0.5)
        link.kill()
        link.wait()
        produce(10, texts[1], 10)
        wait_for(project, job, "schema registry")
        assert rows() == list(range(10))
        link = subprocess.Popen(command)
        wait_until(lambda: rows() == list(range(20)), "all rows", 200, 0.5)
        assert job.end() == 0, job.last_lines()
