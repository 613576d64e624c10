"""A file of topics, tables and queries over them (TOML) as a project: `kalda pipeline derive FILE.toml` writes the
project `FILE-pipeline` beside it, and runs that.

    [options]
    "kafka.bootstrap.servers" = "localhost:9092"

    [topics.events]                        # a view `events`
    topic = "host-events"
    value = "json"                         # as `load` has it, with schema, message, descriptor, registry
    schema = "kind string, cpu double"
    since = "earliest"
    watermark = "10 seconds"               # of the records' timestamps
    rows_a_batch = 1000000

    [tables.kinds]                         # a view `kinds`
    path = "kinds.parquet"                 # relative to this file
    format = "parquet"

    [derived.windows]                      # a view `windows` too; neither topic nor path: a view only
    sql = "SELECT window(timestamp, '1 second') AS window, kind, count(*) AS events FROM events GROUP BY 1, 2"
    topic = "host-windows"                 # or path = "windows", with a format
    key = "kind"                           # the other columns are the value, as JSON
    mode = "append"                        # or update, complete
    every = "5 seconds"
    exactly_once = true

Instead of `sql` there may be `python = "module:function"`, a function of the session that returns a frame; the module
may be beside the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kalda.pipeline.files import read_text
from kalda.pipeline.formats.values import ValueFormat, schema_text
from kalda.pipeline.generators.generated import (
    GeneratedDirectory,
    GeneratedProject,
    decoded_text,
    literal,
    options_of_side,
)
from kalda.pipeline.generators.load import ISOLATION, STARTS, TIMES, starting_options
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError, refuse_options
from kalda.pipeline.topics import TopicQuestions

_NAME: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)
"""Of a view of Spark."""
_OUT: Final = "_out"
"""Behind the name of a derived view: its sink, and the flow that fills it."""
_FIELDS: Final[Mapping[str, Mapping[str, tuple[type, Any]]]] = {
    "topics": {
        "topic": (str, ...), "value": (str, "bytes"), "schema": (str, None), "message": (str, None),
        "descriptor": (str, None), "registry": (str, None), "since": (str, "earliest"), "watermark": (str, None),
        "rows_a_batch": (int, None),
    },
    "tables": {"path": (str, ...), "format": (str, "parquet")},
    "derived": {
        "sql": (str, None), "python": (str, None), "topic": (str, None), "path": (str, None),
        "format": (str, "parquet"), "key": (str, None), "mode": (str, "append"), "every": (str, None),
        "exactly_once": (bool, True),
    },
}  # fmt: skip
"""By section: the type of each entry, and what it is where it is left out; `...`: it is not left out."""
_MODES: Final = ("append", "update", "complete")
_OWN_OPTIONS: Final = {
    "subscribe": "each [topics.NAME] has its topic",
    **dict.fromkeys(STARTS, "each [topics.NAME] may have since"),
}
"""Options of the source that a file does not have, and what to use instead."""


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A file that was read and checked. Sections have their entries by name, with defaults."""

    path: Path
    name: str
    checkpoints: Path
    options: Mapping[str, str]
    topics: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Mapping[str, Any]]
    derived: Mapping[str, Mapping[str, Any]]

    @property
    def written(self) -> list[str]:
        """What is more than a view."""
        return [name for name, each in self.derived.items() if each["topic"] is not None or each["path"] is not None]

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of `session.MODULES` the project needs."""
        formats = [each["format"] for each in (*self.tables.values(), *self.derived.values())]
        return tuple(dict.fromkeys(formats))

    def flows(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs of the project that are meant by these names; none: all. Raises `PipelineError`."""
        for name in names:
            if name not in self.derived:
                raise PipelineError(f"nothing of the project is named {name}: {', '.join(self.derived)}")
            if name not in self.written:
                raise PipelineError(f"[derived.{name}] has neither topic nor path: there is nothing to write")
        return tuple(name + _OUT for name in names)

    def options_of(self, is_source: bool) -> dict[str, str]:
        return options_of_side(self.options, is_source)

    def place(self, path: str) -> str:
        return path if "://" in path else str(self.path.parent / path)


