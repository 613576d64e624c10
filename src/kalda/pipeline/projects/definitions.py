"""What the .py and .sql files of a project define, in Spark's own language.

`Definitions` is a registry of `pyspark.pipelines`: while a file is executed, its decorators call it with outputs
(tables, views, sinks) and flows. Nothing is evaluated here; a flow holds the function that makes its frame. What is
Kalda's alone stands in keys `kalda.*` of `table_properties`, `spark_conf` and `configuration`, in this order of
precedence from the last to the first, which other engines ignore.

Names of tables are `database.table`, in lower case, as Spark compares them; views and sinks have names of one part.

Of files in SQL the heads of statements are parsed here, so that a project is read without Java; queries and expressions
stay text, which Spark parses.

    CREATE STREAMING TABLE name [(columns)] [clauses] [AS query]
    CREATE MATERIALIZED VIEW name [(columns)] [clauses] AS query
    CREATE TEMPORARY VIEW name [COMMENT 'text'] AS query
    CREATE FLOW name AS INSERT INTO table BY NAME query
    CREATE FLOW name AS AUTO CDC INTO table FROM STREAM source KEYS (columns) [APPLY AS DELETE WHEN condition]
        SEQUENCE BY expression [COLUMNS (columns) | COLUMNS * EXCEPT (columns)] [STORED AS SCD TYPE 1 | 2]
    SET key = value

Clauses are USING, PARTITIONED BY, CLUSTER BY, COMMENT and TBLPROPERTIES. `SET` holds for the flows behind it in its
file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, Table, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation

from kalda.pipeline.files import read_text
from kalda.pipeline.projects.specification import CATALOG, Specification, files_of
from kalda.pipeline.session import PipelineError, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# -- statements of SQL

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>\w+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLAUSES: Final = ("KEYS", "APPLY", "SEQUENCE", "COLUMNS", "STORED")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFlow:
    """A flow of change data. PySpark has such a class from 4.2 on, with type 1 alone. Raises `PipelineError`."""

    name: str
    target: str
    source: str
    keys: Sequence[Any]
    """Names, or columns of PySpark; as are the other ones. Expressions may be SQL."""
    sequence_by: Any
    source_code_location: SourceCodeLocation
    apply_as_deletes: Any = None
    column_list: Sequence[Any] | None = None
    except_column_list: Sequence[Any] | None = None
    stored_as_scd_type: int | str | None = None

    def __post_init__(self) -> None:
        place = f"{self.source_code_location.filename}:{self.source_code_location.line_number}"
        if not isinstance(self.keys, list) or not self.keys:
            raise PipelineError(f"{place}: keys is {self.keys!r}, and a list of at least one column is expected")
        if self.column_list is not None and self.except_column_list is not None:
            raise PipelineError(f"{place}: give one of column_list and except_column_list")
        if str(self.stored_as_scd_type or 1) not in ("1", "2"):
            raise PipelineError(f"{place}: stored_as_scd_type is {self.stored_as_scd_type!r}; 1 and 2 are possible")


@dataclass(frozen=True, slots=True)
class Token:
    """A word, quoted name, text in quotes, or sign, and where it stands in the file."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """In upper case; empty for what is no word."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


def tokens_of(sql: str) -> list[Token]:
    found = (Token(str(each.lastgroup), each[0], *each.span()) for each in _TOKEN.finditer(sql))
    return [token for token in found if token.kind != "blank"]


def statements_of(sql: str, file: str) -> Iterator[tuple[Output | None, Flow | ChangeFlow | None]]:
    """The outputs and flows of a file. Raises `PipelineError` with file and line."""
    conf: dict[str, str] = {}
    statement: list[Token] = []
    for token in [*tokens_of(sql), Token("sign", ";", len(sql), len(sql))]:
        if token.text != ";" or token.kind != "sign":
            statement.append(token)
        elif statement:
            yield from _Statement(sql, file, statement, conf).parse()
            statement = []


