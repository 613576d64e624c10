"""Tables of databases that JDBC reaches: a flow's batches into one, each in one transaction, and rows of one since the
last time.

Spark's tasks write the rows of a batch into a table beside it, which no one reads. Then one transaction of the driver
moves them, and writes the batch's number into the table `kalda_batches`. So the rows are there once and together,
whatever is killed: a batch that is run again finds its number, or begins anew.

`Increments` reads a source by a column that grows: a number, a time. The source is any that is read as a table, such as
a database by JDBC, which gets the condition.

    @dp.table(table_properties={"kalda.incremental.column": "changed_at"})
    def orders():
        return spark.read.format("jdbc").options(**connection("shop")).option("dbtable", "orders").load()

Each increment has the rows above one value, up to another one. Both are written beside the checkpoints before the rows
are, so an increment that is run again has the same bounds, and its table has it once.

Not obvious:

- A task that has committed its rows may be run again. So rows have numbers beside the table, and of several with the
  same number one is moved.
- Rows are moved by `INSERT`, or put in the place of those with the same keys: in PostgreSQL by `ON CONFLICT`, for which
  the keys have a unique index; in MySQL and MariaDB by `ON DUPLICATE KEY`, likewise; elsewhere by `MERGE`.
- A row that becomes visible after one with a greater value is passed over by increments: transactions do not end in the
  order in which they began. `kalda.incremental.delay` is how long a time is kept out, for a column of times.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.files import Place, read_state, replace_text
from kalda.pipeline.projects.graph import INCREMENT
from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.tables.contracts import quoted
from kalda.pipeline.tables.tables import Batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCHES: Final = "kalda_batches"
"""The table of the last batch of each flow, beside the tables that they write."""
_ROW: Final = "_kalda_row"
_SAME: Final = "_kalda_same"
_DRIVERS: Final = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
    "db2": "com.ibm.db2.jcc.DB2Driver",
    "h2": "org.h2.Driver",
}
_OF_SPARK: Final = ("url", "dbtable", "driver", "batchsize", "numPartitions", "isolationLevel", "queryTimeout")
"""Options that are not the driver's."""
_AGAIN: Final = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE of what may succeed later: connections, deadlocks, resources, shutdowns."""


def driver_of(url: str) -> str | None:
    """The class of the driver, which JDBC itself does not find among the jars of a session."""
    return _DRIVERS.get(_kind_of(url))


def _kind_of(url: str) -> str:
    return url.removeprefix("jdbc:").partition(":")[0]


class JdbcTable:
    """The table of a sink with format jdbc. Raises `PipelineError` where its options lack something."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], place: str) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._spark = spark
        self._place = place
        for name in ("url", "dbtable"):
            if not given.get(name):
                raise PipelineError(f"{place}: a sink of format jdbc needs the option {name}, or kalda.connection")
        self._url, self._table = given["url"], given["dbtable"]
        self._kind = _kind_of(self._url)
        driver = given.get("driver") or driver_of(self._url)
        if driver is None:
            raise PipelineError(f"{place}: name the class of the database's driver in the option driver")
        self._driver = driver
        own = {name.lower() for name in _OF_SPARK}
        self._properties = {name: value for name, value in options.items() if name.lower() not in own}
        self._spark_options = {name: options[name] for name in options if name.lower() not in ("dbtable", "driver")}

    def write(self, frame: DataFrame, batch: Batch, keys: Sequence[str] = ()) -> None:
        """Add the rows, once for each batch; with `keys`, in the place of those with the same. Raises `PipelineError`;
        `Unavailable` where the same may succeed later."""
        schema = self._table.rpartition(".")[0]
        prefix = f"{schema}." if schema else ""
        batches = prefix + BATCHES
        aside = prefix + "kalda_" + hashlib.sha256(f"{batch.app} {self._table}".encode()).hexdigest()[:16]
        names = list(frame.columns)
        missing = [key for key in keys if key not in names]
        if missing:
            raise PipelineError(f"{self._place}: the rows have no key {missing[0]}; they have {', '.join(names)}")
        with self._connection() as connection:
            if connection.make(self._table, lambda: self._append(frame.limit(0), self._table)) and keys:
                connection.add_key(self._table, keys)
            if connection.last_batch(batches, batch.app) >= batch.number:
                return
            connection.make_aside(aside, self._table, names)
        from pyspark.sql import functions as f

        self._append(frame.withColumn(_ROW, f.monotonically_increasing_id()), aside)
        with self._connection() as connection:
            connection.move(aside, self._table, names, keys, self._kind)
            connection.set_batch(batches, batch)
            connection.commit()
            connection.execute(f"DROP TABLE {aside}")
            connection.commit()

    def _append(self, frame: DataFrame, table: str) -> None:
        writer = frame.write.format("jdbc").options(**self._spark_options)
        writer.option("dbtable", table).option("driver", self._driver).mode("append").save()

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        from py4j.protocol import Py4JJavaError

        java = self._spark._jvm
        assert java is not None
        try:
            java.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(self._driver)
            properties = java.java.util.Properties()
            for name, value in self._properties.items():
                properties.setProperty(name, value)
            found = java.java.sql.DriverManager.getConnection(self._url, properties)
            try:
                found.setAutoCommit(False)
                dialect = java.org.apache.spark.sql.jdbc.JdbcDialects.get(self._url)
                yield _Connection(found, dialect.quoteIdentifier)
            finally:
                found.close()
        except Py4JJavaError as error:
            raise self._refusal(error.java_exception) from None

    def _refusal(self, error: Any) -> PipelineError | Unavailable:
        name, said = error.getClass().getName(), str(error.getMessage() or "")
        words = f"{self._place}: table {self._table}: {' '.join(said.split()) or name}"
        if name == "java.lang.ClassNotFoundException":
            return PipelineError(
                f"{self._place}: the driver {self._driver} is not in this session: add its coordinate to "
                f"spark.jars.packages, such as org.postgresql:postgresql:42.7.7"
            )
        state = str(error.getSQLState() or "") if hasattr(error, "getSQLState") and "SQL" in name else ""
        return Unavailable(words) if state[:2] in _AGAIN else PipelineError(words)


