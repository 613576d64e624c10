"""Changes of a real PostgreSQL, by Debezium in Kafka Connect, through a Kalda node into a table: snapshot, changes, a
column that is added, and SIGKILL of each part. The table equals the database at the end.

`KALDA_DEBEZIUM` names a folder with the unpacked plugin (io.debezium:debezium-connector-postgres, `-plugin.tar.gz`, of
Maven Central); without it the test is left out. Connect is that of Apache Kafka's jars (see `apache_kafka`). It takes
some minutes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from apache_kafka import java, kafka_jars
from changes_project import LIGHT, ends_of, light_settings, snapshot
from databases import Postgres, missing
from jars import delta_jars
from kills import Job, Nodes

from kalda.network.free_ports import free_ports
from waiting import wait_until

PLUGINS = os.environ.get("KALDA_DEBEZIUM")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(PLUGINS is None, reason="takes minutes: set KALDA_DEBEZIUM to the folder of Debezium's plugin"),
]
TOPIC = "shop.public.people"
FLOW = """
from pyspark import pipelines as dp

from kalda.pipeline import debezium


@dp.temporary_view
def changes():
    options = {{"kafka.bootstrap.servers": {servers!r}, "subscribe": "shop.public.people"}}
    stream = spark.readStream.format("kalda").options(**options).option("startingOffsets", "earliest").load()
    return debezium(stream, new_fields="restart").select("value.*", "deleted", "offset")


dp.create_streaming_table("people")
dp.create_auto_cdc_flow("people", "changes", keys=["id"], sequence_by="offset", apply_as_deletes="deleted",
                        except_column_list=["deleted", "offset"])