class _Statement:
    """One statement, from its first token on."""

    def __init__(self, sql: str, file: str, tokens: Sequence[Token], conf: dict[str, str]) -> None:
        self._sql, self._file, self._tokens, self._conf = sql, file, tokens, conf
        self._at = 0
        self._place = SourceCodeLocation(file, sql.count("\n", 0, tokens[0].start) + 1)

    def parse(self) -> Iterator[tuple[Output | None, Flow | ChangeFlow | None]]:
        if self._take("SET"):
            key, equals, value = self._rest().partition("=")
            if not equals:
                self._refuse("SET key = value is expected")
            self._conf[key.strip()] = value.strip().strip("'\"")
        elif self._take("CREATE"):
            if self._take("OR") and not self._take("REPLACE"):
                self._expect("REFRESH")
            if self._take("STREAMING"):
                self._expect("TABLE")
                yield self._table(StreamingTable)
            elif self._take("MATERIALIZED"):
                self._expect("VIEW")
                yield self._table(MaterializedView)
            elif self._take("TEMPORARY") or self._take("TEMP"):
                self._expect("VIEW")
                yield self._view()
            elif self._take("FLOW"):
                yield None, self._flow()
            else:
                self._refuse("STREAMING TABLE, MATERIALIZED VIEW, TEMPORARY VIEW or FLOW is expected behind CREATE")
        else:
            self._refuse(f"a statement of a pipeline begins with CREATE or SET, not {self._tokens[0].text}")

    def _table(self, kind: type[StreamingTable] | type[MaterializedView]) -> tuple[Output, Flow | None]:
        if self._take("IF"):
            self._expect("NOT")
            self._expect("EXISTS")
        name = self._name()
        schema = self._parenthesized() if self._peek("(") else None
        given: dict[str, Any] = {"format": None, "partition_cols": None, "cluster_by": None, "comment": None}
        properties: dict[str, str] = {}
        while not self._is_done and not self._peek("AS"):
            if self._take("USING"):
                given["format"] = self._next().text.lower()
            elif self._take("PARTITIONED"):
                self._expect("BY")
                given["partition_cols"] = self._names()
            elif self._take("CLUSTER"):
                self._expect("BY")
                given["cluster_by"] = self._names()
            elif self._take("COMMENT"):
                given["comment"] = _unquoted(self._next())
            elif self._take("TBLPROPERTIES"):
                properties |= self._properties()
            else:
                self._refuse(f"{self._next().text} is not expected behind {name}")
        output = kind(
            name=name, schema=schema, table_properties=properties, source_code_location=self._place, **given
        )  # fmt: skip
        if self._take("AS"):
            return output, self._query_flow(name, name)
        if kind is MaterializedView:
            self._refuse(f"a query is expected: CREATE MATERIALIZED VIEW {name} AS SELECT ...")
        return output, None

    def _view(self) -> tuple[Output, Flow]:
        name = self._name()
        comment = _unquoted(self._next()) if self._take("COMMENT") else None
        self._expect("AS")
        output = TemporaryView(name=name, comment=comment, source_code_location=self._place)
        return output, self._query_flow(name, name)

    def _flow(self) -> Flow | ChangeFlow:
        name = self._name()
        if self._take("COMMENT"):
            self._next()
        self._expect("AS")
        if self._take("AUTO"):
            self._expect("CDC")
            self._expect("INTO")
            return self._changes(name)
        self._expect("INSERT")
        self._expect("INTO")
        target = self._name()
        self._expect("BY")
        self._expect("NAME")
        return self._query_flow(name, target)

    def _query_flow(self, name: str, target: str) -> Flow:
        return Flow(
            name=name,
            target=target,
            spark_conf=dict(self._conf),
            source_code_location=self._place,
            func=SqlQuery(self._rest()),
        )

    def _changes(self, name: str) -> ChangeFlow:
        target = self._name()
        self._expect("FROM")
        is_parenthesized = self._take("STREAM") and self._take("(")
        source = self._name()
        if is_parenthesized:
            self._expect(")")
        given: dict[str, Any] = {}
        while not self._is_done:
            if self._take("KEYS"):
                given["keys"] = self._names()
            elif self._take("APPLY"):
                for word in ("AS", "DELETE", "WHEN"):
                    self._expect(word)
                given["apply_as_deletes"] = self._expression()
            elif self._take("SEQUENCE"):
                self._expect("BY")
                given["sequence_by"] = self._expression()
            elif self._take("COLUMNS"):
                if self._take("*"):
                    self._expect("EXCEPT")
                    given["except_column_list"] = self._names()
                else:
                    given["column_list"] = self._names()
            elif self._take("STORED"):
                for word in ("AS", "SCD", "TYPE"):
                    self._expect(word)
                given["stored_as_scd_type"] = self._next().text
            else:
                self._refuse(f"{self._next().text} is not expected in a flow of changes")
        if "keys" not in given or "sequence_by" not in given:
            self._refuse("KEYS (columns) and SEQUENCE BY expression are expected")
        return ChangeFlow(name=name, target=target, source=source, source_code_location=self._place, **given)

    @property
    def _is_done(self) -> bool:
        return self._at >= len(self._tokens)

    def _next(self) -> Token:
        if self._is_done:
            self._refuse("the statement ends too soon")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, word: str) -> bool:
        if self._is_done:
            return False
        token = self._tokens[self._at]
        return token.word == word or (token.kind == "sign" and token.text == word)

    def _take(self, word: str) -> bool:
        is_there = self._peek(word)
        self._at += is_there
        return is_there

    def _expect(self, word: str) -> None:
        if not self._take(word):
            found = "the end" if self._is_done else self._tokens[self._at].text
            self._refuse(f"{word} is expected, and there is {found}")

    def _name(self) -> str:
        parts = []
        while True:
            token = self._next()
            if not token.is_name:
                self._refuse(f"a name is expected, and there is {token.text}")
            parts.append(token.text.strip("`"))
            if not self._take("."):
                return ".".join(parts)

    def _parenthesized(self) -> str:
        """The text between a parenthesis and the one that closes it."""
        self._expect("(")
        begin, depth = self._tokens[self._at - 1], 1
        while depth:
            token = self._next()
            depth += (token.kind == "sign") * ((token.text == "(") - (token.text == ")"))
        return self._sql[begin.end : self._tokens[self._at - 1].start].strip()

    def _names(self) -> list[str]:
        self._expect("(")
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        self._expect(")")
        return names

    def _properties(self) -> dict[str, str]:
        self._expect("(")
        found: dict[str, str] = {}
        while not self._take(")"):
            key = _unquoted(self._next())
            while self._take("."):
                key += "." + self._next().text
            self._take("=")
            found[key] = _unquoted(self._next())
            self._take(",")
        return found

    def _expression(self) -> str:
        """Up to the next clause of a flow of changes."""
        first = self._next()
        depth = int(first.text == "(")
        while not self._is_done and (depth or self._tokens[self._at].word not in _CLAUSES):
            token = self._next()
            depth += (token.kind == "sign") * ((token.text == "(") - (token.text == ")"))
        return self._sql[first.start : self._tokens[self._at - 1].end]

    def _rest(self) -> str:
        if self._is_done:
            self._refuse("the statement ends too soon")
        begin, self._at = self._tokens[self._at].start, len(self._tokens)
        return self._sql[begin : self._tokens[-1].end]

    def _refuse(self, problem: str) -> NoReturn:
        raise PipelineError(f"{self._place.filename}:{self._place.line_number}: {problem}")