class _Connection:
    """A connection, and the statements of it."""

    def __init__(self, java: Any, quote: Callable[[str], str]) -> None:
        self._java = java
        self._quote = quote

    def execute(self, sql: str) -> None:
        statement = self._java.createStatement()
        try:
            statement.execute(sql)
        finally:
            statement.close()

    def commit(self) -> None:
        self._java.commit()

    def has_table(self, table: str) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            self.execute(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except Py4JJavaError as error:
            if str(error.java_exception.getSQLState() or "")[:2] != "42":
                raise
            self._java.rollback()
            return False
        return True

    def make(self, table: str, make: Callable[[], None]) -> bool:
        """Whether `make` made the table: it may have been there, or another flow was faster."""
        if self.has_table(table):
            return False
        try:
            make()
            self.commit()
        except Exception:  # py4j's or PySpark's, with a code of the database's own
            self._java.rollback()
            if not self.has_table(table):
                raise
            return False
        return True

    def add_key(self, table: str, keys: Sequence[str]) -> None:
        """To a table that was made just now."""
        self.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({self._list(keys)})")
        self.commit()

    def last_batch(self, batches: str, app: str) -> int:
        """-1 where there is none; the flow then has a row."""
        columns = "app VARCHAR(100) NOT NULL PRIMARY KEY, batch BIGINT NOT NULL"
        self.make(batches, lambda: self.execute(f"CREATE TABLE {batches} ({columns})"))
        found = self._batch(f"SELECT batch FROM {batches} WHERE app = {_text(app)}")
        if found is None:
            self.execute(f"INSERT INTO {batches} (app, batch) VALUES ({_text(app)}, -1)")
            self.commit()
        return -1 if found is None else found

    def _batch(self, sql: str) -> int | None:
        statement = self._java.createStatement()
        try:
            rows = statement.executeQuery(sql)
            return int(rows.getLong(1)) if rows.next() else None
        finally:
            statement.close()

    def set_batch(self, batches: str, batch: Batch) -> None:
        """In the transaction of its rows."""
        before = f"app = {_text(batch.app)} AND batch < {batch.number}"
        statement = self._java.createStatement()
        try:
            if statement.executeUpdate(f"UPDATE {batches} SET batch = {batch.number} WHERE {before}") != 1:
                raise PipelineError(f"batch {batch.number} of {batch.flow} was written by another run meanwhile")
        finally:
            statement.close()

    def make_aside(self, aside: str, table: str, names: Sequence[str]) -> None:
        if self.has_table(aside):  # of a run that was killed
            self.execute(f"DROP TABLE {aside}")
        columns = self._list(names)
        number = f"CAST(0 AS {'SIGNED' if self._quote('a') == '`a`' else 'BIGINT'}) AS {self._quote(_ROW)}"
        self.execute(f"CREATE TABLE {aside} AS SELECT {columns}, {number} FROM {table} WHERE 1 = 0")
        self.commit()

    def move(self, aside: str, table: str, names: Sequence[str], keys: Sequence[str], kind: str) -> None:
        columns, row = self._list(names), self._quote(_ROW)
        same = f"ROW_NUMBER() OVER (PARTITION BY {row} ORDER BY {row}) AS {self._quote(_SAME)}"
        rows = f"SELECT {columns} FROM (SELECT {columns}, {same} FROM {aside}) s WHERE {self._quote(_SAME)} = 1"
        others = [name for name in names if name not in keys]
        if not keys:
            self.execute(f"INSERT INTO {table} ({columns}) {rows}")
        elif kind == "postgresql":
            news = ", ".join(f"{self._quote(name)} = EXCLUDED.{self._quote(name)}" for name in others)
            action = f"UPDATE SET {news}" if news else "NOTHING"
            self.execute(
                f"INSERT INTO {table} ({columns}) {rows} ON CONFLICT ({self._list(keys)}) DO {action}"
            )  # fmt: skip
        elif kind in ("mysql", "mariadb"):
            news = ", ".join(f"{self._quote(name)} = VALUES({self._quote(name)})" for name in (others or keys))
            self.execute(f"INSERT INTO {table} ({columns}) {rows} ON DUPLICATE KEY UPDATE {news}")
        else:
            pairs = " AND ".join(f"t.{self._quote(key)} = n.{self._quote(key)}" for key in keys)
            news = ", ".join(f"{self._quote(name)} = n.{self._quote(name)}" for name in others)
            update = f"WHEN MATCHED THEN UPDATE SET {news} " if news else ""
            values = ", ".join(f"n.{self._quote(name)}" for name in names)
            self.execute(
                f"MERGE INTO {table} t USING ({rows}) n ON ({pairs}) {update}"
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
            )

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._quote, names))


