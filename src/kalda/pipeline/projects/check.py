"""What the flows of a project read, and what is wrong with them, without Java.

PySpark's client of Spark Connect makes plans as messages, and a server analyses them later. So the definition files are
executed, and their functions called, with such a client that has no server: the plan of a flow names the tables, the
topics and often the columns. A function that needs an answer (`df.schema`, `spark.conf.get`) raises `NeedsSpark`: then
only Spark itself can find out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.pipelines.output import MaterializedView, Sink

from kalda.pipeline.projects.definitions import (
    AnyFlow,
    ChangeFlow,
    DefinitionError,
    Definitions,
    SqlQuery,
    load_definitions,
    place_of,
    references_of,
    where,
)
from kalda.pipeline.projects.graph import ordered
from kalda.pipeline.projects.specification import CATALOGS, Specification, files_of
from kalda.pipeline.session import PipelineError, first_line, missing_jar
from kalda.pipeline.topics import TopicQuestions
from kalda.spark.options import CONNECTION, OptionError, read_options

_FORMAT: Final = "kalda"
_TIMEOUT_MS: Final = "15000"
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""By which functions of PySpark make columns without Java."""
_DEBUGGING: Final = "_enable_debugging_cache"


class NeedsSpark(PipelineError):
    """A function asks Spark for an answer."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a flow reads from outside of the project."""

    format: str
    options: Mapping[str, str]
    is_streaming: bool


@dataclass(slots=True)
class Reading:
    """What one flow reads."""

    tables: dict[str, bool] = field(default_factory=dict)
    """By the name in the query: whether it is read as a stream."""
    sql_tables: dict[str, bool] = field(default_factory=dict)
    """Those in the text of a query, which may be no tables (`extract(day FROM moment)`)."""
    sources: list[Source] = field(default_factory=list)
    columns: tuple[str, ...] | None = None
    """None where only Spark can find out."""
    unknown: str | None = None
    """Why nothing can be checked without Spark."""


class _Client:
    """In the place of a client of Spark Connect: it takes commands without effect, and has no answers."""

    _session_id = "readings"

    def __getattr__(self, name: str) -> Any:
        if name == "execute_command":
            return lambda *_, **__: (None, {}, None)
        raise NeedsSpark(f"Spark is asked for {name}")


@contextmanager
def _without_server() -> Iterator[Any]:
    """A session of Spark Connect without a server, which is the active one in the block."""
    from pyspark.errors import utils
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.__new__(ConnectSession)
    vars(session).update(_client=_Client(), _session_id=_Client._session_id, release_session_on_close=False)
    names = ("active", "getActiveSession")
    before = {(kind, name): vars(kind)[name] for kind in (SparkSession, ConnectSession) for name in names}
    mode, debugging = os.environ.get(_CONNECT), vars(utils)[_DEBUGGING]
    vars(utils)[_DEBUGGING] = False  # else each method of a frame asks the session for it
    os.environ[_CONNECT] = "1"
    for kind, name in before:
        setattr(kind, name, staticmethod(lambda: session))
    try:
        yield session
    finally:
        vars(utils)[_DEBUGGING] = debugging
        for (kind, name), method in before.items():
            setattr(kind, name, method)
        if mode is None:
            del os.environ[_CONNECT]
        else:
            os.environ[_CONNECT] = mode


def read_project(specification: Specification) -> tuple[Definitions, dict[str, Reading]] | None:
    """The definitions, and what each flow reads. None where the files ask Spark at once, or cannot be executed without
    it. Raises `PipelineError` where they are wrong."""
    with _without_server() as spark:
        try:
            definitions = load_definitions(specification, spark)
        except NeedsSpark:
            return None
        except DefinitionError as error:
            if isinstance(error.__cause__, SyntaxError | ImportError | NameError | TypeError):
                raise
            return None
        return definitions, {name: _read(definitions, flow, spark) for name, flow in definitions.flows.items()}


def _read(definitions: Definitions, flow: AnyFlow, spark: Any) -> Reading:
    reading = Reading()
    if isinstance(flow, ChangeFlow):
        reading.tables[flow.source] = True
        return reading
    if isinstance(flow.func, SqlQuery):
        reading.sql_tables.update(references_of(flow.func.text))
        return reading
    try:
        plan = flow.func()._plan.plan(spark._client)  # type: ignore[operator]
    except NeedsSpark as error:
        reading.unknown = str(error)
    except (NameError, ImportError) as error:
        place = where(error, files_of(definitions.specification))
        raise PipelineError(f"{place}: {type(error).__name__}: {first_line(error)}") from error
    except Exception as error:
        reading.unknown = first_line(error)
    else:
        _walk(plan, reading)
        reading.columns = _columns(plan)
    return reading


def _walk(message: Any, reading: Reading) -> None:
    """Take the reads of a plan, of whatever depth."""
    if message.DESCRIPTOR.name == "Read":
        if message.HasField("named_table"):
            reading.tables[message.named_table.unparsed_identifier] = message.is_streaming
        elif message.HasField("data_source"):
            found = message.data_source
            reading.sources.append(Source(found.format.lower(), dict(found.options), message.is_streaming))
    elif message.DESCRIPTOR.name == "SQL":
        reading.sql_tables.update(references_of(message.query))
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            inner = [each for each in value.values() if hasattr(each, "ListFields")]
        else:
            inner = value if hasattr(value, "__len__") else [value]
        for each in inner:
            _walk(each, reading)


