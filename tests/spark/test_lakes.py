"""Loads of Avro with a schema registry, which need jars from Maven. `KALDA_SPARK_SESSIONS=1` runs them."""

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
from kalda.pipeline.session import PipelineError, packages_of
from kalda.testing import Cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "KALDA_SPARK_SESSIONS" not in os.environ, reason="takes minutes: set KALDA_SPARK_SESSIONS=1 to run it"
    ),
]
JOB = Path(__file__).with_name("lake_job.py")
SOURCES = Path(__file__).parents[2] / "src"
PYTHON = sys.executable
VERSION = "import pyspark; print(pyspark.__version__)"
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
        answers |= {f"/schemas/ids/{each['id']}": each for each in versions.values()}
        answer = answers.get(self.path.partition("?")[0])
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
    environment = {**os.environ, "PYSPARK_PYTHON": PYTHON, "PYTHONPATH": str(SOURCES)}
    try:
        packages_of(given["needs"], subprocess.check_output([PYTHON, "-c", VERSION], text=True).strip())
    except PipelineError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [PYTHON, str(JOB), json.dumps(given)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    first, rows, reasons = json.loads(done.stdout.splitlines()[-1])
    assert first == len(rows)  # the second load has added nothing
    return [json.loads(row)["value"] for row in rows], reasons


@pytest.mark.parametrize("has_registry", [False, True])
def test_avro(tmp_path: Path, registry: str, has_registry: bool) -> None:
    wanted = {"value": "avro"} | ({"registry": registry} if has_registry else {"schema": json.dumps(NEW)})
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
        found, reasons = loaded(cluster, tmp_path, [*values, *bad], needs=["delta"], load=wanted)
    assert found == [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert reasons == (
        ["the value is not Avro of the schema: it ends too soon"]
        if not has_registry
        else [
            "the schema registry has no schema with the id 9",
            f"the value is not Avro of the schema with the id {NEW_ID}: it ends too soon",
        ]
    )
