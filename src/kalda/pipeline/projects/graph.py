"""The graph of a project: which output reads which, in an order, without cycles.

`Evaluation` calls the flows' functions in Spark. A function that reads a table or view which does not exist yet fails
with Spark's own error; the output of that name is then evaluated first, and the function is called again. So a
function can ask everything of its inputs (`df.schema`, `df.drop`, `withWatermark`), wherever they are defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

from pyspark.pipelines.output import MaterializedView, Sink, StreamingTable, Table, TemporaryView

from kalda.pipeline.projects.definitions import AnyFlow, ChangeFlow, Definitions, place_of, where
from kalda.pipeline.projects.specification import files_of
from kalda.pipeline.session import PipelineError, Unavailable, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES: Final = re.compile(r"SubqueryAlias spark_catalog\.(\S+)")
"""In the text of an analysed plan: the tables that it reads."""
INCREMENT: Final = "kalda.incremental.column"
"""A property of a table that is made of the rows that a source has since the last time, by this column."""
_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_OF_JAVA: Final = "Py4JJavaError"
"""What PySpark has no class for: no fault of a definition, but for example a store that does not answer."""


def ordered(inputs: Mapping[str, Collection[str]]) -> list[str]:
    """Names so that each stands behind its inputs. Raises `PipelineError` with the names of a cycle."""
    try:
        return list(TopologicalSorter(inputs).static_order())
    except CycleError as error:
        raise PipelineError(f"these read each other in a circle: {' -> '.join(reversed(error.args[1]))}") from None


def downstream(inputs: Mapping[str, Collection[str]], of: Collection[str]) -> set[str]:
    """Outputs that read one of these, or what such a one writes."""
    found: set[str] = set()
    for name in ordered(inputs):
        if any(each in of or each in found for each in inputs.get(name, ())):
            found.add(name)
    return found


@dataclass(frozen=True, slots=True)
class FlowFrame:
    """A flow whose function was called: its rows, and the project's tables that these come from."""

    flow: AnyFlow
    target: str
    frame: DataFrame
    inputs: frozenset[str]


class Evaluation:
    """Calls the functions of all flows. `make_table` is called with each table's name and its flows' frames as soon as
    they are known; behind it the table exists in the session's catalog."""

    def __init__(
        self, spark: SparkSession, definitions: Definitions, make_table: Callable[[str, list[FlowFrame]], None]
    ) -> None:
        self._spark = spark
        self._definitions = definitions
        self._make_table = make_table
        self._files = files_of(definitions.specification)
        self._open: list[str] = []
        """Outputs that wait for an input."""
        self._done: set[str] = set()
        self.frames: dict[str, FlowFrame] = {}

    def run(self) -> dict[str, FlowFrame]:
        """The frames of all flows by their name. Raises `PipelineError`."""
        for name, output in self._definitions.outputs.items():
            if isinstance(output, TemporaryView):  # an earlier one has the columns and tables of then
                self._spark.catalog.dropTempView(name)
        for name in self._definitions.outputs:
            self._evaluate(name)
        return self.frames

    @property
    def inputs(self) -> dict[str, set[str]]:
        """The tables that each table and sink is made of."""
        found: dict[str, set[str]] = {
            name: set() for name, each in self._definitions.outputs.items() if not isinstance(each, TemporaryView)
        }
        for each in self.frames.values():
            if each.target in found:
                found[each.target] |= each.inputs
        return found

    def _evaluate(self, name: str) -> None:
        if name in self._done:
            return
        if name in self._open:
            raise PipelineError(f"these read each other in a circle: {' -> '.join([*self._open, name])}")
        self._open.append(name)
        found = []
        for flow in self._definitions.flows_of(name):
            found.append(self.call(flow))
            self.frames[flow.name.lower()] = found[-1]
        output = self._definitions.outputs[name]
        if isinstance(output, TemporaryView):
            found[0].frame.createOrReplaceTempView(name)
        elif isinstance(output, Table):
            self._make_table(name, found)
        self._open.pop()
        self._done.add(name)

    def call_again(self, flow: AnyFlow) -> FlowFrame:
        """The flow's frame with the columns and schemas of now, also those of the views that it reads."""
        for name, output in self._definitions.outputs.items():
            if isinstance(output, TemporaryView):
                self._spark.catalog.dropTempView(name)
                self._done.discard(name)
        found = self.call(flow)
        self.frames[flow.name.lower()] = found
        return found

    def call(self, flow: AnyFlow) -> FlowFrame:
        """The flow's frame as of now. Raises `PipelineError`, `Unavailable`."""
        target = self._definitions.target(flow)
        while True:
            try:
                frame = self._frame(flow)
            except (PipelineError, Unavailable):
                raise
            except Exception as error:
                missing = _missing(error)
                name = None if missing is None else self._definitions.find(missing)
                if name is None or name in self._done:
                    kind = Unavailable if type(error).__name__ == _OF_JAVA else PipelineError
                    raise kind(self._refusal(flow, error, missing if name is None else None)) from error
                self._evaluate(name)
                continue
            self._check_kind(flow, target, frame)
            return FlowFrame(flow, target, frame, self._inputs(frame))

    def _frame(self, flow: AnyFlow) -> DataFrame:
        from pyspark.sql import DataFrame

        if isinstance(flow, ChangeFlow):
            return self._spark.readStream.table(flow.source)
        is_view = isinstance(self._definitions.outputs[self._definitions.target(flow)], TemporaryView)
        # Expectations of a table are judged batch by batch, with counts.
        frame = flow.func() if is_view else getattr(flow.func, "unchecked", flow.func)()
        if not isinstance(frame, DataFrame):
            raise PipelineError(
                f"{place_of(flow)}: the function of {flow.name} returns {type(frame).__name__}, not a frame"
            )
        return frame

    def _check_kind(self, flow: AnyFlow, target: str, frame: DataFrame) -> None:
        output = self._definitions.outputs[target]
        if isinstance(output, TemporaryView) or frame.isStreaming != _is_batch(output):
            return
        if frame.isStreaming:
            what = f"table with {INCREMENT}" if isinstance(output, StreamingTable) else "materialized view"
            problem = f"a {what} is made of tables, not of a stream; read them with spark.read, or make it a table"
        else:
            kind = "a sink" if isinstance(output, Sink) else "a table"
            problem = f"{kind} is written by a stream: read with spark.readStream or STREAM, or make it a view"
        raise PipelineError(f"{place_of(flow)}: {flow.name}: {problem}")

    def _inputs(self, frame: Any) -> frozenset[str]:
        names = {
            each.lower().replace("`", "") for each in _TABLES.findall(frame._jdf.queryExecution().analyzed().toString())
        }
        return frozenset(each for each in names if each in self._definitions.outputs)

    def _refusal(self, flow: AnyFlow, error: BaseException, missing: str | None) -> str:
        place = where(error, self._files) if not isinstance(flow, ChangeFlow) else place_of(flow)
        if missing is not None:
            return f"{place}: {flow.name} reads {missing}, which neither the project nor the catalog has"
        return f"{place}: {flow.name}: {first_line(error)}"


def _is_batch(output: Any) -> bool:
    """Whether the output is made of tables, not of a stream."""
    return isinstance(output, MaterializedView) or (isinstance(output, Table) and INCREMENT in output.table_properties)


def _missing(error: BaseException) -> str | None:
    """The table or view that an error of Spark calls missing."""
    condition = getattr(error, "getCondition", None)
    if condition is None or not str(condition()).startswith(_NOT_FOUND):
        return None
    return str((error.getMessageParameters() or {}).get("relationName", "")).replace("`", "")  # type: ignore[attr-defined]
