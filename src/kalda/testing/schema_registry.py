"""A schema registry in memory for tests, by the REST interface that serializers of all languages use.

It serves schemas, subjects, versions, soft and permanent deletion, and the compatibility level NONE: every schema that
is one is accepted. Ids begin at 1, and equal schemas have the same id.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kalda.base.errors import Portable, WrongState
from kalda.network.free_ports import LOOPBACK

_CONTENT = "application/vnd.schemaregistry.v1+json"
_TYPES = ("AVRO", "JSON", "PROTOBUF")
_MAX_BODY_BYTES = 4 << 20


class _Refused(Portable, Exception):
    """An error of the REST interface: its code, of which the first three digits are HTTP's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class _Schema:
    """As registered. `canonical` is equal for equal schemas."""

    text: str
    type: str
    references: str
    canonical: str

    def answer(self) -> dict[str, Any]:
        kind = {} if self.type == "AVRO" else {"schemaType": self.type}
        references = json.loads(self.references)
        return {"schema": self.text, **kind, **({"references": references} if references else {})}


@dataclass(slots=True)
class _Version:
    number: int
    schema_id: int
    is_deleted: bool = False


def _schema_of(body: dict[str, Any]) -> _Schema:
    text, kind = body.get("schema"), body.get("schemaType") or "AVRO"
    if kind not in _TYPES or not isinstance(text, str):
        raise _Refused(42201, f"Invalid schema: a text, and a type of {', '.join(_TYPES)} are expected, not {kind!r}")
    canonical = text
    if kind != "PROTOBUF":
        try:
            canonical = json.dumps(json.loads(text), sort_keys=True)
        except ValueError as error:
            raise _Refused(42201, f"Invalid schema: {error}") from error
    return _Schema(text, kind, json.dumps(body.get("references") or []), canonical)