def read_derived(path: Path) -> DerivedFile:
    """Read and check a file. Raises `PipelineError` with the place of what is wrong."""
    path = path.absolute()
    try:
        found = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise PipelineError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path}: {error}") from None
    except RecursionError:
        raise PipelineError(f"{path}: tables or lists are nested too deeply") from None
    known = ("name", "checkpoints", "options", *_FIELDS)
    _refuse_unknown(path, "the file", found, known)
    for name in ("name", "checkpoints"):
        if not isinstance(found.get(name, ""), str):
            raise PipelineError(f"{path}: {name} is {found[name]!r}, not of type str")
    options = _options(path, found.get("options", {}))
    sections = {section: dict(_entries(path, section, found.get(section, {}))) for section in _FIELDS}
    file = DerivedFile(
        path=path,
        name=found.get("name", path.stem),
        checkpoints=path.parent / found.get("checkpoints", "checkpoints"),
        options=options,
        **sections,
    )
    if not file.written:
        raise PipelineError(f"{path}: nothing is written: add a table [derived.NAME] with a topic or a path")
    if (file.topics or any(each["topic"] for each in file.derived.values())) and not file.options.get(
        "kafka.bootstrap.servers"
    ):
        raise PipelineError(f"{path}: [options] lacks kafka.bootstrap.servers")
    refuse_options(file.options, _OWN_OPTIONS)
    _refuse_same(file)
    return file