def _unquoted(token: Token) -> str:
    if token.kind != "text":
        return token.text.strip("`")
    return re.sub(r"\\(.)", r"\1", token.text[1:-1].replace(token.text[0] * 2, token.text[0]))


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The function of a flow that a query in SQL defines."""

    text: str

    def __call__(self) -> DataFrame:
        from pyspark.sql import SparkSession

        return SparkSession.active().sql(self.text)


def references_of(sql: str) -> list[tuple[str, bool]]:
    """The tables that a query names, and whether it reads each as a stream: what stands behind FROM and JOIN, without
    its own common table expressions and functions."""
    tokens = tokens_of(sql)
    own = {
        token.text.strip("`").lower()
        for before, token, behind, last in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)
        if token.is_name and behind.word == "AS" and last.text == "(" and (before.word == "WITH" or before.text == ",")
    }
    found: list[tuple[str, bool]] = []
    for at, token in enumerate(tokens):
        if token.word not in ("FROM", "JOIN"):
            continue
        rest = tokens[at + 1 :]
        is_stream = bool(rest) and rest[0].word == "STREAM"
        if is_stream:
            rest = rest[2:] if len(rest) > 1 and rest[1].text == "(" else rest[1:]
        parts = []
        while rest and rest[0].is_name:
            parts.append(rest[0].text.strip("`"))
            rest = rest[1:]
            if not rest or rest[0].text != ".":
                break
            rest = rest[1:]
        is_function = bool(rest) and rest[0].text == "(" and not is_stream
        if parts and not is_function and parts[0].lower() not in own:
            found.append((".".join(parts), is_stream))
    return found


AnyFlow = Flow | ChangeFlow
_DIRECTORY: Final = threading.RLock()
"""Held while the process's directory is that of a project."""