def _text(value: str) -> str:
    """An identity of a query as SQL."""
    if re.fullmatch(r"[\w-]+", value) is None:
        raise PipelineError(f"{value!r} is no identity of a query")
    return f"'{value}'"


# -- increments

DELAY: Final = "kalda.incremental.delay"
_TIMES: Final = ("timestamp", "timestamp_ntz")
_TYPES: Final = ("tinyint", "smallint", "int", "bigint", "date", "string", *_TIMES)
_FILE: Final = "increment.json"
_FIELDS: Final = {"app": str, "number": int, "is_done": bool}


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows between two values of the column, as text; None: from the first one on."""

    app: str
    number: int
    above: str | None
    upto: str
    is_done: bool = False

    def batch(self, flow: str, column: str) -> Batch:
        offsets = {"column": column, "above": self.above, "upto": self.upto}
        return Batch(flow, self.app, self.number, (offsets,))


class Increments:
    """Those of one flow, whose state is in its directory of checkpoints."""

    def __init__(self, checkpoint: Place, column: str, delay_s: float, place: str) -> None:
        self._file = checkpoint / _FILE
        self._column = column
        self._delay_s = delay_s
        self._place = place

    def plan(self, frame: DataFrame) -> Increment | None:
        """The one that was not finished, or the next one; None where there are no rows more. Raises `PipelineError`."""
        last = self._read()
        if last is not None and not last.is_done:
            return last
        kind = self._type(frame)
        upto = self._greatest(frame, kind, None if last is None else last.upto)
        if upto is None:
            return None
        if last is None:
            found = Increment(f"kalda-{uuid.uuid4()}", 0, None, upto)
        else:
            found = Increment(last.app, last.number + 1, last.upto, upto)
        self._write(found)
        return found

    def rows(self, frame: DataFrame, increment: Increment) -> DataFrame:
        kind = self._type(frame)
        return self._above(frame, kind, increment.above).where(self._value <= _literal(increment.upto, kind))

    def finish(self, increment: Increment) -> None:
        self._write(Increment(increment.app, increment.number, increment.above, increment.upto, is_done=True))

    @property
    def _value(self) -> Column:
        from pyspark.sql import functions as f

        return f.col(quoted(self._column))

    def _type(self, frame: DataFrame) -> str:
        kinds = dict(frame.dtypes)
        kind = kinds.get(self._column)
        if kind is None:
            raise PipelineError(f"{self._place}: {INCREMENT} is {self._column}; there are {', '.join(kinds)}")
        if kind not in _TYPES and not kind.startswith("decimal("):
            raise PipelineError(
                f"{self._place}: {INCREMENT} is {self._column}, a {kind}: {', '.join(_TYPES)} are possible"
            )
        if self._delay_s and kind not in _TIMES:
            raise PipelineError(f"{self._place}: {DELAY} is for a column of times, and {self._column} is a {kind}")
        return kind

    def _above(self, frame: DataFrame, kind: str, above: str | None) -> DataFrame:
        return frame.where(self._value.isNotNull() if above is None else self._value > _literal(above, kind))

    def _greatest(self, frame: DataFrame, kind: str, above: str | None) -> str | None:
        from pyspark.sql import functions as f

        rows = self._above(frame, kind, above)
        if self._delay_s:
            limit = f.current_timestamp() - f.make_interval(secs=f.lit(self._delay_s))
            rows = rows.where(self._value <= limit.cast(kind))
        row = rows.agg(f.max(self._value).cast("string"))._jdf.head()  # not by a socket, which opens late
        return None if row.isNullAt(0) else str(row.getString(0))

    def _read(self) -> Increment | None:
        found: dict[str, Any] | None = read_state(self._file, _FIELDS)
        if found is None:
            return None
        return Increment(found["app"], found["number"], found.get("above"), str(found.get("upto")), found["is_done"])

    def _write(self, increment: Increment) -> None:
        fields = ("app", "number", "above", "upto", "is_done")
        replace_text(self._file, json.dumps({name: getattr(increment, name) for name in fields}))


def _literal(text: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    return f.lit(text).cast(kind)
