"""Avro values whose schemas are in a schema registry: a byte 0, the schema's id in four bytes, the value.

The versions of a topic's subject are requested once, when a load or a derivation starts. A value is decoded with the
schema that it was written with, into the newest one. An id that is no version of the subject is a bad record; a query
that is started again has the versions of that moment.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from kalda.pipeline.session import PipelineError

PREFIX_BYTES: Final = 5
"""The byte 0 and the schema's id, before each value."""
_TIMEOUT_S: Final = 30.0
_MAX_BYTES: Final = 16 << 20
"""Of one answer."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The schemas of a topic's values."""

    name: str
    schemas: dict[int, str]
    """By id, as JSON."""
    newest: str


def subject_of(url: str, topic: str) -> Subject:
    """The subject TOPIC-value. Raises `PipelineError` where the registry does not have it, or it is not Avro."""
    name = f"{topic}-value"
    path = f"/subjects/{quote(name, safe='')}/versions"
    versions = _get(url, path)
    if not isinstance(versions, list) or not all(type(each) is int for each in versions):
        raise PipelineError(f"schema registry {_shown(url)}: GET {path} was answered with no list of versions")
    if not versions:
        raise PipelineError(f"the subject {name} of {_shown(url)} has no version")
    found = {version: _get(url, f"{path}/{version}") for version in versions}
    for version, each in found.items():
        if not _is_schema(each):
            raise PipelineError(f"schema registry {_shown(url)}: GET {path}/{version} was answered with no schema")
        if (kind := each.get("schemaType", "AVRO")) != "AVRO":
            raise PipelineError(f"the subject {name} of {_shown(url)} has schemas of {kind}, not Avro")
    return Subject(name, {each["id"]: each["schema"] for each in found.values()}, found[max(found)]["schema"])


def _is_schema(answer: Any) -> bool:
    if not isinstance(answer, dict) or type(answer.get("schema")) is not str:
        return False
    number = answer.get("id")
    return type(number) is int and 0 <= number < 2**31


def _get(url: str, path: str) -> Any:
    """Raises `PipelineError`. User and password may be in the URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PipelineError(f"schema registry: the URL is malformed: {error}") from None
    host = parts.netloc.rpartition("@")[2]
    request = Request(urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path, "", "")))
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            body = answer.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise ValueError(f"the answer has more than {_MAX_BYTES} bytes")
        return json.loads(body)
    except HTTPError as error:
        raise PipelineError(f"schema registry {_shown(url)}: GET {path} was answered {error.code}") from error
    except (URLError, HTTPException, OSError, ValueError, RecursionError) as error:
        raise PipelineError(f"schema registry {_shown(url)}: GET {path} has failed: {error}") from error


def _shown(url: str) -> str:
    """Without the user's password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