class Definitions(GraphElementRegistry):
    """What the files of a project define. Duplicates and flows without a target are refused."""

    def __init__(self, specification: Specification) -> None:
        self.specification = specification
        self.outputs: dict[str, Output] = {}
        """By name: `database.table` of tables."""
        self.flows: dict[str, AnyFlow] = {}

    def register_output(self, output: Output) -> None:
        name = self.table_name(output.name) if isinstance(output, Table) else output.name.lower()
        if isinstance(output, Table) and output.format not in (None, "delta"):
            raise PipelineError(
                f"{place_of(output)}: {output.name} has format {output.format}; Kalda's engine writes tables as "
                f"delta: leave it out, append to a sink of this format (dp.create_sink), or use --engine spark"
            )
        self._add(self.outputs, name, output)

    def register_flow(self, flow: Flow) -> None:
        self._add(self.flows, flow.name.lower(), flow)

    def register_auto_cdc_flow(self, flow: Any) -> None:
        """`flow`: one of PySpark's, whose fields are those of ours."""
        given = {each.name: getattr(flow, each.name) for each in fields(ChangeFlow)}
        taken = ChangeFlow(**{**given, "name": flow.name or flow.target})
        self._add(self.flows, taken.name.lower(), taken)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        for output, flow in statements_of(sql_text, str(file_path)):
            if output is not None:
                self.register_output(output)
            if isinstance(flow, ChangeFlow):
                self.register_auto_cdc_flow(flow)
            elif flow is not None:
                self.register_flow(flow)

    def _add(self, known: dict[str, Any], name: str, one: Any) -> None:
        if name in known:
            raise PipelineError(f"{place_of(one)}: {name} is defined in {place_of(known[name])} already")
        known[name] = one

    def table_name(self, name: str) -> str:
        """`database.table`. Raises `PipelineError` for a name in another catalog."""
        parts = [part.strip("`").lower() for part in name.split(".")]
        if len(parts) == 3 and parts[0] == CATALOG:
            parts = parts[1:]
        if len(parts) > 2 or not all(parts):
            raise PipelineError(f"{name}: a table has the name table or database.table")
        return ".".join(parts if len(parts) == 2 else [self.specification.database, *parts])

    def find(self, reference: str) -> str | None:
        """The output that a name in a query means; None where it is none of the project."""
        view = reference.strip("`").lower()
        if view in self.outputs and not isinstance(self.outputs[view], Sink):
            return view
        try:
            name = self.table_name(reference)
        except PipelineError:
            return None
        return name if name in self.outputs else None

    def target(self, flow: AnyFlow) -> str:
        """The output of a flow. Raises `PipelineError` where there is none."""
        name = flow.target.lower()
        found = name if name in self.outputs else self.find(flow.target)
        if found is None:
            raise PipelineError(f"{place_of(flow)}: flow {flow.name} has the target {flow.target}, which is no "
                                f"table, view or sink of the project")  # fmt: skip
        return found

    def flows_of(self, output: str) -> list[AnyFlow]:
        return [flow for flow in self.flows.values() if self.target(flow) == output]

    def setting(self, flow: AnyFlow, key: str, default: str) -> str:
        """A key `kalda.*` of the flow, of its table or sink, or of the project."""
        output = self.outputs[self.target(flow)]
        properties: Mapping[str, Any] = {}
        if isinstance(output, Table | Sink):
            properties = output.table_properties if isinstance(output, Table) else output.options
        conf = flow.spark_conf if isinstance(flow, Flow) else {}
        for values in (conf, properties, self.specification.configuration):
            if key in values:
                return str(values[key])
        return default

    def check(self) -> None:
        """Raises `PipelineError` where what is defined cannot be a graph."""
        for flow in self.flows.values():
            output = self.outputs[self.target(flow)]
            if isinstance(flow, ChangeFlow) and not isinstance(output, StreamingTable):
                raise PipelineError(f"{place_of(flow)}: the target {flow.target} of changes is no streaming table")
        if not self.outputs:
            raise PipelineError(f"{self.specification.file}: its libraries define no table, view or sink")
        for name, output in self.outputs.items():
            count = len(self.flows_of(name))
            if not count:
                raise PipelineError(f"{place_of(output)}: no flow writes {output.name}")
            if count > 1 and isinstance(output, MaterializedView | TemporaryView):
                raise PipelineError(f"{place_of(output)}: {output.name} has {count} flows, and a view has one")
            if count > 1 and any(isinstance(flow, ChangeFlow) for flow in self.flows_of(name)):
                raise PipelineError(f"{place_of(output)}: {output.name} has {count} flows, and a table of changes one")


