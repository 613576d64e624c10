"""Runs a project file: each derived topic or table is one Structured Streaming query with a checkpoint of its own.

Windows, watermarks, joins and transformWithState are Spark's; their state is in RocksDB. A derived topic is written
with the sink's exactly-once mode unless the file says otherwise, a derived table by the file sink.

Not obvious:

- A Python sink has no output mode `update`, so `derive` writes such topics in `foreachBatch`; the name of the write
  is the query's id in the checkpoint. Modules beside a project file are pickled by value.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.checkpoints import Checkpoint
from kalda.pipeline.files import locked
from kalda.pipeline.lake import SINK_LOG
from kalda.pipeline.load import ISOLATION, SOURCE, STARTS, TIMES, starting_options
from kalda.pipeline.project import Derived, Project, TopicSource
from kalda.pipeline.running import POLL_S, QueryProgress, as_dict, stop_signals
from kalda.pipeline.session import PipelineError, batch_limit, first_line, refuse_options
from kalda.pipeline.topics import TopicQuestions
from kalda.pipeline.values import with_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PLACE: Final = ("key", "topic", "partition", "offset", "timestamp")
_OWN_OPTIONS: Final = {
    "subscribe": "each [topics.NAME] has its topic",
    **dict.fromkeys(STARTS, "each [topics.NAME] may have since"),
}
"""Options of the source that a derivation sets itself, and what to use instead."""


@contextmanager
def alone(project: Project, only: Collection[str] = ()) -> Iterator[None]:
    """Held while derived topics and tables are written: all, or `only` these. Raises `PipelineError` where another
    process writes one of them."""
    _check_names(project, only)
    with ExitStack() as stack:
        for name in dict.fromkeys(only) or project.derived:
            file = project.checkpoints / f"{name}.lock"
            stack.enter_context(locked(file, f"[derived.{name}]: another process is running it; wait for its end"))
        yield


def _check_names(project: Project, names: Collection[str]) -> None:
    unknown = [name for name in names if name not in project.derived]
    if unknown:
        raise PipelineError(f"nothing of the project is named {', '.join(unknown)}: {', '.join(project.derived)}")
    views = [name for name in names or project.derived if not project.is_written(name)]
    if len(views) == len(names or project.derived):
        raise PipelineError(f"[derived.{views[0]}] has neither topic nor path: there is nothing to write")


def make_views(spark: SparkSession, project: Project, *, once: bool = False) -> dict[str, DataFrame]:
    """Register the project's topics and tables as views, and return the derived frames, views too. Raises
    `PipelineError`."""
    for name, topic in project.topics.items():
        _stream(spark, project, topic, once).createOrReplaceTempView(name)
    for name, table in project.tables.items():
        spark.read.format(table.format).load(project.place(table.path)).createOrReplaceTempView(name)
    frames = {}
    for name, derived in project.derived.items():
        try:
            frame = spark.sql(derived.sql) if derived.sql is not None else _call(project, str(derived.python))(spark)
        except PipelineError:
            raise
        except Exception as error:
            raise PipelineError(f"[derived.{name}]: {first_line(error)}") from error
        frame.createOrReplaceTempView(name)
        frames[name] = frame
    return frames


def _stream(spark: SparkSession, project: Project, source: TopicSource, once: bool) -> DataFrame:
    """The topic's records: with JSON, Avro and Protobuf a column a field. Records that cannot be decoded have null in
    all of these, and what is wrong in `reason`."""
    refuse_options(project.source_options, _OWN_OPTIONS)
    options = {ISOLATION: "read_committed", **TIMES, **project.source_options, "subscribe": source.topic}
    with TopicQuestions(options) as topics:
        options |= starting_options(source.since, topics, (source.topic,))
    if source.rows_a_batch is not None:
        options |= batch_limit(source.rows_a_batch, to_the_end=once)
    rows = with_values(spark.readStream.format(SOURCE).options(**options).load(), source.value_format)
    if source.value in ("json", "avro", "protobuf"):
        names: list[str] = rows.schema["value"].dataType.names  # type: ignore[attr-defined]
        clash = sorted({*names} & {*_PLACE, "reason"})
        if clash:
            raise PipelineError(f"topic {source.topic}: the values have a field {clash[0]}, as the record has")
        rows = rows.select(*(rows["value"].getField(name).alias(name) for name in names), *_PLACE, "reason")
    else:
        rows = rows.select("value", *_PLACE, "reason")
    return rows.withWatermark("timestamp", source.watermark) if source.watermark is not None else rows


def _call(project: Project, name: str) -> Callable[[SparkSession], DataFrame]:
    module, colon, function = name.partition(":")
    if not colon:
        raise PipelineError(f"python = {name!r}: module:function is expected")
    if str(project.directory) not in sys.path:
        sys.path.insert(0, str(project.directory))
    try:
        imported = importlib.import_module(module)
        found: Callable[[SparkSession], DataFrame] = getattr(imported, function)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"python = {name!r}: {error}") from error
    if Path(imported.__file__ or "").is_relative_to(project.directory):
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(imported)  # type: ignore[no-untyped-call]  # tasks cannot import it
    return found


def start(
    spark: SparkSession, project: Project, *, once: bool = False, only: Collection[str] = ()
) -> dict[str, StreamingQuery]:
    """Start the queries of derived topics and tables. `once`: up to the topics' ends of now. Raises `PipelineError`."""
    _check_names(project, only)
    frames = make_views(spark, project, once=once)
    queries: dict[str, StreamingQuery] = {}
    for name, derived in project.derived.items():
        if project.is_written(name) and (not only or name in only):
            try:
                queries[name] = _start(frames[name], project, name, derived, once)
            except Exception as error:
                for query in queries.values():
                    query.stop()
                raise PipelineError(f"[derived.{name}] cannot start: {first_line(error)}") from error
    return queries


