"""Schemas of a topic's values, from an HTTP server that answers as a schema registry does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")

from kalda.pipeline.formats.decoders import avro_of
from kalda.pipeline.formats.registry import schema_of, subject_of
from kalda.pipeline.formats.values import ValueFormat
from kalda.pipeline.session import PipelineError, Unavailable

PLACED = '{"type": "record", "name": "Placed", "fields": [{"name": "at", "type": "Place"}]}'
ANSWERS = {
    "/subjects/orders-value/versions": [1, 2],
    "/subjects/orders-value/versions/1": {"version": 1, "id": 7, "schema": '"int"'},
    "/subjects/orders-value/versions/2": {"version": 2, "id": 300, "schema": '"long"'},
    "/subjects/page-value/versions": "<html>",
    "/subjects/object-value/versions": {"versions": [1]},
    "/subjects/words-value/versions": ["1", None],
    "/subjects/empty-value/versions": [],
    "/subjects/lists-value/versions": [1],
    "/subjects/lists-value/versions/1": [],
    "/subjects/large-value/versions": [1],
    "/subjects/large-value/versions/1": {"version": 1, "id": 2**40, "schema": '"int"'},
    "/subjects/torn-value/versions": [1],
    "/schemas/ids/12": {"schema": PLACED, "references": [{"name": "Place", "subject": "place", "version": 3}]},
    "/subjects/place/versions/3": {
        "schema": '{"type": "record", "name": "Place", "fields": [{"name": "in", "type": "Country"}]}',
        "references": [{"name": "Country", "subject": "country", "version": 1}],
    },
    "/subjects/country/versions/1": {
        "schema": '{"type": "record", "name": "Country", "fields": [{"name": "code", "type": "string"}]}',
    },
}


class Registry(BaseHTTPRequestHandler):
    """Needs the user u with the password p:w."""

    def do_GET(self) -> None:
        path = self.path.removesuffix("?format=serialized")
        answer = ANSWERS.get(path)
        is_user = self.headers["Authorization"] == "Basic dTpwOnc="
        if path == "/subjects/torn-value/versions/1":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.7\r\n")
            return
        status = 503 if path == "/schemas/ids/5" else 404 if answer is None else 200
        self.send_response(status if is_user else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_version_of_a_subject(host: str) -> None:
    subject = subject_of(f"http://u:p%3Aw@{host}/", "orders-value")
    assert subject.ids == {7, 300}
    assert subject.newest.text == '"long"'


def test_schemas_by_their_ids(host: str) -> None:
    """A schema and what it refers to, in an order in which they can be parsed. An id that there is not is no error."""
    url = f"http://u:p%3Aw@{host}"
    assert schema_of(url, 9) is None
    found = schema_of(url, 12)
    assert found is not None
    assert (found.kind, [name for name, _ in found.named]) == ("AVRO", ["Country", "Place"])
    assert avro_of(found).columns.simpleString() == "struct<at:struct<in:struct<code:string>>>"
    with pytest.raises(Unavailable, match="GET /schemas/ids/5 was answered 503"):
        schema_of(url, 5)


@pytest.mark.parametrize(
    ("user", "subject", "words"),
    [
        ("u:p%3Aw@", "none", "GET /subjects/none/versions was answered 404"),
        ("u:p%3Aw@", "page-value", "GET /subjects/page-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "object-value", "GET /subjects/object-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "words-value", "GET /subjects/words-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "empty-value", "the subject empty-value of http://HOST has no version"),
        ("u:p%3Aw@", "lists-value", "GET /subjects/lists-value/versions/1 was answered with no schema"),
        ("u:p%3Aw@", "large-value", "GET /subjects/large-value/versions/1 was answered with no schema"),
        ("u:p%3Aw@", "torn-value", "GET /subjects/torn-value/versions/1 has failed: SSH-2.0-OpenSSH_9.7"),
        (
            "u:wrong@",
            "orders-value",
            "schema registry http://HOST: GET /subjects/orders-value/versions was answered 401",
        ),
    ],
)
def test_what_a_registry_does_not_have(host: str, user: str, subject: str, words: str) -> None:
    with pytest.raises((PipelineError, Unavailable)) as caught:
        subject_of(f"http://{user}{host}", subject)
    assert words.replace("HOST", host) in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_an_address_that_is_none() -> None:
    for url in ("http://[bad", "localhost:8081"):
        with pytest.raises(PipelineError, match="schema registry"):
            subject_of(url, "orders")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9: GET /schemas/ids/1 has failed"):
        schema_of("http://127.0.0.1:9", 1)


def test_a_registry_is_asked_for_one_subject() -> None:
    with pytest.raises(PipelineError, match="with value format registry, not json"):
        ValueFormat("json", "n int", registry="http://r", topics=("a",))
    with pytest.raises(PipelineError, match="one topic is loaded at a time, not 2"):
        ValueFormat("avro", registry="http://r", topics=("a", "b"))
    with pytest.raises(PipelineError, match="needs the URL"):
        ValueFormat("registry", topics=("a",))
