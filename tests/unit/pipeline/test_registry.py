"""Schemas of a topic's values, from an HTTP server that answers as a schema registry does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kalda.pipeline.registry import subject_of
from kalda.pipeline.session import PipelineError
from kalda.pipeline.values import ValueFormat

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
    "/subjects/texts-value/versions": [1],
    "/subjects/texts-value/versions/1": {"version": 1, "id": 8, "schema": "{}", "schemaType": "JSON"},
}


class Registry(BaseHTTPRequestHandler):
    """Needs the user u with the password p:w."""

    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path)
        is_user = self.headers["Authorization"] == "Basic dTpwOnc="
        if self.path == "/subjects/torn-value/versions/1":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.7\r\n")
            return
        self.send_response(401 if not is_user else 404 if answer is None else 200)
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
    subject = subject_of(f"http://u:p%3Aw@{host}/", "orders")
    assert subject.schemas == {7: '"int"', 300: '"long"'}
    assert subject.newest == '"long"'


@pytest.mark.parametrize(
    ("user", "topic", "words"),
    [
        ("u:p%3Aw@", "none", "GET /subjects/none-value/versions was answered 404"),
        ("u:p%3Aw@", "texts", "the subject texts-value of http://HOST has schemas of JSON, not Avro"),
        ("u:p%3Aw@", "page", "GET /subjects/page-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "object", "GET /subjects/object-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "words", "GET /subjects/words-value/versions was answered with no list of versions"),
        ("u:p%3Aw@", "empty", "the subject empty-value of http://HOST has no version"),
        ("u:p%3Aw@", "lists", "GET /subjects/lists-value/versions/1 was answered with no schema"),
        ("u:p%3Aw@", "large", "GET /subjects/large-value/versions/1 was answered with no schema"),
        ("u:p%3Aw@", "torn", "GET /subjects/torn-value/versions/1 has failed: SSH-2.0-OpenSSH_9.7"),
        ("u:wrong@", "orders", "schema registry http://HOST: GET /subjects/orders-value/versions was answered 401"),
    ],
)
def test_what_a_registry_does_not_have(host: str, user: str, topic: str, words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        subject_of(f"http://{user}{host}", topic)
    assert words.replace("HOST", host) in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_an_address_that_is_none() -> None:
    for url in ("http://[bad", "localhost:8081"):
        with pytest.raises(PipelineError, match="schema registry"):
            subject_of(url, "orders")


def test_a_registry_is_for_avro_of_one_topic() -> None:
    with pytest.raises(PipelineError, match="with value format avro, not json"):
        ValueFormat("json", "n int", registry="http://r", topics=("a",))
    with pytest.raises(PipelineError, match="one topic is loaded at a time, not 2"):
        ValueFormat("avro", registry="http://r", topics=("a", "b"))
    assert ValueFormat("avro", registry="http://r", topics=("a",)).needs == ("avro",)
