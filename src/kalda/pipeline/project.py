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

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.producer import PRODUCER
from kalda.pipeline.files import read_text
from kalda.pipeline.session import PipelineError
from kalda.pipeline.values import ValueFormat, schema_text

T = TypeVar("T")
_NAME: Final = re.compile(r"\w+", re.ASCII)
"""Of a view of Spark, and of a directory of checkpoints."""
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

    def is_written(self, name: str) -> bool:
        """Whether a derived frame is more than a view of later queries."""
        return self.derived[name].topic is not None or self.derived[name].path is not None

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name

    @property
    def source_options(self) -> dict[str, str]:
        """The options without those that only the sink has."""
        return {
            name: value
            for name, value in self.options.items()
            if not name.startswith("kalda.exactly.once") and (_key(name) in CONSUMER or _key(name) not in PRODUCER)
        }

    @property
    def sink_options(self) -> dict[str, str]:
        """The options without those that only the source has."""
        return {
            name: value
            for name, value in self.options.items()
            if name.startswith(("kafka.", "kalda.exactly.once"))
            and (_key(name) in PRODUCER or _key(name) not in CONSUMER)
        }

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of `session.PACKAGES` the project needs."""
        formats = [each.format for each in self.tables.values()] + [each.format for each in self.derived.values()]
        values = [need for each in self.topics.values() for need in each.value_format.needs]
        return tuple(dict.fromkeys((*formats, *values)))


def _key(option: str) -> str:
    """Kafka's key of an option."""
    return option.removeprefix("kafka.")


def read_project(path: Path) -> Project:
    """Read and check a project file. Raises `PipelineError` with the place of what is wrong."""
    try:
        found = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise PipelineError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path}: {error}") from None
    except RecursionError:
        raise PipelineError(f"{path}: tables or lists are nested too deeply") from None
    known = ("name", "checkpoints", "options", "topics", "tables", "derived")
    _refuse_unknown(path, "the file", found, known)
    for name in ("name", "checkpoints"):
        if not isinstance(found.get(name, ""), str):
            raise PipelineError(f"{path}: {name} is {found[name]!r}, not of type str")
    directory = path.absolute().parent
    project = Project(
        name=found.get("name", path.stem),
        directory=directory,
        checkpoints=directory / found.get("checkpoints", "checkpoints"),
        options=_options(path, found.get("options", {})),
        topics=_entries(path, found, "topics", TopicSource),
        tables=_entries(path, found, "tables", TableSource),
        derived=_entries(path, found, "derived", Derived),
    )
    if not project.derived:
        raise PipelineError(f"{path}: nothing is derived; add a table [derived.NAME]")
    if (project.topics or any(each.topic for each in project.derived.values())) and not project.options.get(
        "kafka.bootstrap.servers"
    ):
        raise PipelineError(f"{path}: [options] lacks kafka.bootstrap.servers")
    for name, each in project.derived.items():
        _check(path, name, each)
    _refuse_same(path, project)
    return project


def _options(path: Path, given: Any) -> dict[str, str]:
    """Options as Spark takes them: texts."""
    if not isinstance(given, dict):
        raise PipelineError(f"{path}: [options] is a table of names and values, not {given!r}")
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise PipelineError(f'{path}: [options]: {name} is {value!r}; write names with dots in quotes: "a.b" = "c"')
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _entries(path: Path, found: Mapping[str, Any], section: str, kind: type[T]) -> dict[str, T]:
    entries: dict[str, T] = {}
    types = get_type_hints(kind)
    given_entries = found.get(section, {})
    if not isinstance(given_entries, dict):
        raise PipelineError(f"{path}: {section} is {given_entries!r}; tables [{section}.NAME] are expected")
    for name, values in given_entries.items():
        if not _NAME.fullmatch(name):
            raise PipelineError(f"{path}: [{section}.{name!r}]: a name has letters of ASCII, digits and _ only")
        _refuse_unknown(path, f"[{section}.{name}]", values, types)
        given = dict(values)
        for key, value in given.items():
            if type(value) not in (possible := get_args(types[key]) or (types[key],)):
                raise PipelineError(f"{path}: [{section}.{name}]: {key} is {value!r}, not of type {_type(possible)}")
        if "schema" in given:
            given["schema"] = schema_text(given["schema"])
        try:
            entries[name] = kind(**given)
        except TypeError as error:
            raise PipelineError(f"{path}: [{section}.{name}]: {error}") from None
        if isinstance(entry := entries[name], TopicSource):
            entry.value_format  # noqa: B018
            if entry.rows_a_batch is not None and not 0 < entry.rows_a_batch < 2**31:
                raise PipelineError(f"{path}: [{section}.{name}]: rows_a_batch is {entry.rows_a_batch}, not 1 or more")
    return entries


def _type(possible: Collection[type]) -> str:
    return " or ".join(each.__name__ for each in possible if each is not type(None))


def _refuse_same(path: Path, project: Project) -> None:
    """Views of one name would replace each other. A second query that writes the same files would pass over the batches
    whose numbers the first one has committed."""
    names = Counter([*project.topics, *project.tables, *project.derived])
    places = Counter(project.place(each.path) for each in project.derived.values() if each.path is not None)
    for found, count in (names + places).items():
        if count > 1:
            raise PipelineError(f"{path}: {found} is there {count} times: give each a name and a path of its own")


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
