"""Runs the flows of a project in one session of Spark.

A flow into a table or a sink is a streaming query with a checkpoint of its own; a materialized view is computed and
put in the place of the rows before in one commit. `once` ends at the present ends of all sources, and starts a flow
when those before it have ended. `follow` runs all of them until it is stopped; a materialized view is computed again,
at most once in its `kalda.trigger`, after its inputs have changed.

A flow that fails starts again after a pause, unless the failure is final: what cannot be analysed, a refused column, a
broken expectation, lost records. The other flows go on. With `once`, what reads the output of a failed flow is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pyspark.pipelines.flow import Flow
from pyspark.pipelines.output import MaterializedView, Output, Sink, Table
from pyspark.sql.types import StructType

from kalda.pipeline.engine.query import POLL_S, QueryProgress, StopEvent, stop_signals
from kalda.pipeline.engine.redrive import Redrive, RedriveFlow, Wanted
from kalda.pipeline.engine.reporting import Dataset, dataset_of, lineage_of, reporting, table_of
from kalda.pipeline.engine.runs import FlowReport, FlowState, LagClock, Restarts, RunReport, interval_s
from kalda.pipeline.engine.upkeep import Keeping, Upkeep
from kalda.pipeline.files import check_held, locked, read_state, remove_tree, replace_text
from kalda.pipeline.formats.frames import sources_of
from kalda.pipeline.jdbc import DELAY, Increments
from kalda.pipeline.projects.definitions import AnyFlow, ChangeFlow, Definitions, load_definitions, place_of
from kalda.pipeline.projects.graph import INCREMENT, Evaluation, FlowFrame, downstream
from kalda.pipeline.projects.specification import CATALOGS, DELETED, LOCK, QUARANTINE, Specification
from kalda.pipeline.session import PipelineError, first_line, refuse_ended, settings_of
from kalda.pipeline.sinks import ProjectSink
from kalda.pipeline.stores import CONNECTION
from kalda.pipeline.tables.changes import Changes
from kalda.pipeline.tables.contracts import (
    CONTRACT,
    Expectation,
    Judged,
    check_contract,
    difference,
    expectations_of,
    fit,
    holds,
    judge,
    nullable,
    with_rescued,
)
from kalda.pipeline.tables.tables import Batch, ScratchTables, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER: Final = "kalda.trigger"
MODE: Final = "kalda.output.mode"
KEYS: Final = "kalda.keys"
_MODES: Final = ("append", "update", "complete")
_VIEW_THREADS: Final = 2
_ROWS_OF_TASK: Final = 10_000
_AT_ONCE: Final = max(2, os.cpu_count() or 2)
"""With `once`: how many flows run beside each other. Each starts Python processes, for which Spark waits 10 s."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run does."""

    follow: bool = False
    refresh: tuple[str, ...] = ()
    """Only these outputs; none: all."""
    full_refresh: tuple[str, ...] = ()
    """Outputs that begin anew, and are the only ones of the run with those of `refresh`."""
    full_refresh_all: bool = False