def _start(frame: DataFrame, project: Project, name: str, derived: Derived, once: bool) -> StreamingQuery:
    rows = records_of(frame, derived.key) if derived.topic is not None else frame
    writer = rows.writeStream.queryName(name).outputMode(derived.mode)
    checkpoint = project.checkpoint(name)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if once:
        writer = writer.trigger(availableNow=True)
    elif derived.every is not None:
        writer = writer.trigger(processingTime=derived.every)
    if derived.topic is not None:
        options = {**project.sink_options, "topic": derived.topic}
        if derived.exactly_once:
            options["kalda.exactly.once"] = "true"
        if derived.mode == "update":
            return writer.foreachBatch(_batch_writer(options, Checkpoint(project.checkpoint(name)))).start()
        return writer.format(SOURCE).options(**options).start()
    assert derived.path is not None
    place = project.place(derived.path)
    if (Path(place) / SINK_LOG).exists() and not (checkpoint / "offsets").exists():
        raise PipelineError(
            f"{place} was written by a query with another checkpoint than {checkpoint}, and Spark would leave out the "
            f"batches whose numbers are in its list of files; name another path"
        )
    return writer.format(derived.format).start(place)


def _batch_writer(options: Mapping[str, str], checkpoint: Checkpoint) -> Callable[[DataFrame, int], None]:
    """Writes each batch to a topic, for the mode `update`, which Spark refuses for sinks in Python. The writes have the
    query's id for their name: as with a sink, a batch that is run again is found by its number."""

    def write(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format(SOURCE).mode("append").options(**options)
        if "kalda.exactly.once" in options:
            writer = writer.option("kalda.exactly.once.name", str(checkpoint.query_id))
            writer = writer.option("kalda.exactly.once.batch", batch)
        writer.save()

    return write


def records_of(frame: DataFrame, key: str | None) -> DataFrame:
    """Records from rows: columns `key`, `value` and `headers` as they are where there is a column `value`, else all
    columns as a JSON object, with the column that is named as the key."""
    from pyspark.sql import functions as f

    if "value" in frame.columns:
        chosen = [name for name in ("key", "value", "headers", "partition", "timestamp") if name in frame.columns]
        return frame.select(*chosen)
    if key is not None and key not in frame.columns:
        raise PipelineError(f"key {key}: there are the columns {', '.join(frame.columns)}")
    value = f.to_json(f.struct(*map(_column, frame.columns))).cast("binary").alias("value")
    if key is None:
        return frame.select(value)
    return frame.select(_column(key).cast("string").cast("binary").alias("key"), value)


def _column(name: str) -> Column:
    """The column of exactly this name, which may have dots."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def run_all(
    queries: Mapping[str, StreamingQuery], on_progress: Callable[[Mapping[str, QueryProgress]], None] = lambda _: None
) -> dict[str, QueryProgress]:
    """Wait for the queries' end, or a signal. Where one fails, the others are stopped. Raises `PipelineError`."""
    progress = {name: QueryProgress() for name in queries}
    began = time.monotonic()
    with stop_signals() as stopped:
        while True:
            active = [name for name, query in queries.items() if query.isActive]
            for name, query in queries.items():
                for report in query.recentProgress:
                    progress[name].add(as_dict(report))
                progress[name].seconds = time.monotonic() - began
            on_progress(progress)
            failed = {name: error for name, query in queries.items() if (error := _error(query)) is not None}
            if failed or stopped.is_set():
                for query in queries.values():
                    query.stop()
            if failed:
                raise PipelineError("; ".join(f"{name} has failed: {error}" for name, error in failed.items()))
            if not active:
                for each in progress.values():
                    each.stopped_by = stopped.signal
                return progress
            stopped.wait(POLL_S)


def _error(query: Any) -> str | None:
    error = query.exception()
    return None if error is None else first_line(error)