def place_of(one: Output | AnyFlow) -> str:
    """`file:line`."""
    location = one.source_code_location
    return location.filename + ("" if location.line_number is None else f":{location.line_number}")


def load_definitions(specification: Specification, spark: Any) -> Definitions:
    """Execute the definition files; each gets `spark` as a global name. Raises `PipelineError` with file and line, or
    what `spark` raises."""
    definitions = Definitions(specification)
    with _in_directory(specification.directory), graph_element_registration_context(definitions):
        for file in files_of(specification):
            if file.suffix == ".sql":
                definitions.register_sql(read_text(file), file)
                continue
            found = importlib.util.spec_from_file_location(file.stem, file)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            vars(module)["spark"] = spark
            try:
                found.loader.exec_module(module)
            except PipelineError:
                raise
            except Exception as error:
                raise DefinitionError(f"{where(error, [file])}: {type(error).__name__}: {first_line(error)}") from error
    definitions.check()
    return definitions


class DefinitionError(PipelineError):
    """A definition file cannot be executed."""


def where(error: BaseException, files: Collection[Path]) -> str:
    """`file:line` of the deepest call in one of the files that led to an error."""
    names = {str(file) for file in files}
    if isinstance(error, SyntaxError) and error.filename in names:
        return f"{error.filename}:{error.lineno}"
    lines = [each for each in traceback.extract_tb(error.__traceback__) if each.filename in names]
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else ", ".join(sorted(names))


@contextmanager
def _in_directory(path: Path) -> Iterator[None]:
    """As Spark's own command does: paths in definition files are relative to the project. Modules of the project that
    are imported meanwhile are forgotten, since the next session has other columns and functions."""
    with _DIRECTORY:
        before, modules = os.getcwd(), set(sys.modules)
        os.chdir(path)
        try:
            yield
        finally:
            os.chdir(before)
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None)
                if file is not None and Path(file).is_relative_to(path):
                    del sys.modules[name]
