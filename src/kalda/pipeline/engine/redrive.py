"""Rows that a table or sink did not take, given to their flow again after a fix, each once.

A row in quarantine is what the flow's function has returned, as JSON. It is read with the columns that the flow has by
now, changed where the user says so, and judged by the rules of now. Rows that hold go where the flow writes; the others
stay in quarantine.

Exactly once: what is to be done is decided once, and kept.

1. For each flow, its rows in quarantine with the decision are put into a table in the directory `redrive`.
2. The file `redrive.json` names these tables. From then on the work is done, whatever crashes: before that, nothing has
   happened.
3. The rows that hold are written to the output, with the work's identity (`txnAppId`; of topics, the transaction's
   name), so that a repetition writes nothing.
4. The quarantine is replaced by the rows that stay, with the same identity. The file and the tables are removed.

A run of the project, and the next command, first finish a work that was interrupted. No flow writes meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.types import StringType, StructType

from kalda.pipeline.files import Place, read_state, remove_tree, replace_text
from kalda.pipeline.session import PipelineError, first_line
from kalda.pipeline.tables.contracts import JSON_TIMES, Expectation, fit, nullable, quoted
from kalda.pipeline.tables.tables import Batch, Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ROW: Final = "_kalda_quarantined"
_GOOD: Final = "_kalda_holds"
_CORRUPT: Final = "_kalda_corrupt"
_ABSENT: Final = "The project no longer has the flow {}, of which rows are being given again: define it again"
Write = Callable[["DataFrame", Batch], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are given again."""

    table: str
    where: str = "true"
    """SQL over the columns of the quarantine (flow, batch, moment, reasons, row) and `value`, the row as an object."""
    changes: Mapping[str, str] | None = None
    """By column: SQL that makes its new value."""


@dataclass(frozen=True, slots=True)
class RedriveFlow:
    """A flow whose rows are given again."""

    name: str
    columns: StructType
    """Of its function."""
    rules: Sequence[Expectation]
    table: StructType | None
    """The columns of its table, where it keeps its own."""
    contract: str


class Redrive:
    """The works of one project."""

    def __init__(self, spark: SparkSession, tables: Tables, state: Place) -> None:
        self._spark = spark
        self._tables = tables
        self._file = state / "redrive.json"
        self._place = state / "redrive"

    def begin(self, quarantine: str, wanted: Wanted, flows: Sequence[RedriveFlow]) -> dict[str, tuple[int, int]]:
        """Decide on the rows. Returns of each flow how many rows hold, and how many stay. Raises `PipelineError`."""
        remove_tree(self._place)  # of a work that was interrupted before it began
        identity = uuid4().hex
        counts: dict[str, tuple[int, int]] = {}
        names: dict[str, str] = {}
        for number, flow in enumerate(flows):
            path = self._place / identity / str(number)
            try:
                rows = self._decided(self._tables.read(quarantine), wanted, flow)
                rows.write.format("delta").save(str(path))
            except Exception as error:
                raise PipelineError(f"the rows of flow {flow.name} in {quarantine}: {first_line(error)}") from error
            counts[flow.name] = self._counts(path)
            if counts[flow.name][0]:
                names[flow.name] = str(number)
        if names:
            replace_text(self._file, json.dumps({"id": identity, "quarantine": quarantine, "flows": names}))
        return counts

    def _decided(self, quarantined: DataFrame, wanted: Wanted, flow: RedriveFlow) -> DataFrame:
        """The flow's rows: their columns, the row of the quarantine, and whether it goes to the output."""
        from pyspark.sql import functions as f

        schema = nullable(flow.columns)
        options = {**JSON_TIMES, "columnNameOfCorruptRecord": _CORRUPT}
        own = [f.col(name) for name in quarantined.columns]
        rows = quarantined.where(f.col("flow") == flow.name).select(
            f.struct(*own).alias(_ROW),
            *own,
            f.from_json("row", StructType(schema.fields).add(_CORRUPT, StringType()), options).alias("value"),
        )
        known = f.array(*(f.lit(name.lower()) for name in schema.names))
        keys = f.transform(f.json_object_keys("row"), f.lower)
        is_read = f.col(f"value.{_CORRUPT}").isNull() & (f.size(f.array_except(keys, known)) == 0)
        is_wanted = f.coalesce(f.expr(wanted.where).cast("boolean"), f.lit(False))
        rows = rows.select(_ROW, (is_wanted & f.coalesce(is_read, f.lit(False))).alias(_GOOD), "value.*").drop(_CORRUPT)
        for name, change in (wanted.changes or {}).items():
            if name.lower() not in (each.lower() for each in schema.names):
                raise PipelineError(f"--set {name}: there are {', '.join(schema.names)}")
            kind = next(each.dataType for each in schema.fields if each.name.lower() == name.lower())
            rows = rows.withColumn(name, f.expr(change).cast(kind))
        fitting = (
            None if flow.table is None else fit(rows.select(*map(quoted, schema.names)), flow.table, flow.contract)
        )
        breaks: list[Column] = [each.fails() for each in flow.rules if each.action != "expect"]
        if fitting is not None and fitting.drops:
            breaks.append(fitting.misfit)
        holds = f.col(_GOOD) & ~reduce(or_, breaks, f.lit(False))
        columns = [f.col(quoted(name)) for name in schema.names] if fitting is None else list(fitting.columns)
        return rows.select(_ROW, holds.alias(_GOOD), *columns)

    def _counts(self, path: Place) -> tuple[int, int]:
        from pyspark.sql import functions as f

        sums = self._read(path).agg(f.count_if(f.col(_GOOD)), f.count_if(~f.col(_GOOD)))
        row: Any = sums._jdf.head()
        return int(row.getLong(0)), int(row.getLong(1))

    def _read(self, path: Place) -> DataFrame:
        return self._spark.read.format("delta").load(str(path))

    def finish(self, write_of: Callable[[str], Write | None]) -> None:
        """Do what was decided, and what is not done yet. `write_of`: what writes the rows of a flow; None where there
        is no such flow. Raises `PipelineError`."""
        from pyspark.sql import functions as f

        begun = read_state(self._file, {"id": str, "quarantine": str, "flows": dict})
        if begun is None:
            return
        identity = f"kalda-redrive-{begun['id']}"
        quarantine: str = begun["quarantine"]
        stays = self._tables.read(quarantine).where(~f.col("flow").isin(list(begun["flows"])))
        for flow, folder in sorted(begun["flows"].items()):
            write = write_of(flow)
            if write is None:
                raise PipelineError(_ABSENT.format(flow))
            rows = self._read(self._place / begun["id"] / folder)
            # Of its own for each flow: another one may write to the same table.
            write(rows.where(_GOOD).drop(_ROW, _GOOD), Batch("redrive", f"{identity}-{folder}", 0))
            stays = stays.unionByName(rows.where(~f.col(_GOOD)).select(f"{_ROW}.*"))
        self._tables.replace(stays, quarantine, Batch("redrive", identity, 0))
        self._file.unlink()
        remove_tree(self._place)
