"""A project file (TOML): topics as streams, tables, and what is derived from them.

    name = "hosts"
    checkpoints = "checkpoints"            # relative to this file

    [options]
    "kafka.bootstrap.servers" = "localhost:9092"

    [topics.events]                        # a view `events`
    topic = "host-events"
    value = "json"
    schema = "kind string, cpu double"
    since = "earliest"
    watermark = "10 seconds"               # of the records' timestamps

    [tables.kinds]                         # a view `kinds`
    path = "kinds.parquet"

    [derived.windows]
    sql = "SELECT window(timestamp, '1 second') AS window, kind, count(*) AS events FROM events GROUP BY 1, 2"
    topic = "host-windows"                 # or path = "windows"
    key = "kind"                           # the other columns are the value, as JSON
    mode = "append"                        # or update, complete
    every = "5 seconds"

Instead of `sql` there may be `python = "module:function"`, a function of the session that returns a frame; the module
may be beside the file. A derived frame is a view of its own name for those after it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from kalda.pipeline.session import PipelineError
from kalda.pipeline.values import ValueFormat, schema_text

T = TypeVar("T")
MODES: Final = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic that is read as a stream."""

    topic: str
    value: str = "bytes"
    schema: str | None = None
    message: str | None = None
    descriptor: str | None = None
    registry: str | None = None
    since: str = "earliest"
    watermark: str | None = None
    rows_a_batch: int | None = None

    @property
    def value_format(self) -> ValueFormat:
        return ValueFormat(self.value, self.schema, self.message, self.descriptor, self.registry, (self.topic,))


@dataclass(frozen=True, slots=True)
class TableSource:
    """Files that are read as a table."""

    path: str
    format: str = "parquet"


@dataclass(frozen=True, slots=True)
class Derived:
    """A query, and where its rows go: exactly one of `topic` and `path`, or neither for a view of later queries."""

    sql: str | None = None
    python: str | None = None
    topic: str | None = None
    path: str | None = None
    format: str = "parquet"
    key: str | None = None
    mode: str = "append"
    every: str | None = None
    """Between the begins of two batches; None: as soon as there are records."""
    exactly_once: bool = True


@dataclass(frozen=True, slots=True)
class Project:
    """A project file."""

    name: str
    directory: Path
    checkpoints: Path
    options: Mapping[str, str]
    topics: Mapping[str, TopicSource]
    tables: Mapping[str, TableSource]
    derived: Mapping[str, Derived]

    def place(self, path: str) -> str:
        """A path of the file; relative ones begin at its directory."""
        return path if "://" in path else str(self.directory / path)

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of `session.PACKAGES` the project needs."""
        formats = [each.format for each in self.tables.values()] + [each.format for each in self.derived.values()]
        values = [need for each in self.topics.values() for need in each.value_format.needs]
        return tuple(dict.fromkeys((*formats, *values)))


def read_project(path: Path) -> Project:
    """Read and check a project file. Raises `PipelineError` with the place of what is wrong."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path}: {error}") from None
    known = ("name", "checkpoints", "options", "topics", "tables", "derived")
    _refuse_unknown(path, "the file", found, known)
    directory = path.absolute().parent
    options = {str(name): str(value) for name, value in found.get("options", {}).items()}
    project = Project(
        name=str(found.get("name", path.stem)),
        directory=directory,
        checkpoints=directory / str(found.get("checkpoints", "checkpoints")),
        options=options,
        topics=_entries(path, found, "topics", TopicSource),
        tables=_entries(path, found, "tables", TableSource),
        derived=_entries(path, found, "derived", Derived),
    )
    if not project.derived:
        raise PipelineError(f"{path}: nothing is derived; add a table [derived.NAME]")
    if (project.topics or any(each.topic for each in project.derived.values())) and not options.get(
        "kafka.bootstrap.servers"
    ):
        raise PipelineError(f"{path}: [options] lacks kafka.bootstrap.servers")
    for name, each in project.derived.items():
        _check(path, name, each)
    return project


def _entries(path: Path, found: Mapping[str, Any], section: str, kind: type[T]) -> dict[str, T]:
    entries: dict[str, T] = {}
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name, values in found.get(section, {}).items():
        _refuse_unknown(path, f"[{section}.{name}]", values, names)
        given = dict(values)
        if isinstance(given.get("schema"), str):
            given["schema"] = schema_text(given["schema"])
        try:
            entries[name] = kind(**given)
        except TypeError as error:
            raise PipelineError(f"{path}: [{section}.{name}]: {error}") from None
        if isinstance(entry := entries[name], TopicSource):
            entry.value_format  # noqa: B018
    return entries


def _refuse_unknown(path: Path, place: str, values: Any, known: Any) -> None:
    if not isinstance(values, dict):
        raise PipelineError(f"{path}: {place} is a table of {', '.join(known)}")
    unknown = [name for name in values if name not in known]
    if unknown:
        raise PipelineError(f"{path}: {place} has no {', '.join(unknown)}; there are {', '.join(known)}")


def _check(path: Path, name: str, derived: Derived) -> None:
    place = f"{path}: [derived.{name}]"
    if (derived.sql is None) == (derived.python is None):
        raise PipelineError(f"{place}: give one of sql and python")
    if derived.topic is not None and derived.path is not None:
        raise PipelineError(f"{place}: give one of topic and path")
    if derived.mode not in MODES:
        raise PipelineError(f"{place}: mode {derived.mode}: {', '.join(MODES)} are possible")
    if derived.path is not None and derived.mode != "append" and derived.format == "parquet":
        raise PipelineError(f"{place}: files are only appended to: mode append, or another format than parquet")