"""
SPECIFICATION = {
    "name": "shop",
    "storage": "storage",
    "libraries": [{"glob": {"include": "flows.py"}}],
    "configuration": {"kalda.restart.backoff.max.ms": "2000"},
}


class Connect:
    """One worker of Kafka Connect, distributed, so that configs and offsets are in topics of the node."""

    def __init__(self, jars: Path, plugins: str, servers: str, directory: Path) -> None:
        (self._port,) = free_ports(1)
        self.log = directory / "connect.log"
        properties = directory / "connect.properties"
        values = {
            "bootstrap.servers": servers, "group.id": "connect", "plugin.path": plugins,
            "plugin.discovery": "service_load",

            "listeners": f"http://127.0.0.1:{self._port}", "rest.advertised.host.name": "127.0.0.1",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.flush.interval.ms": "2000", "scheduled.rebalance.max.delay.ms": "0",
        }  # fmt: skip
        for name in ("config", "offset", "status"):
            values |= {f"{name}.storage.topic": f"connect-{name}", f"{name}.storage.replication.factor": "1"}
        properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._command = [
            *java(jars, "512M", "WARN"),
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(properties),
        ]
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, method: str = "GET", value: Any = None) -> Any:
        """None where it cannot answer now."""
        assert self._process.poll() is None, self.log.read_text()[-5_000:]
        body = None if value is None else json.dumps(value).encode()
        request = Request(f"http://127.0.0.1:{self._port}{path}", body, {"Content-Type": "application/json"})
        request.method = method
        with suppress(OSError), urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")
        return None

    def keep_running(self) -> None:
        """Start a task again that has given up, as an operator would."""
        found = self.ask("/connectors/people/status")
        if found and any(each["state"] == "FAILED" for each in found["tasks"]):
            self.ask("/connectors/people/restart?includeTasks=true&onlyFailed=true", "POST")


class World:
    """All parts, and the table people of the database."""

    def __init__(self, directory: Path, jars: Path, plugins: str, database: Postgres) -> None:
        self.directory, self.database, self.randomly = directory, database, random.Random(7)
        self.has_mail = False
        self.nodes = Nodes(directory / "nodes", 1)
        self.nodes.start()
        self.connect = Connect(jars, plugins, self.nodes.servers, directory)
        self.job: Job | None = None

    def connector(self) -> None:
        settings = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1", "database.port": str(self.database.port), "database.user": "postgres",
            "database.password": "a secret", "database.dbname": "postgres", "topic.prefix": "shop",
            "table.include.list": "public.people", "publication.autocreate.mode": "filtered",
            "topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "3",
            "retriable.restart.connector.wait.ms": "1000",
        }  # fmt: skip
        wait_until(lambda: self.connect.ask("/connectors/people/config", "PUT", settings), "Connect answers", 200, 1)

    def follow(self) -> Job:
        project = self.directory / "project"
        project.mkdir()
        (project / "spark-pipeline.yml").write_text(json.dumps(SPECIFICATION))
        (project / "flows.py").write_text(FLOW.format(servers=self.nodes.servers))
        command = ["-m", "kalda.cli.main", "pipeline", "run", str(project), "--follow", *light_settings()]
        checkpoint = project / "storage" / "kalda" / "checkpoints" / "people"
        self.job = Job(command, self.directory / "job.log", [checkpoint], LIGHT)
        return self.job

    def change(self, count: int) -> None:
        """Inserts, updates and deletes, in transactions of up to ten."""
        statements, randomly = ["BEGIN"], self.randomly
        for number in range(count):
            key, name = randomly.randrange(300), f"n{randomly.randrange(10_000)}"
            balance = randomly.randrange(-10_000_000, 10_000_000) / 100
            mail = f", mail = '{name}@example.com'" if self.has_mail and randomly.random() < 0.5 else ""
            statements.append(
                f"DELETE FROM people WHERE id = {key}"
                if randomly.random() < 0.2
                else f"INSERT INTO people (id, name, balance, changed) VALUES ({key}, '{name}', {balance}, now()) "
                f"ON CONFLICT (id) DO UPDATE SET name = excluded.name, balance = excluded.balance{mail}"
            )
            if number % 10 == 9:
                statements += ["COMMIT", "BEGIN"]
        self.database.run(";".join([*statements, "COMMIT"]))

    def rows_of_database(self) -> list[tuple[str, ...]]:
        mail = "coalesce(mail, '')" if self.has_mail else "''"
        seconds = "(extract(epoch FROM changed) * 1000000)::bigint"
        found = self.database.run(f"SELECT id, name, balance, {seconds}, {mail} FROM people")
        return sorted(tuple(row) for row in found)

    def rows_of_table(self) -> list[tuple[str, ...]]:
        found = snapshot(self.directory / "project" / "spark-warehouse" / "people")
        rows = [] if found is None else found.table.to_pyarrow_table().to_pylist()
        return sorted(
            (str(row["id"]), row["name"], str(row["balance"]), str(round(row["changed"].timestamp() * 1_000_000)),
             row.get("mail") or "")
            for row in rows
        )  # fmt: skip

    def kill(self, part: str) -> None:
        assert self.job is not None
        time.sleep(self.randomly.uniform(0, 2))
        if part == "database":
            self.database.kill()
            self.database.start()
        elif part == "connect":
            self.connect.kill()
            self.connect.start()
        elif part == "node":
            self.nodes.kill(1)
            self.nodes.start()
        else:
            (self.job.kill if part == "machine" else self.job.kill_driver)()
            self.job.start()

    def is_same(self) -> bool:
        assert self.job is not None
        if not self.job.is_running:
            self.job.start()
        self.connect.keep_running()
        return self.rows_of_table() == self.rows_of_database()

    def close(self) -> None:
        if self.job is not None:
            self.job.kill()
        self.connect.kill()
        self.nodes.kill(1)


def test_a_table_equals_the_database(tmp_path: Path) -> None:
    jars = kafka_jars()
    if isinstance(jars, str) or (lacks := missing()) is not None or not delta_jars():
        pytest.skip(jars if isinstance(jars, str) else lacks or "needs the jars of Delta, see KALDA_DELTA_JARS")
    assert PLUGINS is not None
    with Postgres(("wal_level=logical", "fsync=off")) as database:
        database.run("CREATE TABLE people (id int PRIMARY KEY, name text, balance numeric(12,2), changed timestamptz)")
        world = World(tmp_path, jars, PLUGINS, database)
        try:
            world.change(300)
            world.connector()
            wait_until(lambda: TOPIC in topics_of(world.nodes.servers) and any(ends(world)), "the snapshot", 200, 1)
            job = world.follow()
            wait_until(world.is_same, "the snapshot is in the table", 500, 2)
            for part in ("connect", "driver", "node", "database", "machine"):
                world.change(100)
                world.kill(part)
                world.change(100)
                if part == "driver":
                    database.run("ALTER TABLE people ADD COLUMN mail text")
                    world.has_mail = True
            world.change(50)
            wait_until(world.is_same, f"the table equals the database\n{job.last_lines()}", 600, 2)
            assert any(row[-1] for row in world.rows_of_table())
        finally:
            world.close()


def topics_of(servers: str) -> set[str]:
    from kalda import Admin

    with Admin({"bootstrap.servers": servers}) as admin:
        return set(admin.list_topics())


def ends(world: World) -> list[int]:
    return [end for partition, end in ends_of(world.nodes.servers, TOPIC).items()]
