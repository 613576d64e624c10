"""Change data into tables: flows of `create_auto_cdc_flow`, applied to Delta by MERGE.

A row of the source is a change of the row with its keys: its newest values, or, where `apply_as_deletes` holds, its
end. Changes may come in any order; `sequence_by` says which one is later.

- SCD type 1: the table has the newest values of each key, and in `__sequence` when these became so.
- SCD type 2: the table has all values of each key, from `__START_AT` up to `__END_AT` (null: until now).

Not obvious:

- A change that comes after a later delete of its key must not bring the row back. So deletes are in a table of their
  own, `TABLE__deleted`. It is written before the table, and each of the two once for each batch, so a crash between
  them loses nothing.
- A change without a key or a sequence can be applied to no row; it goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.pipelines.source_code_location import get_caller_source_code_location
from pyspark.sql.types import StructType

from kalda.pipeline.projects.definitions import ChangeFlow, Definitions, place_of
from kalda.pipeline.projects.specification import DELETED
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.contracts import Expectation, quoted
from kalda.pipeline.tables.tables import Batch, Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEQUENCE: Final = "__sequence"
START: Final = "__START_AT"
END: Final = "__END_AT"


def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: list[str] | list[Column],
    sequence_by: str | Column,
    apply_as_deletes: str | Column | None = None,
    column_list: list[str] | list[Column] | None = None,
    except_column_list: list[str] | list[Column] | None = None,
    stored_as_scd_type: int | str | None = None,
    name: str | None = None,
) -> None:
    """As `pyspark.pipelines.create_auto_cdc_flow`, and with SCD type 2, which only Kalda's engine has. Raises
    `PipelineError`."""
    registry = get_active_graph_element_registry()
    if not isinstance(registry, Definitions):
        from pyspark.pipelines import create_auto_cdc_flow as of_spark

        if str(stored_as_scd_type or 1) != "1":
            raise PipelineError(f"{target}: stored_as_scd_type is {stored_as_scd_type}: only Kalda's engine has it")
        of_spark(
            target, source, keys, sequence_by, apply_as_deletes, column_list, except_column_list, name=name
        )  # fmt: skip
        return
    flow = ChangeFlow(
        name=name or target, target=target, source=source, keys=keys, sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes, column_list=column_list, except_column_list=except_column_list,
        stored_as_scd_type=stored_as_scd_type, source_code_location=get_caller_source_code_location(stacklevel=1),
    )  # fmt: skip
    registry.register_auto_cdc_flow(flow)


def _text_of(given: Any) -> str | None:
    """The name or SQL text of a column that PySpark has made for Spark Connect; None for another column."""
    if isinstance(given, str):
        return given
    expression = getattr(given, "_expr", None)
    for name in ("_unparsed_identifier", "_expr"):
        if isinstance(text := getattr(expression, name, None), str):
            return text
    return None


def _column(given: Any) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column as ClassicColumn

    if isinstance(given, ClassicColumn):
        return given
    text = _text_of(given)
    if text is None:
        raise PipelineError(f"{given}: a name, an SQL text or a column of functions of pyspark.sql is expected")
    return f.expr(text)


def names_of(given: Sequence[Any]) -> list[str]:
    """The names of columns that are given as text or as columns."""
    return [(_text_of(each) or str(each._jc.toString())).strip("`") for each in given]


@dataclass(frozen=True, slots=True)
class Changes:
    """Applies the changes of a flow to its table."""

    flow: ChangeFlow
    tables: Tables
    name: str

    @property
    def _keys(self) -> list[str]:
        return names_of(self.flow.keys)

    @property
    def _is_history(self) -> bool:
        return str(self.flow.stored_as_scd_type or 1) == "2"

    @property
    def rule(self) -> Expectation:
        """What must hold of each change."""
        parts = (f"{quoted(name)} IS NOT NULL" for name in [*self._keys, SEQUENCE])
        return Expectation("key and sequence", " AND ".join(parts), "expect_or_drop")

    def shaped(self, frame: DataFrame) -> DataFrame:
        """The table's columns, the change's sequence, and whether it is a delete. Raises `PipelineError` where the
        source has no such columns."""
        from pyspark.sql import functions as f

        flow = self.flow
        names = frame.columns if flow.column_list is None else names_of(flow.column_list)
        left_out = {name.lower() for name in names_of(flow.except_column_list or ())}
        names = [name for name in names if name.lower() not in left_out]
        missing = {key.lower() for key in self._keys} - {name.lower() for name in names}
        if missing:
            raise PipelineError(f"{place_of(flow)}: {self.name} lacks the key {', '.join(sorted(missing))}")
        delete = f.lit(False) if flow.apply_as_deletes is None else _column(flow.apply_as_deletes)
        return frame.select(
            *(f.col(quoted(name)) for name in names),
            _column(flow.sequence_by).alias(SEQUENCE),
            f.coalesce(delete.cast("boolean"), f.lit(False)).alias(DELETED),
        )

    def columns(self, shaped: StructType) -> StructType:
        """Of the table."""
        kept = [field for field in shaped.fields if field.name not in (SEQUENCE, DELETED)]
        sequence = shaped[SEQUENCE].dataType
        found = StructType([*kept])
        if self._is_history:
            return found.add(START, sequence).add(END, sequence)
        return found.add(SEQUENCE, sequence)

    def apply(self, shaped: DataFrame, batch: Batch) -> None:
        """Apply the changes of a batch, once."""
        if self._is_history:
            self._apply_history(shaped, batch)
        else:
            self._apply_newest(shaped, batch)

    @property
    def _deleted(self) -> str:
        return self.name + DELETED

    def _same(self, *more: str) -> str:
        return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in (*self._keys, *more))

    def _keep_deletes(self, shaped: DataFrame, batch: Batch) -> None:
        from pyspark.sql import functions as f

        if self.flow.apply_as_deletes is not None and shaped.agg(f.count_if(DELETED))._jdf.head().getLong(0):
            deletes = shaped.where(DELETED).select(*map(quoted, [*self._keys, SEQUENCE]))
            self.tables.append(deletes, self._deleted, batch)

    def _dead(self, shaped: DataFrame) -> DataFrame | None:
        """The deletes of the keys of a batch. Few of all: what is shuffled does not grow with the table."""
        if not self.tables.exists(self._deleted):
            return None
        touched = shaped.select(*map(quoted, self._keys)).distinct()
        return self.tables.read(self._deleted, shaped.sparkSession).join(touched, self._keys, "left_semi")

    def _apply_newest(self, shaped: DataFrame, batch: Batch) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        order = Window.partitionBy(*map(quoted, self._keys)).orderBy(f.desc(SEQUENCE), f.desc(DELETED))
        newest = shaped.withColumn("_kalda_rank", f.row_number().over(order)).where("_kalda_rank = 1")
        newest = newest.drop("_kalda_rank")
        if (dead := self._dead(shaped)) is not None:
            same = [f"s.{quoted(key)} = d.{quoted(key)}" for key in self._keys]
            is_late = f.expr(" AND ".join([*same, f"d.{SEQUENCE} >= s.{SEQUENCE}", f"NOT s.{DELETED}"]))
            newest = newest.alias("s").join(dead.alias("d"), is_late, "left_anti")
        names = [name for name in newest.columns if name != DELETED]
        values = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
        is_newer = f"s.{SEQUENCE} > t.{SEQUENCE}"
        rest = (
            f"ON {self._same()} "
            f"WHEN MATCHED AND {is_newer} AND s.{DELETED} THEN DELETE "
            f"WHEN MATCHED AND {is_newer} THEN UPDATE SET {values} "
            f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN {_insert(names)}"
        )
        kept = newest.localCheckpoint()  # MERGE reads it twice, and would itself keep it on the disk
        try:
            self._keep_deletes(kept, batch)
            self.tables.merge(kept, self.name, rest, batch, is_kept=True)
        finally:
            kept._jdf.logicalPlan().rdd().unpersist(False)

    def _apply_history(self, shaped: DataFrame, batch: Batch) -> None:
        """Compute the intervals of all keys of the batch anew, from their values so far, those of the batch, and all
        deletes."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        self._keep_deletes(shaped, batch)
        session = shaped.sparkSession
        keys = [quoted(key) for key in self._keys]
        plain = [key.strip("`") for key in keys]
        touched = shaped.select(*keys).distinct()
        names = [name for name in shaped.columns if name not in (SEQUENCE, DELETED)]
        values = f.struct(*map(quoted, names)).alias("_kalda_row")
        before = self.tables.read(self.name, session).join(touched, plain, "left_semi")
        known = before.select(*keys, f.col(START).alias(SEQUENCE), values, f.lit(0).alias("_kalda_rank"))
        new = shaped.where(f"NOT {DELETED}").select(*keys, SEQUENCE, values, f.lit(1).alias("_kalda_rank"))
        moments = known.unionByName(new)
        if (dead := self._dead(shaped)) is not None:
            nothing = f.lit(None).cast(known.schema["_kalda_row"].dataType).alias("_kalda_row")
            moments = moments.unionByName(dead.select(*keys, SEQUENCE, nothing, f.lit(2).alias("_kalda_rank")))
        # Of several at one moment the one that the table has; a delete ends only what began before.
        first = f.min_by("_kalda_row", "_kalda_rank").alias("_kalda_row")
        moments = moments.groupBy(*keys, SEQUENCE).agg(first)
        order = Window.partitionBy(*keys).orderBy(SEQUENCE)
        intervals = moments.withColumn(END, f.lead(SEQUENCE).over(order)).where("_kalda_row IS NOT NULL")
        rows = intervals.select("_kalda_row.*", f.col(SEQUENCE).alias(START), END)
        rest = (
            f"ON {self._same(START)} "
            f"WHEN MATCHED AND NOT (t.{END} <=> s.{END}) THEN UPDATE SET t.{END} = s.{END} "
            f"WHEN NOT MATCHED THEN {_insert([*names, START, END])}"
        )
        self.tables.merge(rows, self.name, rest, batch)


def _insert(names: Sequence[str]) -> str:
    columns = ", ".join(map(quoted, names))
    return f"INSERT ({columns}) VALUES ({', '.join(f's.{quoted(name)}' for name in names)})"