def _columns(plan: Any) -> tuple[str, ...] | None:
    """The names that the last projection gives, where each of its expressions has one."""
    kind = plan.WhichOneof("rel_type")
    if kind in ("filter", "limit", "with_watermark", "deduplicate", "repartition", "sort", "subquery_alias"):
        return _columns(getattr(plan, kind).input)
    if kind == "with_columns":
        before = _columns(plan.with_columns.input)
        return None if before is None else (*before, *(each.name[0] for each in plan.with_columns.aliases))
    if kind != "project":
        return None
    names = []
    for expression in plan.project.expressions:
        if expression.HasField("alias"):
            names.append(expression.alias.name[0])
        elif expression.HasField("unresolved_attribute"):
            names.append(expression.unresolved_attribute.unparsed_identifier.rpartition(".")[2].strip("`"))
        elif expression.HasField("expression_string"):
            words = expression.expression_string.expression.split()
            if len(words) > 1 and words[-2].lower() != "as":
                return None
            names.append(words[-1].rpartition(".")[2].strip("`"))
        else:
            return None
    return None if "*" in names else tuple(names)


def problems_without_spark(specification: Specification, ask: bool = True) -> list[str]:
    """What is wrong, as far as it can be found without Java, each with its place. `ask`: also clusters and stores.
    Raises `PipelineError` where the definitions cannot be read."""
    problems = list(dict.fromkeys(filter(None, (each.problem() for each in specification.stores if ask))))
    found = read_project(specification)
    if found is None:
        return problems
    definitions, readings = found
    problems += _missing(definitions, readings)
    settings = specification.session_settings
    try:
        ordered(_inputs(definitions, readings))
    except PipelineError as error:
        problems.append(str(error))
    for name, reading in readings.items():
        flow = definitions.flows[name]
        problems += _of_sources(flow, reading, ask)
        jars = {each.format: missing_jar(each.format, settings) for each in reading.sources}
        problems += [f"{place_of(flow)}: {missing}" for missing in jars.values() if missing]
        output = definitions.outputs[definitions.target(flow)]
        columns = reading.columns if isinstance(output, Sink) and output.format == _FORMAT else None
        if columns is not None and "value" not in columns:
            problems.append(
                f"{place_of(flow)}: sink {output.name} needs a column value; {name} has {', '.join(columns)}"
            )
    for output in definitions.outputs.values():
        if isinstance(output, Sink) and (missing := missing_jar(output.format, settings)):
            problems.append(f"{place_of(output)}: sink {output.name}: {missing}")
        if isinstance(output, Sink) and output.format == _FORMAT and ask:
            problems += _of_topics(place_of(output), output.options, [output.options.get("topic", "")])
    return problems


def _missing(definitions: Definitions, readings: Mapping[str, Reading]) -> list[str]:
    problems = []
    is_certain = not any(key.startswith(CATALOGS) for key in definitions.specification.configuration)
    for name, reading in readings.items():
        flow = definitions.flows[name]
        for table, is_stream in reading.tables.items():
            found = definitions.find(table)
            if found is None and is_certain:
                problems.append(f"{place_of(flow)}: {name} reads {table}, which the project does not define")
            elif found is not None and is_stream and isinstance(definitions.outputs[found], MaterializedView):
                problems.append(
                    f"{place_of(flow)}: {name} reads {table} as a stream, and a materialized view is replaced as a "
                    f"whole: read it as a table"
                )
    return problems


def _inputs(definitions: Definitions, readings: Mapping[str, Reading]) -> dict[str, set[str]]:
    inputs: dict[str, set[str]] = {name: set() for name in definitions.outputs}
    for name, reading in readings.items():
        for table in (*reading.tables, *reading.sql_tables):
            found = definitions.find(table)
            if found is not None:
                inputs[definitions.target(definitions.flows[name])].add(found)
    return inputs


def _of_sources(flow: AnyFlow, reading: Reading, ask: bool) -> list[str]:
    problems = []
    for source in reading.sources:
        if source.format != _FORMAT:
            continue
        try:
            options = read_options(source.options, is_streaming=source.is_streaming)
        except OptionError as error:
            problems.append(f"{place_of(flow)}: {error}")
            continue
        wanted = options.subscription
        topics = [*wanted.topics, *(each.topic for each in wanted.assigned)]
        if ask and topics:
            problems += _of_topics(place_of(flow), source.options, topics)
    return problems


def _of_topics(place: str, options: Mapping[str, str], topics: list[str]) -> list[str]:
    """What the cluster says of the topics: that they are not there, or that this user may not see them."""
    if not {"kafka.bootstrap.servers", CONNECTION} & options.keys() or not all(topics):
        return []
    try:
        with TopicQuestions({"kafka.default.api.timeout.ms": _TIMEOUT_MS, **options}) as questions:
            questions.ends(dict.fromkeys(topics))
    except PipelineError as error:
        return [f"{place}: {error}"]
    return []
