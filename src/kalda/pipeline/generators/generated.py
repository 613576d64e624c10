"""A project of `pyspark.pipelines` that a command has written: `spark-pipeline.yml`, one definition file, its tables
and the engine's state, in one directory.

    DIR/spark-pipeline.yml          the project
    DIR/definitions/COMMAND.py      what the command line said, as a definition file
    DIR/_kalda/COMMAND.json         what the project was begun with
    DIR/_kalda/kalda                the engine's state: checkpoints, the lock, the last run
    DIR/TABLE                       a table of Delta

The command writes the definition file again in each run. A file that was edited since is left as it is: from then on
the project is the user's, and the command only runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.producer import PRODUCER
from kalda.pipeline.engine.engine import RunOptions, RunResult, run_project
from kalda.pipeline.engine.runs import FlowReport, RunReport
from kalda.pipeline.files import OWN, check_directory, locked, read_state, replace_text
from kalda.pipeline.formats.values import ValueFormat
from kalda.pipeline.projects.specification import LOCK, SPECIFICATIONS, Specification, read_specification
from kalda.pipeline.session import PipelineError
from kalda.spark.options import CONNECTION
from kalda.spark.sink_options import EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GENERATED: Final = "generated"
"""The entry of the state with the digest of the definition file that was written last."""


@dataclass(frozen=True, slots=True)
class GeneratedProject:
    """The text of a project. Only its owner may read the definition file: options may have passwords."""

    name: str
    command: str
    definitions: str
    configuration: Mapping[str, str]

    @property
    def files(self) -> dict[str, str]:
        """The text of each file, by its path in the project's directory."""
        lines = [f"name: {json.dumps(self.name)}", f"storage: {OWN}", "libraries:"]
        lines += ["  - glob:", "      include: definitions/**", "configuration:"]
        lines += [f"  {key}: {json.dumps(value)}" for key, value in self.configuration.items()]
        return {SPECIFICATIONS[0]: "\n".join(lines) + "\n", f"definitions/{self.command}.py": self.definitions}

    @property
    def printed(self) -> str:
        return "\n".join(f"# -- {name}\n{text}" for name, text in self.files.items())

    def write(self, directory: Path) -> None:
        for name, text in self.files.items():
            replace_text(directory / name, text, mode=0o600)


class GeneratedDirectory:
    """The directory of a project that `command` writes and runs."""

    def __init__(self, given: str | os.PathLike[str], command: str, what: str, table: str) -> None:
        self._given = os.fspath(given)
        self._command = command
        self._what = what
        self.path = Path(given).resolve()
        self.table = self.path / table
        self._state = self.path / OWN / f"{command}.json"

    def state(self) -> dict[str, Any] | None:
        """What the project was begun with; None before. Raises `PipelineError` where it is damaged, or of an earlier
        version of Kalda."""
        found = read_state(self._state, {})
        if found is not None and GENERATED not in found:
            raise PipelineError(
                f"{self.path} is a {self._what} of an earlier version of Kalda: kalda pipeline convert {self._given}"
            )
        return found

    def check(self) -> None:
        """Raises `PipelineError` where the directory cannot be one of this command."""
        check_directory(self._given, self._state, self._what)
        self.state()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Held while the project is written and run. Raises `PipelineError` where another process runs it."""
        self.check()
        refusal = f"{self.path}: another process is writing this {self._what}; wait for its end"
        with locked(self.path / OWN / "kalda" / LOCK, refusal):
            yield

    def write(self, project: GeneratedProject, state: Mapping[str, Any]) -> Specification:
        """Write the project, and what it was begun with."""
        file = self.path / "definitions" / f"{self._command}.py"
        before = (read_state(self._state, {}) or {}).get(GENERATED)
        if before is None or not file.exists() or _digest(file.read_text(encoding="utf-8")) == before:
            project.write(self.path)
            before = _digest(project.definitions)
        self.keep({**state, GENERATED: before})
        return read_specification(self.path)

    def run(
        self,
        spark: SparkSession,
        specification: Specification,
        options: RunOptions,
        show: Callable[[FlowReport], None] = lambda _: None,
    ) -> tuple[FlowReport, RunResult]:
        """Run the project, which has one flow, while `alone`. Raises `PipelineError`."""
        flows: list[FlowReport] = []

        def keep(report: RunReport) -> None:
            flows[:] = report.flows.values()
            show(flows[0])

        done = run_project(spark, specification, options, keep)
        return flows[0], done

    def keep(self, state: Mapping[str, Any]) -> None:
        replace_text(self._state, json.dumps(state, indent=1, sort_keys=True) + "\n", mode=0o600)

    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(str(self.table))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def options_of_side(options: Mapping[str, str], is_source: bool) -> dict[str, str]:
    """The options of a source, or of a sink, without those that only the other side has."""
    own, others = (CONSUMER, PRODUCER) if is_source else (PRODUCER, CONSUMER)
    found = {}
    for name, value in options.items():
        key = name.removeprefix("kafka.")
        is_of_sink = name.startswith(EXACTLY_ONCE)
        is_of_source = not is_of_sink and not name.startswith("kafka.") and name != CONNECTION
        if (key in own or key not in others) and not (is_of_sink if is_source else is_of_source):
            found[name] = value
    return found


def decoded_text(frame: str, given: ValueFormat) -> str:
    """A call of `decoded`, which a definition file has imported."""
    name, more = given.name, {"schema": given.schema, "message": given.message, "descriptor": given.descriptor}
    if given.registry is not None:
        name = "registry"
        more |= {"registry": given.registry, "subject": given.subject or f"{given.topics[0]}-value"}
    parts = [frame, literal(name), *(f"{key}={literal(value)}" for key, value in more.items() if value)]
    return f"decoded({', '.join(parts)})"


def literal(value: object, indent: int = 0) -> str:
    """A value of JSON's kinds as Python writes it; an object with each of its entries on a line of its own."""
    if isinstance(value, Mapping) and value:
        blank = " " * indent
        lines = [f"{blank}    {literal(str(key))}: {literal(each, indent + 4)},\n" for key, each in value.items()]
        return "{\n" + "".join(lines) + blank + "}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
