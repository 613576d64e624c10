"""Loads into Delta and Iceberg, and of Avro with a schema registry: what needs jars from Maven.

`KALDA_SPARK_SESSIONS=1` runs them. `KALDA_SPARK_LAKE_PYTHON` names the interpreter of an environment whose PySpark has
such jars published; `KALDA_SPARK_AVRO` the Maven coordinates of an Avro jar that fits it; `KALDA_SPARK_JARS`, with
`SPARK_JARS_PROVIDED=1`, the files of jars that Maven cannot resolve.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kalda import Producer
from kalda.testing import Cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "KALDA_SPARK_SESSIONS" not in os.environ, reason="takes minutes: set KALDA_SPARK_SESSIONS=1 to run it"
    ),
]
JOB = Path(__file__).with_name("lake_job.py")
SOURCES = Path(__file__).parents[2] / "src"
PYTHON = os.environ.get("KALDA_SPARK_LAKE_PYTHON", sys.executable)
ROWS = 40
OLD = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "int"}]}
NEW = {
    **OLD,
    "fields": [
        {"name": "n", "type": ["int", "null"]},
        {"name": "s", "type": ["string", "null"], "default": "old"},
    ],
}
OLD_ID, NEW_ID = 7, 300


class Registry(BaseHTTPRequestHandler):
    """The subject of the topic `in`, with two versions."""

    def do_GET(self) -> None:
        versions = {1: {"version": 1, "id": OLD_ID, "schema": json.dumps(OLD)}}
        versions[2] = {"version": 2, "id": NEW_ID, "schema": json.dumps(NEW)}
        answers: dict[str, Any] = {"/subjects/in-value/versions": [*versions]}
        answers |= {f"/subjects/in-value/versions/{number}": each for number, each in versions.items()}
        answer = answers.get(self.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def avro(schema: dict[str, Any], row: dict[str, Any], number: int | None = None) -> bytes:
    """A row of Avro; with the id of its schema, as serializers for a registry write it."""
    fastavro = pytest.importorskip("fastavro")
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + file.getvalue()


def loaded(cluster: Cluster, directory: Path, values: list[bytes], **settings: Any) -> tuple[list[Any], list[str]]:
    """The rows of a lake of these values, and the reasons of those that are in quarantine."""
    cluster.create_topic("in", partitions=1)
    with Producer(cluster.client_config()) as producer:
        for value in values:
            producer.send("in", value, None, 0)
    given = {"servers": cluster.bootstrap_servers, "directory": str(directory / "lake"), "needs": [], **settings}
    if "KALDA_SPARK_JARS" in os.environ:
        given["spark"] = {**given.get("spark", {}), "spark.jars": os.environ["KALDA_SPARK_JARS"]}
    environment = {**os.environ, "PYSPARK_PYTHON": PYTHON, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [PYTHON, str(JOB), json.dumps(given)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    first, rows, reasons = json.loads(done.stdout.splitlines()[-1])
    assert first == len(rows)  # the second load has added nothing
    return [json.loads(row)["value"] for row in rows], reasons


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_format(tmp_path: Path, kind: str) -> None:
    values = [*(b'{"n": %d}' % n for n in range(ROWS)), b"no JSON"]
    with Cluster() as cluster:
        wanted = {"value": "json", "schema": "n int", "format": kind}
        rows, reasons = loaded(cluster, tmp_path, values, needs=[kind], load=wanted)
    assert rows == [{"n": n} for n in range(ROWS)]
    assert reasons == ["the value is not a JSON object of the schema"]


@pytest.mark.parametrize("has_registry", [False, True])
def test_avro(tmp_path: Path, registry: str, has_registry: bool) -> None:
    wanted = {"value": "avro"} | ({"registry": registry} if has_registry else {"schema": json.dumps(NEW)})
    packages = os.environ.get("KALDA_SPARK_AVRO")
    spark = {"spark.jars.packages": packages} if packages else {}
    rows: list[dict[str, Any]] = [{"n": n, "s": "new"} for n in range(ROWS)]
    rows.append({"n": None, "s": None})
    values = [avro(NEW, row, NEW_ID if has_registry else None) for row in rows]
    if has_registry:  # written with the first version: the field that it lacks has its default
        values += [avro(OLD, {"n": n}, OLD_ID) for n in range(ROWS)]
        rows += [{"n": n, "s": "old"} for n in range(ROWS)]
    bad = [b"\xff"]
    if has_registry:  # an id of no version, and no Avro behind one that there is
        bad = [b"\0" + number.to_bytes(4, "big") + b"\xff" for number in (9, NEW_ID)]
    with Cluster() as cluster:
        found, reasons = loaded(cluster, tmp_path, [*values, *bad], needs=["avro"], load=wanted, spark=spark)
    assert found == [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert [reason.startswith("the value is not Avro of ") for reason in reasons] == [True] * len(bad)