class FlowRun(ABC):
    """One flow of a run: its settings, and what it reports."""

    def __init__(self, engine: Engine, flow: AnyFlow) -> None:
        definitions = engine.definitions
        self._engine = engine
        self.flow = flow
        self.name = flow.name.lower()
        self.target = definitions.target(flow)
        self.output: Output = definitions.outputs[self.target]
        self.sink = ProjectSink(self.output, definitions.specification) if isinstance(self.output, Sink) else None
        self.properties: Mapping[str, str] = self.output.table_properties if isinstance(self.output, Table) else {}
        kind = "changes" if isinstance(flow, ChangeFlow) else type(self.output).__name__
        self.report = FlowReport(self.name, self.target, kind)
        self.keys = [key.strip() for key in self.setting(KEYS, "").split(",") if key.strip()]
        self.keeping = (Keeping.of(self.setting, place_of(flow)), Keeping.of_quarantine(self.setting, place_of(flow)))
        """How the output is kept, if it is a table, and the rows that it does not take."""
        self.restarts = Restarts.of(self.number, follow=self._engine.options.follow)
        self.found: FlowFrame | None = None
        """The frame that the flow has been started with."""
        self._starts_s = 0.0

    def setting(self, key: str, default: str) -> str:
        return self._engine.definitions.setting(self.flow, key, default)

    def number(self, key: str, default: int) -> int:
        text = self.setting(key, str(default))
        if not text.isdecimal():
            raise PipelineError(f"{place_of(self.flow)}: {key} is {text!r}, not a number")
        return int(text)

    @property
    def contract(self) -> str:
        return check_contract(self.setting(CONTRACT, "evolve"), place_of(self.flow))

    def check(self, frame: DataFrame) -> None:
        """Raises `PipelineError` where the flow would refuse the rows of this frame."""
        if isinstance(self.flow, ChangeFlow):
            frame = self.changes().shaped(frame)
        column = self.keeping[0].column
        if column and column.lower() not in map(str.lower, frame.columns):
            raise PipelineError(f"{place_of(self.flow)}: kalda.retention.column is {column}: no such column")
        for each in self.expectations:
            try:
                frame.where(each.fails())
            except Exception as error:
                raise PipelineError(f"{place_of(self.flow)}: expectation {each.name}: {first_line(error)}") from error
        if self.sink is not None:
            self.sink.check(frame.schema, self.setting(MODE, "append"), has_rules=bool(self.expectations))

    @abstractmethod
    def start(self) -> None:
        """Begin to run the flow."""

    @abstractmethod
    def poll(self) -> None:
        """Take what the flow has done since the last call."""

    def stop(self) -> None:
        self.report.state = FlowState.STOPPED

    def end(self) -> None:
        """Stop the flow unless it has ended. A failure is in its report: the other flows are stopped all the same."""
        try:
            if not self.report.state.is_final:
                self.stop()
        except Exception as error:
            self.report.state, self.report.error = FlowState.STOPPED, first_line(error)

    def step(self) -> None:
        """Start the flow, or again, or poll it."""
        try:
            if self.report.state is FlowState.RUNNING:
                self.poll()
            elif time.monotonic() >= self._starts_s:
                self.report.state = FlowState.RUNNING
                conf = self.flow.spark_conf if isinstance(self.flow, Flow) else {}  # a query takes a copy of them
                with settings_of(self._engine.spark, {k: v for k, v in conf.items() if not k.startswith("kalda.")}):
                    self.start()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        refuse_ended(self._engine.spark)
        self._starts_s = time.monotonic() + (self.restarts.failed(error, self.report) or 0)

    @property
    def expectations(self) -> list[Expectation]:
        if isinstance(self.flow, ChangeFlow):
            return [self.changes().rule, *expectations_of(None, self.properties)]
        return expectations_of(self.flow.func, self.properties)

    def datasets(self) -> tuple[list[Dataset], list[Dataset]]:
        """What the flow reads and writes, as far as it is known."""
        tables, found = self._engine.tables, self.found
        reads, columns = [], []
        if found is not None:
            outputs = self._engine.definitions.outputs
            reads = [table_of(tables.path(name)) for name in found.inputs if isinstance(outputs[name], Table)]
            reads += [each for options in sources_of(found.frame) for each in dataset_of(options)]
            reads = list(dict.fromkeys(reads))
            columns = [(field.name, field.dataType.simpleString()) for field in found.frame.schema.fields]
        if isinstance(self.output, Sink):
            options = {key: str(value) for key, value in self.output.options.items()}
            return reads, dataset_of(options) or [Dataset(self.output.format, self.target)]
        return reads, [table_of(tables.path(self.target), columns)]

    @property
    def quarantine(self) -> str:
        """The name of the table of rows that the output does not take."""
        name = self.target if isinstance(self.output, Table) else self._engine.definitions.table_name(self.target)
        return name + QUARANTINE

    def judged(self, frame: DataFrame, number: int, columns: StructType | None) -> Judged:
        """The good and the bad rows of a batch. `columns`: of a table that keeps its own. Raises `PipelineError` where
        the lock is lost: two drivers must not make the same version of a table in a store."""
        check_held(self._engine.definitions.specification.lock, asks=True)
        fitting = None if columns is None else fit(frame, columns, self.contract)
        judged = judge(frame, self.expectations, fitting, self.name, number)
        failing = self.report.failing
        # Another dict, since other threads read the report.
        self.report.failing = {**failing, **{name: failing.get(name, 0) + n for name, n in judged.counts.items()}}
        return judged

    def changes(self) -> Changes:
        assert isinstance(self.flow, ChangeFlow)
        return Changes(self.flow, self._engine.tables, self.target)


