"""Rows that a source has since the last time, by a column that grows: a number, a time. The source is any that is read
as a table, such as a database by JDBC, which gets the condition.

    @dp.table(table_properties={"kalda.incremental.column": "changed_at"})
    def orders():
        return spark.read.format("jdbc").options(**connection("shop")).option("dbtable", "orders").load()

Each increment has the rows above one value, up to another one. Both are written beside the checkpoints before the rows
are, so an increment that is run again has the same bounds, and its table has it once.

Not obvious:

- A row that becomes visible after one with a greater value is passed over: transactions do not end in the order in
  which they began. `kalda.incremental.delay` is how long a time is kept out, for a column of times.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.files import Place, read_state, replace_text
from kalda.pipeline.projects.graph import INCREMENT
from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.contracts import quoted
from kalda.pipeline.tables.tables import Batch

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
