"""Schemas of a schema registry, whose values have a byte 0, the schema's id in four bytes, and the value.

The versions of a subject are requested when a frame is made: the newest is what columns are made of. The schema of a
record's id is requested where it is decoded, once a process. Where the registry does not answer, the query fails and
may be started again; an id that the registry does not have is a bad record.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from kalda.pipeline.session import PipelineError, Unavailable

PREFIX_BYTES: Final = 5
"""The byte 0 and the schema's id, before each value."""
_TIMEOUT_S: Final = 30.0
_MAX_BYTES: Final = 16 << 20
"""Of one answer."""
_MAX_IDS: Final = 10_000
"""Schemas that a process keeps."""
_MAX_REFERENCES: Final = 1_000
_NOT_FOUND: Final = 404
_AGAIN: Final = (408, 429)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One schema of a registry."""

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    named: tuple[tuple[str, str], ...] = ()
    """The schemas that it refers to, by the names of the references, each behind those that it refers to itself."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The schemas of a topic's keys or values."""

    name: str
    newest: RegisteredSchema
    ids: frozenset[int]
    """Of all versions."""


def subject_of(url: str, name: str) -> Subject:
    """Raises `PipelineError` where the registry does not have it, `Unavailable` where it does not answer."""
    path = f"/subjects/{quote(name, safe='')}/versions"
    versions = _get(url, path)
    if not isinstance(versions, list) or not all(type(each) is int for each in versions):
        raise PipelineError(f"schema registry {_shown(url)}: GET {path} was answered with no list of versions")
    if not versions:
        raise PipelineError(f"the subject {name} of {_shown(url)} has no version")
    found = {version: _get(url, f"{path}/{version}?format=serialized") for version in versions}
    for version, each in found.items():
        if not _is_schema(each) or not _is_id(each.get("id")):
            raise PipelineError(f"schema registry {_shown(url)}: GET {path}/{version} was answered with no schema")
    return Subject(name, _registered(url, found[max(found)]), frozenset(each["id"] for each in found.values()))


@lru_cache(maxsize=_MAX_IDS)
def schema_of(url: str, number: int) -> RegisteredSchema | None:
    """The schema with an id, requested once a process; None where the registry does not have it. Raises `Unavailable`,
    `PipelineError`."""
    path = f"/schemas/ids/{number}?format=serialized"
    answer = _get(url, path, or_none=True)
    if answer is None:
        return None
    if not _is_schema(answer):
        raise PipelineError(f"schema registry {_shown(url)}: GET {path} was answered with no schema")
    return _registered(url, answer)


def _is_schema(answer: Any) -> bool:
    return isinstance(answer, dict) and type(answer.get("schema")) is str


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**31


def _registered(url: str, answer: Mapping[str, Any]) -> RegisteredSchema:
    named: dict[tuple[str, int], tuple[str, str]] = {}
    _follow(url, answer, named, 0)
    return RegisteredSchema(str(answer.get("schemaType") or "AVRO"), answer["schema"], tuple(named.values()))


def _follow(url: str, answer: Mapping[str, Any], named: dict[tuple[str, int], tuple[str, str]], depth: int) -> None:
    """Request what a schema refers to, of whatever depth."""
    for each in answer.get("references") or ():
        try:
            key = (str(each["subject"]), int(each["version"]))
        except (KeyError, TypeError, ValueError):
            raise PipelineError(f"schema registry {_shown(url)}: {each!r} is no reference to a schema") from None
        if key in named:
            continue
        if max(depth, len(named)) >= _MAX_REFERENCES:
            raise PipelineError(f"schema registry {_shown(url)}: a schema refers to more than {_MAX_REFERENCES} others")
        path = f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}?format=serialized"
        found = _get(url, path)
        if not _is_schema(found):
            raise PipelineError(f"schema registry {_shown(url)}: GET {path} was answered with no schema")
        _follow(url, found, named, depth + 1)
        named.setdefault(key, (str(each.get("name")), found["schema"]))


def _get(url: str, path: str, *, or_none: bool = False) -> Any:
    """`or_none`: where there is no such thing. Raises `PipelineError`, `Unavailable`. User and password may be in the
    URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PipelineError(f"schema registry: the URL is malformed: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PipelineError(f"schema registry {_shown(url)}: a URL such as http://host:8081 is expected")
    host = parts.netloc.rpartition("@")[2]
    request = Request(urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path.partition("?")[0],
                                  path.partition("?")[2], "")))  # fmt: skip
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
    shown = f"schema registry {_shown(url)}: GET {path.partition('?')[0]}"
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            body = answer.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise PipelineError(f"{shown}: the answer has more than {_MAX_BYTES} bytes")
        return json.loads(body)
    except HTTPError as error:
        if or_none and error.code == _NOT_FOUND:
            return None
        kind = Unavailable if error.code >= 500 or error.code in _AGAIN else PipelineError
        raise kind(f"{shown} was answered {error.code}") from error
    except (URLError, HTTPException, OSError) as error:
        raise Unavailable(f"{shown} has failed: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{shown} has failed: {error}") from error


def _shown(url: str) -> str:
    """Without the user's password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
