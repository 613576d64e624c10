"""What the .py and .sql files of a project define, in Spark's own language.

`Definitions` is a registry of `pyspark.pipelines`: while a file is executed, its decorators call it with outputs
(tables, views, sinks) and flows. Nothing is evaluated here; a flow holds the function that makes its frame. What is
Kalda's alone stands in keys `kalda.*` of `table_properties`, `spark_conf` and `configuration`, in this order of
precedence from the last to the first, which other engines ignore.

Names of tables are `database.table`, in lower case, as Spark compares them; views and sinks have names of one part.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, Table, TemporaryView

from kalda.pipeline.files import read_text
from kalda.pipeline.projects.specification import CATALOG, Specification, files_of
from kalda.pipeline.projects.statements import ChangeFlow, statements_of
from kalda.pipeline.session import PipelineError, first_line

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