class StreamRun(FlowRun):
    """A flow into a streaming table or a sink: a query."""

    def __init__(self, engine: Engine, flow: AnyFlow) -> None:
        super().__init__(engine, flow)
        self.mode = self.setting(MODE, "append")
        if self.mode not in _MODES:
            raise PipelineError(f"{place_of(flow)}: {MODE} is {self.mode!r}; there are {', '.join(_MODES)}")
        if isinstance(self.output, Table) and self.mode == "update" and not self.keys:
            raise PipelineError(
                f"{place_of(flow)}: {MODE} is update: set {KEYS} to the columns of {self.target} that identify a row"
            )
        interval_s(self.setting(TRIGGER, "1 second"), TRIGGER)
        self.checkpoint = engine.definitions.specification.checkpoint(self.name)
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        """What the writing of a batch has raised; Spark has only its text."""
        self._columns: StructType | None = None
        self._progress = QueryProgress()
        self._counted = QueryProgress()
        self._clock = LagClock()

    def start(self) -> None:
        engine = self._engine
        self.found = engine.frame_again(self) if self.report.restarts else engine.evaluation.call(self.flow)
        frame = self.found.frame
        if isinstance(self.flow, ChangeFlow):
            frame = self.changes().shaped(frame)
        elif isinstance(self.output, Table):
            self._columns = self._engine.tables.schema(self.target)
        self._error, self._progress = None, QueryProgress()
        writer = frame.writeStream.queryName(self.name).option("checkpointLocation", str(self.checkpoint))
        writer = writer.outputMode(self.mode)
        if self._engine.options.follow:
            writer = writer.trigger(processingTime=self.setting(TRIGGER, "1 second"))
        else:
            writer = writer.trigger(availableNow=True)
        if self.sink is not None and self.sink.is_streamed(
            frame.schema, self.mode, self.checkpoint, bool(self.expectations)
        ):
            self.sink.make(frame)
            self._query = writer.format(self.sink.format).options(**self.sink.options).start()
        else:
            self._query = writer.foreachBatch(self._write).start()

    def _write(self, frame: DataFrame, number: int) -> None:
        batch = Batch.of(self.name, self.checkpoint, number)
        if self._reads_again:
            frame.persist()
        try:
            judged = self.judged(frame, number, self._columns)
            if judged.bad is not None:
                self._engine.tables.append(judged.bad, self.quarantine, batch)
            self.write_rows(judged.good, batch)
        except BaseException as error:
            self._error = error  # of its text Spark makes a search, in which Java's stack overflows where it is long
            raise RuntimeError(first_line(error)) from None
        finally:
            if self._reads_again:
                frame.unpersist()

    @property
    def _reads_again(self) -> bool:
        """Whether a batch is read more than once."""
        return bool(self.expectations) or self.contract == "freeze"

    def write_rows(self, frame: DataFrame, batch: Batch) -> None:
        tables = self._engine.tables
        if self.sink is not None:
            self.sink.write(frame, batch, self.keys)
        elif not isinstance(self.flow, ChangeFlow) and self.mode == "append":
            tables.append(frame.coalesce(1) if self._is_small(batch) else frame, self.target, batch)
        else:
            with self._engine.upkeep.writing(self.target):
                if isinstance(self.flow, ChangeFlow):
                    self.changes().apply(frame, batch)
                elif self.mode == "complete":
                    tables.replace(frame, self.target, batch)
                else:
                    tables.upsert(frame, self.target, self.keys, batch)

    def _is_small(self, batch: Batch) -> bool:
        """Whether the batch is of so few records of topics that one task writes them at once, and one file. Without
        state, of which each task has its own part."""
        rows = self._progress.records_up_to(batch.offsets)
        return rows is not None and rows <= _ROWS_OF_TASK and not self._progress.last.get("stateOperators")

    def redriven(self) -> RedriveFlow:
        """How rows of the flow are given again. Raises `PipelineError` where they cannot be."""
        if self.mode != "append" and not isinstance(self.flow, ChangeFlow):
            raise PipelineError(
                f"{place_of(self.flow)}: {MODE} is {self.mode}: an older row would replace a newer one of {self.target}"
            )
        frame, table = self._engine.evaluation.frames[self.name].frame, None
        if isinstance(self.flow, ChangeFlow):
            frame = self.changes().shaped(frame)
        elif isinstance(self.output, Table):
            table = self._engine.tables.schema(self.target)
        return RedriveFlow(self.name, frame.schema, self.expectations, table, self.contract)

    def poll(self) -> None:
        query = self._query
        assert query is not None
        is_active = query.isActive
        self._progress.follow(query)
        self._count()
        if is_active:
            return
        error = query.exception()
        if error is not None:
            raise self._error or error
        self.report.state = FlowState.DONE
        self.report.error = None

    def _count(self) -> None:
        before, now, report = self._counted, self._progress, self.report
        if now.batches < before.batches:
            before = QueryProgress()
        if now.batches > before.batches:
            report.rows += now.rows - before.rows
            report.batches += now.batches - before.batches
            report.last_batch_ms = int(time.time() * 1000)
            report.seconds = float(now.last.get("batchDuration") or 0) / 1000
            report.error = None
        report.lag, report.lag_seconds = now.lag, self._clock.seconds(now.planned_s, now.read, now.available)
        report.take(now.last)
        self._counted = QueryProgress(rows=now.rows, batches=now.batches)

    def stop(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
            with suppress(Exception):  # the batch was interrupted
                self.poll()
        super().stop()


class ViewRun(FlowRun):
    """A materialized view: computed, and put in the place of the rows before."""

    def __init__(self, engine: Engine, flow: AnyFlow) -> None:
        super().__init__(engine, flow)
        self._every_s = interval_s(self.setting(TRIGGER, "1 minute"), TRIGGER)
        self._tag = f"kalda view {self.name}".replace(",", " ")
        self._future: Future[int] | None = None
        self._began_s = self._looks_s = 0.0
        self._seen: dict[str, int] = {}

    def start(self) -> None:
        self._began_s = time.monotonic()
        self._future = self._engine.threads.submit(self._compute)

    def _compute(self) -> int:
        self._engine.spark.addTag(self._tag)  # of this thread's jobs
        try:
            return self._replace()
        finally:
            self._engine.spark.removeTag(self._tag)

    def _replace(self) -> int:
        """Returns how many rows the table has now, or has got so far."""
        tables = self._engine.tables
        found = self.found = self._engine.evaluation.call(self.flow)
        versions = {name: tables.version(name) for name in found.inputs}
        self.report.failing = {}
        judged = self.judged(found.frame, self.report.batches, None)
        if judged.bad is not None:
            tables.replace(judged.bad, self.quarantine)
        elif tables.exists(self.quarantine):
            tables.empty(self.quarantine)
        tables.replace(judged.good, self.target)
        self._seen = versions
        return tables.rows_of_last_commit(self.target)

    def poll(self) -> None:
        if self._future is not None:
            if not self._future.done():
                return
            future, self._future = self._future, None
            self.report.rows = future.result()
            self.report.batches += 1
            self.report.error = None
            self.report.seconds = round(time.monotonic() - self._began_s, 3)
            self.report.last_batch_ms = int(time.time() * 1000)
        if not self._engine.options.follow:
            self.report.state = FlowState.DONE
        elif time.monotonic() >= max(self._began_s + self._every_s, self._looks_s):
            self._looks_s = time.monotonic() + self._engine.tables.look_s
            if self._has_new():
                self.start()

    def _has_new(self) -> bool:
        """Whether an input has another version; always where it reads no table of the project."""
        inputs = self._engine.inputs[self.target]
        return not inputs or any(self._engine.tables.version(each) != self._seen.get(each) for each in inputs)

    def stop(self) -> None:
        if self._future is not None:
            self._engine.spark.interruptTag(self._tag)
        super().stop()


class IncrementRun(ViewRun):
    """A table of the rows that a source has since the last time."""

    def __init__(self, engine: Engine, flow: AnyFlow) -> None:
        super().__init__(engine, flow)
        place = place_of(flow)
        delay_s = interval_s(self.setting(DELAY, "0 seconds"), DELAY)
        checkpoint = engine.definitions.specification.checkpoint(self.name)
        self._increments = Increments(checkpoint, self.properties[INCREMENT], delay_s, place)

    def _replace(self) -> int:
        """Adds rows, or puts them in the place of those with the same keys."""
        tables, name = self._engine.tables, self.target
        found = self.found = self._engine.evaluation.call(self.flow)
        frame = found.frame
        increment = self._increments.plan(frame)
        if increment is None:
            return self.report.rows
        batch = increment.batch(self.name, self.properties[INCREMENT])
        rows = self._increments.rows(frame, increment).persist()
        try:
            judged = self.judged(rows, batch.number, tables.schema(name))
            if judged.bad is not None:
                tables.append(judged.bad, self.quarantine, batch)
            if self.keys:
                with self._engine.upkeep.writing(name):
                    tables.upsert(judged.good, name, self.keys, batch)
            else:
                tables.append(judged.good, name, batch)
            count = rows.count()
        finally:
            rows.unpersist()
        self._increments.finish(increment)
        return self.report.rows + count


def _run_of(engine: Engine, flow: AnyFlow) -> FlowRun:
    output = engine.definitions.outputs[engine.definitions.target(flow)]
    if isinstance(output, MaterializedView):
        return ViewRun(engine, flow)
    if isinstance(output, Table) and INCREMENT in output.table_properties:
        return IncrementRun(engine, flow)
    return StreamRun(engine, flow)


class Engine:
    """One run of a project."""

    def __init__(
        self, spark: SparkSession, definitions: Definitions, tables: Tables, options: RunOptions, report: RunReport
    ) -> None:
        self.spark = spark
        self.definitions = definitions
        self.tables = tables
        self.options = options
        self.report = report
        self.threads = ThreadPoolExecutor(_VIEW_THREADS, "views")
        tables.on_change = report.add_change
        self._state = definitions.specification.state
        self._reset_file = self._state / "reset.json"
        self.runs: list[FlowRun] = [
            _run_of(self, flow)
            for flow in definitions.flows.values()
            if _is_written(definitions.outputs[definitions.target(flow)])
        ]
        self.evaluation = Evaluation(spark, definitions, self._make_table)

    def run(self, stopped: StopEvent, show: Callable[[RunReport], None] = lambda _: None) -> bool:
        """Run the flows to their end, or until `stopped`. Returns whether none has failed. Raises `PipelineError` where
        the project cannot be run."""
        self._refresh_fully()
        self.evaluation.run()
        self.inputs = self.evaluation.inputs
        self._finish_redrive()
        chosen = self._chosen()
        self.runs = [each for each in self.runs if each.target in chosen]
        self.report.flows = {each.name: each.report for each in self.runs}
        keeping = {each.target: each.keeping for each in self.runs if isinstance(each.output, Table)}
        self.upkeep = Upkeep(self.spark, self.tables, keeping, self.report.upkeep)
        named = {each.name: each for each in self.runs}
        with lineage_of(self.definitions.specification, lambda flow: named[flow].datasets()) as lineage:

            def see(*, at_once: bool = False) -> None:
                if lineage is not None:
                    lineage.step(self.report.flows.values())
                self.report.save(at_once=at_once)
                show(self.report)

            self._run(stopped, see)
        return not any(each.report.state in (FlowState.FAILED, FlowState.SKIPPED) for each in self.runs)

    def _run(self, stopped: StopEvent, see: Callable[..., None]) -> None:
        try:
            while not stopped.is_set():
                check_held(self.definitions.specification.lock)
                self._step()
                see()
                if all(each.report.state.is_final for each in self.runs):
                    self.upkeep.finish()
                    break
                if self.options.follow:
                    self.upkeep.step()
                stopped.wait(POLL_S)
        finally:
            with ThreadPoolExecutor(max(1, len(self.runs))) as threads:  # each waits for the batch that it interrupts
                list(threads.map(FlowRun.end, self.runs))
            self.threads.shutdown(wait=True, cancel_futures=True)
            self.upkeep.close()
            see(at_once=True)

    def redrive(self, wanted: Wanted) -> dict[str, tuple[int, int]]:
        """Give rows in quarantine to their flows again. Returns by flow how many went to the output, and how many stay.
        Raises `PipelineError`."""
        (target,) = self._names([wanted.table.removesuffix(QUARANTINE)], "redrive")
        self.evaluation.run()
        self._finish_redrive()
        runs = [each for each in self.runs if each.target == target]
        flows = [each.redriven() for each in runs if isinstance(each, StreamRun)]
        if not flows:
            raise PipelineError(f"redrive {target}: a materialized view is made of all its rows again: run it")
        if not self.tables.exists(runs[0].quarantine):
            return {}
        counts = Redrive(self.spark, self.tables, self._state).begin(runs[0].quarantine, wanted, flows)
        self._finish_redrive()
        return counts

    def _finish_redrive(self) -> None:
        named = {each.name: each.write_rows for each in self.runs if isinstance(each, StreamRun)}
        Redrive(self.spark, self.tables, self._state).finish(named.get)

    def _refresh_fully(self) -> None:
        """Begin outputs anew. What reads what is found with tables without rows, so that nothing is removed where the
        project cannot be run."""
        begun = read_state(self._reset_file, {"outputs": list}) or {"outputs": []}  # by a run that was killed
        if not begun["outputs"] and not self.options.full_refresh and not self.options.full_refresh_all:
            return
        columns = self._survey()
        self._reset(self._anew() | set(begun["outputs"]), columns)

    def _survey(
        self, judge_flow: Callable[[FlowRun, FlowFrame], None] = lambda run, found: None
    ) -> dict[str, StructType]:
        """Call all functions with tables that have no rows and are nowhere else. Returns the columns of all tables."""
        columns: dict[str, StructType] = {}

        def keep(name: str, found: list[FlowFrame]) -> None:
            columns[name] = self._columns(name, found)
            scratch.make(name, columns[name])

        with ScratchTables(self.spark, self.definitions.specification) as scratch:
            evaluation = Evaluation(self.spark, self.definitions, keep)
            evaluation.run()
            for each in self.runs:
                judge_flow(each, evaluation.frames[each.name])
        self.inputs = evaluation.inputs
        return columns

    def check(self) -> None:
        """Raises `PipelineError` where a run would refuse a flow."""
        for name, columns in self._survey(lambda run, found: run.check(found.frame)).items():
            flow = self.definitions.flows_of(name)[0]
            is_view = isinstance(self.definitions.outputs[name], MaterializedView)
            if not is_view and self.tables.exists(name) and self._contract(name, [flow]) == "evolve":
                self.tables.check_change(name, self.definitions.outputs[name], columns)

    def _step(self) -> None:
        for each in self.runs:
            if each.report.state.is_final:
                continue
            if each.report.state is FlowState.WAITING and not self.options.follow:
                before = [one for one in self.runs if one.target in self.inputs[each.target] and one is not each]
                if any(one.report.state in (FlowState.FAILED, FlowState.SKIPPED) for one in before):
                    each.report.state = FlowState.SKIPPED
                    each.report.error = "an input has failed"
                    continue
                if not all(one.report.state.is_final for one in before) or self._is_full:
                    continue
            each.step()

    @property
    def _is_full(self) -> bool:
        return sum(each.report.state is FlowState.RUNNING for each in self.runs) >= _AT_ONCE

    def _names(self, given: Collection[str], option: str) -> set[str]:
        found = set()
        for name in given:
            output = name.lower() if name.lower() in self.definitions.outputs else self.definitions.find(name)
            if output is None or not _is_written(self.definitions.outputs[output]):
                known = sorted({each.target for each in self.runs})
                raise PipelineError(f"{option} {name}: there are {', '.join(known)}")
            found.add(output)
        return found

    def _anew(self) -> set[str]:
        """The outputs of a full refresh: those named, and the tables that read them."""
        if self.options.full_refresh_all:
            return {each.target for each in self.runs}
        named = self._names(self.options.full_refresh, "--full-refresh")
        behind = downstream(self.inputs, named) - named
        for name in behind:
            if isinstance(self.definitions.outputs[name], Sink):
                raise PipelineError(
                    f"--full-refresh: the sink {name} would get all rows again; where that is meant, name it too: "
                    f"--full-refresh {name}"
                )
        return named | behind

    def _chosen(self) -> set[str]:
        named = self._names(self.options.refresh, "--refresh") | self._anew()
        return named or {each.target for each in self.runs}

    def _reset(self, outputs: Collection[str], columns: Mapping[str, StructType]) -> None:
        """Remove the rows and the checkpoints of outputs. The next run does it, where this one is killed meanwhile."""
        replace_text(self._reset_file, json.dumps({"outputs": sorted(outputs)}))
        for each in self.runs:
            if each.target not in outputs:
                continue
            remove_tree(self.definitions.specification.checkpoint(each.name))
            self.tables.empty(each.quarantine)
            if isinstance(each.output, Table):
                self.tables.empty(each.target + DELETED)
                self.tables.empty(each.target, columns[each.target], each.output.partition_cols or ())
        self._reset_file.unlink()

    def frame_again(self, run: FlowRun) -> FlowFrame:
        """The frame of a flow that starts again: its inputs may have other columns than before. Its table gets those
        that its contract lets in."""
        found = self.evaluation.call_again(run.flow)
        if isinstance(run.output, Table):
            flows = self.definitions.flows_of(run.target)
            self._make_table(run.target, [self.evaluation.frames[each.name.lower()] for each in flows])
        return found

    def _make_table(self, name: str, found: list[FlowFrame]) -> None:
        output = self.definitions.outputs[name]
        assert isinstance(output, Table)
        self.tables.make(name, output, self._columns(name, found), self._contract(name, [each.flow for each in found]))

    def _contract(self, name: str, flows: Sequence[AnyFlow]) -> str:
        given = self.definitions.setting(flows[0], CONTRACT, "evolve")
        return check_contract(given, place_of(self.definitions.outputs[name]))

    def _columns(self, name: str, found: list[FlowFrame]) -> StructType:
        output = self.definitions.outputs[name]
        assert isinstance(output, Table)
        return table_columns(
            output, [self._shape(each) for each in found], self._contract(name, [each.flow for each in found])
        )

    def _shape(self, found: FlowFrame) -> StructType:
        if isinstance(found.flow, ChangeFlow):
            changes = Changes(found.flow, self.tables, found.target)
            return changes.columns(changes.shaped(found.frame).schema)
        return found.frame.schema


def table_columns(output: Table, shapes: Sequence[StructType], contract: str) -> StructType:
    """The columns of a table: those that are declared, and with the contract `evolve` those of its flows, each with
    the widest type. Raises `PipelineError`."""
    declared = StructType([]) if output.schema is None else _schema(output.schema)
    is_view = isinstance(output, MaterializedView)
    known = {field.name.lower(): field for field in declared.fields}
    for shape in shapes:
        if output.schema is not None and is_view and (found := difference(declared, shape)).text:
            raise PipelineError(f"{place_of(output)}: the schema of {output.name} is another one: {found.text}")
        for field in nullable(shape).fields:
            there = known.get(field.name.lower())
            if there is None:
                if output.schema is None or contract == "evolve" or field.name.startswith("__"):
                    known[field.name.lower()] = field
            elif output.schema is None and holds(field.dataType, there.dataType):
                known[field.name.lower()] = field
    columns = StructType(list(known.values()))
    return with_rescued(columns) if contract == "rescue" and not is_view else columns


def _schema(given: StructType | str) -> StructType:
    return cast(StructType, StructType.fromDDL(given)) if isinstance(given, str) else given


def _is_written(output: Output) -> bool:
    return isinstance(output, Table | Sink)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run has ended."""

    is_good: bool
    """Whether no flow has failed."""
    signal: int | None
    """That has ended it."""


def _refusal(specification: Specification) -> str:
    return f"project {specification.name} ({specification.file}): another run is writing its tables; wait for its end"


@contextmanager
def running_alone(specification: Specification) -> Iterator[None]:
    """Held before Java starts. Raises `PipelineError` where another run of the project goes on."""
    with ExitStack() as stack:
        for place in dict.fromkeys((specification.state / LOCK, specification.lock)):
            stack.enter_context(locked(place, _refusal(specification)))
        yield


def run_project(
    spark: SparkSession,
    specification: Specification,
    options: RunOptions,
    show: Callable[[RunReport], None] = lambda _: None,
    given: StopEvent | None = None,
) -> RunResult:
    """Run a project up to its end, or until a signal or the `given` event. Raises `PipelineError` where it cannot be
    run."""
    report = RunReport(specification, "follow" if options.follow else "once")
    # The Java of a run that was killed may still be writing.
    with locked(specification.state / "session.lock", _refusal(specification), spark), stop_signals() as signalled:
        stopped = signalled if given is None else given
        definitions = load_definitions(specification, spark)
        with reporting(report), Tables(spark, specification) as tables:
            is_good = Engine(spark, definitions, tables, options, report).run(stopped, show)
    return RunResult(is_good, stopped.signal)


def redrive_rows(spark: SparkSession, specification: Specification, wanted: Wanted) -> dict[str, tuple[int, int]]:
    """Give rows that a table or a sink did not take to their flows again, each once. Returns by flow how many went to
    the output, and how many stay in quarantine. Raises `PipelineError`."""
    report = RunReport(specification, "redrive")
    with locked(specification.state / "session.lock", _refusal(specification), spark):
        definitions = load_definitions(specification, spark)
        with Tables(spark, specification) as tables:
            return Engine(spark, definitions, tables, RunOptions(), report).redrive(wanted)


def run_in_spark(specification: Specification, options: RunOptions, settings: Mapping[str, str]) -> int:
    """Run a project by `spark-pipelines`. Returns its exit code. Raises `PipelineError` where it cannot do that."""
    import pyspark

    if options.follow:
        raise PipelineError("--engine spark has no --follow: it runs up to the sources' ends")
    if not isinstance(specification.storage, Path) or CONNECTION in specification.configuration:
        raise PipelineError(f"--engine spark needs a storage of this machine, and has no {CONNECTION}")
    if specification.state.is_dir():
        raise PipelineError(
            f"{specification.state} has checkpoints of Kalda's engine, and Spark's would read all records again into "
            f"the same tables: name another storage and another spark.sql.warehouse.dir in {specification.file}"
        )
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-pipelines"), "run", "--spec", str(specification.file)]
    command += ["--refresh", ",".join(options.refresh)] if options.refresh else []
    command += ["--full-refresh", ",".join(options.full_refresh)] if options.full_refresh else []
    command += ["--full-refresh-all"] if options.full_refresh_all else []
    command += ["--remote", os.environ.get("SPARK_MASTER", "local[*]")]
    metastore = specification.storage / "spark-metastore"
    metastore.parent.mkdir(parents=True, exist_ok=True)
    if not any(name.startswith(CATALOGS) for name in settings):
        # Spark's own catalog in memory forgets the tables, and a second run then finds their directories taken.
        url = f"jdbc:derby:;databaseName={metastore};create=true"
        settings = {CATALOGS[0]: "hive", "spark.hadoop.javax.jdo.option.ConnectionURL": url, **settings}
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_HOME": str(home)}
    options_of_java = f"-Dderby.stream.error.file={metastore.with_suffix('.log')}"
    environment["SPARK_SUBMIT_OPTS"] = f"{options_of_java} {environment.get('SPARK_SUBMIT_OPTS', '')}".strip()
    return subprocess.run(command, env=environment, cwd=specification.directory, check=False).returncode


def check_with_spark(spark: SparkSession, specification: Specification) -> None:
    """Call all functions with tables that have no rows. Raises `PipelineError` where a run would refuse a flow."""
    definitions = load_definitions(specification, spark)
    report = RunReport(specification, "check")
    Engine(spark, definitions, Tables(spark, specification), RunOptions(), report).check()