class _Store:
    """Schemas by id, and the versions of subjects. One request at a time uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._schemas: list[_Schema] = []
        """That of id 1 first."""
        self._subjects: dict[str, list[_Version]] = {}

    def subjects(self, deleted: bool) -> list[str]:
        return sorted(name for name in self._subjects if self._versions(name, deleted))

    def schema(self, schema_id: int) -> _Schema:
        if not 1 <= schema_id <= len(self._schemas):
            raise _Refused(40403, f"Schema {schema_id} not found")
        return self._schemas[schema_id - 1]

    def uses(self, schema_id: int) -> list[dict[str, Any]]:
        self.schema(schema_id)
        return [
            {"subject": name, "version": version.number}
            for name in sorted(self._subjects)
            for version in self._versions(name, False)
            if version.schema_id == schema_id
        ]

    def register(self, subject: str, schema: _Schema) -> int:
        versions = self._subjects.setdefault(subject, [])
        for version in versions:
            if not version.is_deleted and self._is(version, schema):
                return version.schema_id
        schema_id = next((index for index, each in enumerate(self._schemas, 1) if _same(each, schema)), 0)
        if not schema_id:
            self._schemas.append(schema)
            schema_id = len(self._schemas)
        versions.append(_Version(versions[-1].number + 1 if versions else 1, schema_id))
        return schema_id

    def find(self, subject: str, schema: _Schema, deleted: bool) -> dict[str, Any]:
        for version in self._of(subject, deleted):
            if self._is(version, schema):
                return self._answer(subject, version)
        raise _Refused(40403, "Schema not found")

    def numbers(self, subject: str, deleted: bool) -> list[int]:
        return [version.number for version in self._of(subject, deleted)]

    def version(self, subject: str, number: str, deleted: bool) -> dict[str, Any]:
        return self._answer(subject, self._version(subject, number, deleted))

    def delete(self, subject: str, permanent: bool) -> list[int]:
        versions = self._of(subject, permanent)
        if permanent and any(not version.is_deleted for version in versions):
            raise _Refused(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
        for version in versions:
            version.is_deleted = True
        if permanent:
            del self._subjects[subject]
        return [version.number for version in versions]

    def delete_version(self, subject: str, number: str, permanent: bool) -> int:
        version = self._version(subject, number, permanent)
        if permanent and not version.is_deleted:
            raise _Refused(
                40407,
                f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted",
            )
        version.is_deleted = True
        if permanent:
            self._subjects[subject].remove(version)
        return version.number

    def _versions(self, subject: str, deleted: bool) -> list[_Version]:
        return [each for each in self._subjects.get(subject, ()) if deleted or not each.is_deleted]

    def _of(self, subject: str, deleted: bool) -> list[_Version]:
        versions = self._versions(subject, deleted)
        if not versions:
            raise _Refused(40401, f"Subject '{subject}' not found.")
        return versions

    def _version(self, subject: str, number: str, deleted: bool) -> _Version:
        versions = self._of(subject, deleted)
        if number in ("latest", "-1"):
            return versions[-1]
        for version in versions:
            if str(version.number) == number:
                return version
        raise _Refused(40402, f"Version {number} not found.")

    def _is(self, version: _Version, schema: _Schema) -> bool:
        return _same(self._schemas[version.schema_id - 1], schema)

    def _answer(self, subject: str, version: _Version) -> dict[str, Any]:
        schema = self._schemas[version.schema_id - 1]
        return {"subject": subject, "id": version.schema_id, "version": version.number, **schema.answer()}


def _same(one: _Schema, other: _Schema) -> bool:
    return (one.type, one.references, one.canonical) == (other.type, other.references, other.canonical)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise _Refused(404, f"{text!r} is not the id of a schema")
    return int(text)


def _answer(store: _Store, method: str, path: list[str], query: dict[str, list[str]], body: dict[str, Any]) -> Any:
    """What a request is answered with. Raises `_Refused`."""
    deleted, permanent = (query.get(name) == ["true"] for name in ("deleted", "permanent"))
    match method, path:
        case "GET", [""]:
            return {}
        case "GET", ["schemas", "types"]:
            return list(_TYPES)
        case "GET", ["schemas", "ids", schema_id]:
            return store.schema(_number(schema_id)).answer()
        case "GET", ["schemas", "ids", schema_id, "schema"]:
            return json.loads(store.schema(_number(schema_id)).text)
        case "GET", ["schemas", "ids", schema_id, "versions"]:
            return store.uses(_number(schema_id))
        case "GET", ["subjects"]:
            return store.subjects(deleted)
        case "POST", ["subjects", subject]:
            return store.find(subject, _schema_of(body), deleted)
        case "DELETE", ["subjects", subject]:
            return store.delete(subject, permanent)
        case "GET", ["subjects", subject, "versions"]:
            return store.numbers(subject, deleted)
        case "POST", ["subjects", subject, "versions"]:
            return {"id": store.register(subject, _schema_of(body))}
        case "GET", ["subjects", subject, "versions", number]:
            return store.version(subject, number, deleted)
        case "DELETE", ["subjects", subject, "versions", number]:
            return store.delete_version(subject, number, permanent)
    return _settings(method, path, body)


def _settings(method: str, path: list[str], body: dict[str, Any]) -> Any:
    match method, path:
        case "GET", ["config"] | ["config", _]:
            return {"compatibilityLevel": "NONE"}
        case "PUT", ["config"] | ["config", _]:
            if body.get("compatibility") != "NONE":
                raise _Refused(42203, "Invalid compatibility level: this registry of tests has NONE only")
            return body
        case "GET", ["mode"] | ["mode", _]:
            return {"mode": "READWRITE"}
        case "POST", ["compatibility", "subjects", _, "versions"] | ["compatibility", "subjects", _, "versions", _]:
            _schema_of(body)
            return {"is_compatible": True}  # as every schema is at the level NONE
    raise _Refused(404, "HTTP 404 Not Found")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        try:
            with self.server.store.lock:
                answer = _answer(self.server.store, self.command, path, parse_qs(parts.query), self._body())
            status = 200
        except _Refused as refused:
            answer = {"error_code": refused.code, "message": refused.message}
            status = int(str(refused.code)[:3])
        data = json.dumps(answer).encode()
        self.send_response(HTTPStatus(status))
        self.send_header("Content-Type", _CONTENT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length") or 0)
        if size > _MAX_BODY_BYTES:
            self.close_connection = True
            raise _Refused(413, f"the body has {size} bytes; at most {_MAX_BODY_BYTES} are expected")
        if not size:
            return {}
        try:
            body = json.loads(self.rfile.read(size))
        except ValueError as error:
            raise _Refused(400, f"the body is not JSON: {error}") from error
        return body if isinstance(body, dict) else {}

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""


class _Server(ThreadingHTTPServer):
    def __init__(self, store: _Store) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.store = store
        self.connections: set[socket.socket] = set()


class SchemaRegistry:
    """A schema registry in memory, on a port of loopback.

    ```python
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
    ```
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> SchemaRegistry:
        """Serve, without any subject."""
        assert self._server is None, "the schema registry is already running"
        self._server = _Server(_Store())
        serve: Callable[..., None] = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="kalda-schema-registry", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, and lose all schemas. Safe to call twice."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        self._server = self._thread = None
        server.shutdown()
        thread.join()
        for connection in list(server.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client has closed it
        server.server_close()

    @property
    def url(self) -> str:
        """What clients take as `url` or `schema.registry.url`."""
        if self._server is None:
            raise WrongState("the schema registry is not running")
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def __enter__(self) -> SchemaRegistry:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