def _options(path: Path, given: Any) -> dict[str, str]:
    """Options as Spark takes them: texts."""
    if not isinstance(given, dict):
        raise PipelineError(f"{path}: [options] is a table of names and values, not {given!r}")
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise PipelineError(f'{path}: [options]: {name} is {value!r}; write names with dots in quotes: "a.b" = "c"')
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _entries(path: Path, section: str, given: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(given, dict):
        raise PipelineError(f"{path}: {section} is {given!r}; tables [{section}.NAME] are expected")
    fields = _FIELDS[section]
    for name, values in given.items():
        place = f"{path}: [{section}.{name}]"
        if not _NAME.fullmatch(name):
            raise PipelineError(f"{place}: a name has letters of ASCII, digits and _ only, and a letter first")
        _refuse_unknown(path, f"[{section}.{name}]", values, fields)
        for key, value in values.items():
            if type(value) is not fields[key][0]:
                raise PipelineError(f"{place}: {key} is {value!r}, not of type {fields[key][0].__name__}")
        missing = [key for key, (_, default) in fields.items() if default is ... and key not in values]
        if missing:
            raise PipelineError(f"{place} lacks {', '.join(missing)}")
        entry = {key: values.get(key, default) for key, (_, default) in fields.items()}
        if section == "topics":
            entry["schema"] = schema_text(entry["schema"])
            _format_of(entry)
            if entry["rows_a_batch"] is not None and not 0 < entry["rows_a_batch"] < 2**31:
                raise PipelineError(f"{place}: rows_a_batch is {entry['rows_a_batch']}, not 1 or more")
        elif section == "derived":
            _check_derived(place, entry)
        yield name, entry


def _format_of(topic: Mapping[str, Any]) -> ValueFormat:
    schema, message, descriptor, registry = (topic[name] for name in ("schema", "message", "descriptor", "registry"))
    return ValueFormat(topic["value"], schema, message, descriptor, registry, (topic["topic"],))


def _check_derived(place: str, entry: Mapping[str, Any]) -> None:
    if (entry["sql"] is None) == (entry["python"] is None):
        raise PipelineError(f"{place}: give one of sql and python")
    if entry["python"] is not None and not re.fullmatch(r"[\w.]+:\w+", entry["python"]):
        raise PipelineError(f"{place}: python = {entry['python']!r}: module:function is expected")
    if entry["topic"] is not None and entry["path"] is not None:
        raise PipelineError(f"{place}: give one of topic and path")
    if entry["mode"] not in _MODES:
        raise PipelineError(f"{place}: mode {entry['mode']}: {', '.join(_MODES)} are possible")
    if entry["path"] is not None and entry["mode"] != "append":
        raise PipelineError(f"{place}: files are only appended to: mode append, or a table of a project of your own")


def _refuse_same(file: DerivedFile) -> None:
    """Views of one name would replace each other. A second query that writes the same files would pass over the batches
    whose numbers the first one has committed."""
    names = [*file.topics, *file.tables, *file.derived, *(name + _OUT for name in file.written)]
    names += [file.place(each["path"]) for each in file.derived.values() if each["path"] is not None]
    same = [name.lower() for name in names]  # as Spark compares them
    for each in names:
        if (count := same.count(each.lower())) > 1:
            raise PipelineError(f"{file.path}: {each} is there {count} times: give each a name and a path of its own")


def _refuse_unknown(path: Path, place: str, values: Any, known: Any) -> None:
    if not isinstance(values, dict):
        raise PipelineError(f"{path}: {place} is a table of {', '.join(known)}")
    unknown = [name for name in values if name not in known]
    if unknown:
        raise PipelineError(f"{path}: {place} has no {', '.join(unknown)}; there are {', '.join(known)}")


# -- the project


def derived_project(file: DerivedFile) -> GeneratedProject:
    """Raises `PipelineError`."""
    has_modules = any(each["python"] is not None for each in file.derived.values())
    parts = [
        f'"""What {file.path.name} derives. Written by `kalda pipeline derive`."""\n\n'
        + ("import sys\n\nfrom pyspark import cloudpickle\n" if has_modules else "")
        + "from pyspark import pipelines as dp\n\n"
        "from kalda.pipeline import decoded, records_of\n\n"
        f"SOURCE = {literal({ISOLATION: 'read_committed', **TIMES, **file.options_of(True)})}\n"
        f"SINK = {literal(file.options_of(False))}\n"
        + (f"sys.path.insert(0, {literal(str(file.path.parent))})  # modules beside the file\n" if has_modules else "")
    ]
    parts += [_topic_view(file, name, each) for name, each in file.topics.items()]
    for name, table in file.tables.items():
        read = f"spark.read.format({literal(table['format'])}).load({literal(file.place(table['path']))})"
        parts.append(_view(name, f"return {read}"))
    for name, each in file.derived.items():
        if each["sql"] is not None:
            parts.append(_view(name, f"return spark.sql({_text(each['sql'])})"))
        else:
            module, _, function = each["python"].partition(":")
            parts.append(
                f"import {module}\n\ncloudpickle.register_pickle_by_value({module})  # tasks cannot import it\n"
            )
            parts.append(_view(name, f"return {module}.{function}(spark)"))
        if name in file.written:
            parts.append(_flow(file, name, each))
    return GeneratedProject(file.name, "derive", "\n\n".join(parts), {"spark.sql.warehouse.dir": "."})


def _view(name: str, body: str) -> str:
    return f"@dp.temporary_view(name={literal(name)})\ndef view_{name}():\n    {body}\n"


def _text(sql: str) -> str:
    return literal(sql) if "\\" in sql or '"""' in sql or sql.endswith('"') else f'"""{sql}"""'


def _topic_view(file: DerivedFile, name: str, topic: Mapping[str, Any]) -> str:
    options = {"subscribe": topic["topic"], **_starts(file, topic)}
    if topic["rows_a_batch"] is not None:
        options["maxOffsetsPerTrigger"] = str(topic["rows_a_batch"])
    first = "value" if topic["value"] in ("bytes", "string") else "value.*"
    columns = ", ".join(map(literal, (first, "key", "topic", "partition", "offset", "timestamp", "reason")))
    watermark = f'.withWatermark("timestamp", {literal(topic["watermark"])})' if topic["watermark"] else ""
    return _view(
        name,
        f'records = spark.readStream.format("kalda").options(**SOURCE, **{literal(options, 4)}).load()\n'
        f"    rows = {decoded_text('records', _format_of(topic))}\n"
        f"    return rows.select({columns}){watermark}",
    )


def _starts(file: DerivedFile, topic: Mapping[str, Any]) -> dict[str, str]:
    with TopicQuestions(file.options_of(True)) as topics:
        return starting_options(topic["since"], topics, (topic["topic"],))


def _flow(file: DerivedFile, name: str, derived: Mapping[str, Any]) -> str:
    if derived["topic"] is not None:
        own = {"topic": derived["topic"], "kalda.exactly.once": str(derived["exactly_once"]).lower()}
        sink = f'dp.create_sink({literal(name + _OUT)}, "kalda", {{**SINK, **{literal(own)}}})'
        rows = f"records_of(rows, {literal(derived['key'])})"
    else:
        options = literal({"path": file.place(derived["path"])})
        sink = f"dp.create_sink({literal(name + _OUT)}, {literal(derived['format'])}, {options})"
        rows = "rows"
    conf = {"kalda.output.mode": derived["mode"]} | ({"kalda.trigger": derived["every"]} if derived["every"] else {})
    return (
        f"{sink}\n\n\n@dp.append_flow(name={literal(name + _OUT)}, target={literal(name + _OUT)}, "
        f"spark_conf={literal(conf)})\n"
        f"def write_{name}():\n    rows = spark.readStream.table({literal(name)})\n    return {rows}\n"
    )


class DerivedDirectory(GeneratedDirectory):
    """The project beside a file."""

    def __init__(self, file: DerivedFile) -> None:
        super().__init__(file.path.with_name(f"{file.path.stem}-pipeline"), "derive", "project", "")
        self.file = file

    def begin(self) -> Specification:
        """Write the project, while `alone`. The checkpoints of queries that an earlier version has begun become its."""
        specification = self.write(derived_project(self.file), {"file": str(self.file.path)})
        for name in self.file.written:
            before, now = self.file.checkpoints / name, specification.checkpoint(name + _OUT)
            if isinstance(now, Path) and before.is_dir() and not now.exists():
                now.parent.mkdir(parents=True, exist_ok=True)
                before.rename(now)
        return specification
