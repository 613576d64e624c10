"""Definition files in SQL: their statements as outputs and flows of `pyspark.pipelines`.

    CREATE STREAMING TABLE name [(columns)] [clauses] [AS query]
    CREATE MATERIALIZED VIEW name [(columns)] [clauses] AS query
    CREATE TEMPORARY VIEW name [COMMENT 'text'] AS query
    CREATE FLOW name AS INSERT INTO table BY NAME query
    CREATE FLOW name AS AUTO CDC INTO table FROM STREAM source KEYS (columns) [APPLY AS DELETE WHEN condition]
        SEQUENCE BY expression [COLUMNS (columns) | COLUMNS * EXCEPT (columns)] [STORED AS SCD TYPE 1 | 2]
    SET key = value

Clauses are USING, PARTITIONED BY, CLUSTER BY, COMMENT and TBLPROPERTIES. The heads of statements are parsed here, so
that a project is read without Java; queries and expressions stay text, which Spark parses. `SET` holds for the flows
behind it in its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, Output, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation

from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
