"""Topics into a lake, exactly once.

One streaming query reads the topics and writes Spark's file sink (or Delta, or Iceberg). The checkpoint is in the lake:
a batch's offsets are written there before it is read, and its files are committed in one step, so a load that ends at
any moment continues with the batch that was not committed. Each row has its topic, partition and offset.

What a load was started with (topics, format, schema, bounds) is kept in the lake; a later load of it may leave these
out and may not change them. A load with an end is complete when each partition has reached it; it cannot be continued
then, because records behind the end were passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.base.ids import TopicPartition
from kalda.base.moments import parse_moment_ms
from kalda.pipeline.checkpoints import Checkpoint
from kalda.pipeline.files import OWN, replace_text, sync
from kalda.pipeline.lake import COMPACTING, EVENTS, PARTITIONED_BY, QUARANTINE, RECORDS, Lake, SinkFile
from kalda.pipeline.registry import subject_of
from kalda.pipeline.running import QueryProgress, run
from kalda.pipeline.session import (
    PipelineError,
    batch_limit,
    check_settings_of_lakes,
    ends_after_a_batch,
    first_line,
    refuse_options,
)
from kalda.pipeline.topics import TopicQuestions
from kalda.pipeline.values import INFER, SAMPLE_RECORDS, ValueFormat, infer_schema, with_values
from kalda.protocol.messages.fetch import OffsetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Many small files of a lake into few, as one commit.
#
# In each directory with several small files, these are read in the order of partition and offset and written as files
# of about `target_bytes`. Then one rename replaces the list of files. A reader that began before has the old list and
# the old files, which stay until the next load deletes them; one that begins later has the new. A crash before the
# rename leaves new files that are no part of the table; the next load deletes them too. The new files are on the disk
# before the rename: else a loss of power could leave a list of empty files, and the next load would delete those that
# they replace.

TARGET_BYTES: Final = 128 * 1024 * 1024
_SMALL: Final = 0.75
"""Files of less than this part of the target are put together."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done."""

    files_before: int = 0
    files_after: int = 0


def compact(spark: SparkSession, lake: Lake, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Put small files together. Only while the lake is locked and no query writes it."""
    entry = lake.last_entry()
    files = lake.files()
    groups = [group for group in _by_directory(files) if len(group) > 1]
    if entry is None or not groups:
        return Compacted(len(files), len(files))
    replaced: set[Path] = set()
    added: list[dict[str, Any]] = []
    for group in groups:
        small = [each for each in group if each.size_bytes < target_bytes * _SMALL]
        if len(small) > 1:
            added += _merge(spark, lake, small, target_bytes)
            replaced |= {each.path for each in small}
    if not replaced:
        return Compacted(len(files), len(files))
    kept = [dict(each.entry) for each in files if each.path not in replaced]
    lines = [json.dumps(each, separators=(",", ":")) for each in (*kept, *added)]
    # Hadoop's local file system compares a file with its checksum only where it has one.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    replace_text(entry, "\n".join(["v1", *lines]))
    return Compacted(len(files), len(kept) + len(added))


def _by_directory(files: Iterable[SinkFile]) -> list[list[SinkFile]]:
    groups: dict[Path, list[SinkFile]] = {}
    for each in files:
        groups.setdefault(each.path.parent, []).append(each)
    return list(groups.values())


def _merge(spark: SparkSession, lake: Lake, small: list[SinkFile], target_bytes: int) -> list[dict[str, Any]]:
    """New files with the rows of `small`, in the same directory; their entries in the list of files."""
    directory = small[0].path.parent
    staging = lake.path / OWN / f"{COMPACTING}{uuid.uuid4().hex}"
    count = max(1, round(sum(each.size_bytes for each in small) / target_bytes))
    rows = spark.read.parquet(*(str(each.path) for each in small))
    ordered = rows.repartitionByRange(count, "partition", "offset") if count > 1 else rows.coalesce(1)
    ordered.sortWithinPartitions("partition", "offset").write.parquet(str(staging))
    entries = []
    for path in sorted(staging.glob("*.parquet")):
        target = directory / f"compacted-{path.name}"
        sync(path)
        os.replace(path, target)
        found = target.stat()
        entries.append(
            {
                "path": target.as_uri(),
                "size": found.st_size,
                "isDir": False,
                "modificationTime": int(time.time() * 1000),
                "blockReplication": 1,
                "blockSize": small[0].entry.get("blockSize", 33554432),
                "action": "add",
            }
        )
    sync(directory)
    shutil.rmtree(staging)
    return entries


FILE_FORMATS: Final = ("parquet", "delta", "iceberg")
ROWS_A_BATCH: Final = 2_000_000
SOURCE: Final = "kalda"
ISOLATION: Final = "kafka.isolation.level"
TIMES: Final = {"kalda.timestamp.overflow": "null"}
"""An option of the source: one record with a timestamp that Spark does not have must not end a query."""
_KEPT: Final = ("topics", "format", "value", "schema", "message", "descriptor", "registry", "key", "until")
"""Settings that a later load may not change."""
STARTS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
"""Options of the source that say where it begins."""
_OWN_OPTIONS: Final = {
    "subscribe": "name the topics as arguments",
    "includeHeaders": "a lake always has the headers",
    "maxOffsetsPerTrigger": "use --rows-a-batch",
    **dict.fromkeys(STARTS, "use --from"),
}
"""Options of the source that a load sets itself, and what to use instead."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What is loaded, from where to where."""

    topics: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the source: `kafka.bootstrap.servers` and the like."""
    format: str = "parquet"
    value: str = "bytes"
    schema: str | None = None
    message: str | None = None
    descriptor: str | None = None
    registry: str | None = None
    """The URL of a schema registry, for avro."""
    key: str = "bytes"
    """bytes or string."""
    since: str = "earliest"
    """earliest, latest, a time, or offsets as {"topic": {"0": 12}}; only of the first load."""
    until: str | None = None
    """A time, or offsets; None: the ends of the topics."""
    rows_a_batch: int = ROWS_A_BATCH
    follow: bool = False
    """Wait for new records, until the process is stopped."""
    every: str = "10 seconds"
    """With `follow`, how often a batch begins."""
    compacts: bool = True
    target_bytes: int = TARGET_BYTES


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one load has done."""

    progress: QueryProgress
    removed: int
    """Files of an earlier load that it had not committed, or that its compaction had replaced."""
    compacted: Compacted


def load(
    spark: SparkSession,
    lake: Lake,
    settings: LoadSettings,
    on_progress: Callable[[QueryProgress], None] = lambda _: None,
) -> LoadResult:
    """Load until the topics' ends of now, `settings.until`, or with `follow` until stopped. Raises `PipelineError`."""
    refuse_options(settings.options, _OWN_OPTIONS)
    check_settings_of_lakes(spark)
    if settings.format not in FILE_FORMATS:
        raise PipelineError(f"format {settings.format}: {', '.join(FILE_FORMATS)} are possible")
    with lake.locked(spark):
        settings = _with_isolation(lake, settings)
        settings, until = _agree(spark, lake, settings)
        is_files = settings.format == "parquet"
        removed = lake.remove_uncommitted() if is_files else 0
        continues_batch = Checkpoint(lake.checkpoint).has_planned_batch()
        progress = QueryProgress()

        def run_query() -> None:
            query = _start(spark, lake, settings, until)
            run(query, on_progress, lambda so_far: _has_reached(so_far, until), progress)

        run_query()
        if continues_batch and ends_after_a_batch(to_the_end=not settings.follow) and progress.stopped_by is None:
            run_query()  # the first one has ended with the batch that an earlier load has planned
        _complete(lake, until)
        compacted = Compacted()
        if is_files and settings.compacts:
            compacted = compact(spark, lake, settings.target_bytes)
        return LoadResult(progress, removed, compacted)


def _with_isolation(lake: Lake, settings: LoadSettings) -> LoadSettings:
    """Records of aborted transactions are none of a lake's, unless the options or what it was begun with say so."""
    known = lake.settings()
    level = "read_committed" if known is None else known.get("isolation", "read_uncommitted")
    return _replace(settings, options={ISOLATION: level, **settings.options})


def _agree(
    spark: SparkSession, lake: Lake, settings: LoadSettings
) -> tuple[LoadSettings, dict[TopicPartition, int] | None]:
    """The settings with which the lake was begun, and the offsets at which the load ends."""
    known = lake.settings()
    given = {name: getattr(settings, name) for name in _KEPT} | {"topics": list(settings.topics)}
    if known is None:
        if not settings.topics:
            raise PipelineError(f"{lake.path} is not a lake yet: name the topics to load")
        if settings.value == "json" and settings.schema in (None, INFER):
            settings = _replace(settings, schema=infer_schema(_sample(spark, settings)))
        if settings.registry is not None and settings.schema is None:
            value_format_of(settings)  # refuses what is not possible with a registry
            settings = _replace(settings, schema=subject_of(settings.registry, settings.topics[0]).newest)
        with TopicQuestions(settings.options) as topics:
            topics.partitions(settings.topics)  # refuses a topic that does not exist, before the lake is begun
            until = _until(topics, settings)
            since = starting_options(settings.since, topics, settings.topics)
        given |= {
            "schema": settings.schema,
            "since": since,
            "bootstrap": settings.options.get("kafka.bootstrap.servers"),
            "isolation": settings.options[ISOLATION],
            "ends": None if until is None else to_json(until),
            "complete": False,
        }
        _rows(spark, settings, given, until)  # refuses a schema that Spark does not take, before the lake is begun
        lake.write_settings(given)
        return settings, until
    if lake.has_lost_its_checkpoint():
        raise PipelineError(f"{lake.path} has records, and its checkpoint was removed: load into a new directory")
    if known.get("complete"):
        raise PipelineError(
            f"{lake.path} was loaded until {known['until']} and is complete: load what comes later into another lake"
        )
    changed = [
        f"{name} is {known.get(name)!r}, not {given[name]!r}"
        for name in _KEPT
        if given[name] not in (known.get(name), None, [], _default(name)) and given[name] != INFER
    ]
    if changed:
        raise PipelineError(f"{lake.path} was begun with other settings: {'; '.join(changed)}")
    merged = {name: known.get(name) for name in _KEPT} | {"topics": tuple(known["topics"])}
    ends = known.get("ends")
    return _replace(settings, **merged), None if ends is None else from_json(ends)


def _default(name: str) -> object:
    return next((each.default for each in LoadSettings.__dataclass_fields__.values() if each.name == name), None)


def _replace(settings: LoadSettings, **changes: Any) -> LoadSettings:
    from dataclasses import replace

    return replace(settings, **changes)


def _sample(spark: SparkSession, settings: LoadSettings) -> DataFrame:
    """Some records of each partition, to infer a schema from."""
    with TopicQuestions(settings.options) as topics:
        ends = topics.ends(settings.topics)
    upto = {partition: min(each.end, each.start + SAMPLE_RECORDS) for partition, each in ends.items()}
    reader = spark.read.format(SOURCE).options(**(TIMES | dict(settings.options)))
    reader = reader.option("subscribe", ",".join(settings.topics))
    return reader.option("endingOffsets", json.dumps(to_json(upto))).load()


def source_options(settings: LoadSettings, known: Mapping[str, Any]) -> dict[str, str]:
    """The options of the streaming source."""
    return {
        **TIMES,
        **settings.options,
        "subscribe": ",".join(settings.topics),
        "includeHeaders": "true",
        **batch_limit(settings.rows_a_batch, to_the_end=not settings.follow),
        **known.get("since", {}),
    }


def rows_of(records: DataFrame, settings: LoadSettings, until: Mapping[TopicPartition, int] | None) -> DataFrame:
    """The lake's rows from the source's records."""
    from pyspark.sql import functions as f

    if until is not None:
        records = _before(records, until)
    rows = with_values(records, value_format_of(settings))
    return rows.select(
        f.when(f.col("reason").isNull(), EVENTS).otherwise(QUARANTINE).alias("table"),
        "topic",
        # Years beyond 9999 have five digits: with such a directory, Spark's readers would take all dates for strings.
        f.expr("if(year(timestamp) BETWEEN 1 AND 9999, to_date(timestamp), NULL)").alias("date"),
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        f.col("key").cast("string").alias("key") if settings.key == "string" else f.col("key"),
        "value",
        "headers",
        "reason",
        "raw",
    )


def value_format_of(settings: LoadSettings) -> ValueFormat:
    """How values are read. Raises `PipelineError`."""
    return ValueFormat(
        settings.value, settings.schema, settings.message, settings.descriptor, settings.registry, settings.topics
    )


def _before(records: DataFrame, until: Mapping[TopicPartition, int]) -> DataFrame:
    """The records before the end of their partition. A join: there may be ten thousand partitions."""
    from pyspark.sql import functions as f

    ends = records.sparkSession.createDataFrame(
        [(topic, partition, offset) for (topic, partition), offset in until.items()],
        "topic string, partition int, _end long",
    )
    return records.join(f.broadcast(ends), ["topic", "partition"]).where("offset < _end").drop("_end")


def _rows(
    spark: SparkSession,
    settings: LoadSettings,
    known: Mapping[str, Any],
    until: Mapping[TopicPartition, int] | None,
) -> DataFrame:
    """The lake's rows as a stream. Raises `PipelineError`."""
    records = spark.readStream.format(SOURCE).options(**source_options(settings, known)).load()
    try:
        return rows_of(records, settings, until)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(f"values as {settings.value}: {first_line(error)}") from error


def _start(
    spark: SparkSession, lake: Lake, settings: LoadSettings, until: dict[TopicPartition, int] | None
) -> StreamingQuery:
    # One task a core writes: else each of the topics' partitions would make a file in each batch.
    rows = _rows(spark, settings, lake.settings() or {}, until).coalesce(_cores(spark))
    writer = rows.writeStream.option("checkpointLocation", str(lake.checkpoint)).queryName(lake.path.name)
    if settings.follow:
        writer = writer.trigger(processingTime=settings.every)
    else:
        writer = writer.trigger(availableNow=True)
    writer = writer.format(settings.format)
    try:
        if settings.format == "iceberg":
            table = _iceberg_table(spark, lake, rows)
            return writer.option("fanout-enabled", "true").toTable(table)
        return writer.partitionBy(*PARTITIONED_BY).start(str(lake.path))
    except Exception as error:
        raise PipelineError(f"{lake.path}: the load cannot start: {first_line(error)}") from error


def _cores(spark: SparkSession) -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:  # Spark Connect: the cores are the server's
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _iceberg_table(spark: SparkSession, lake: Lake, rows: DataFrame) -> str:
    """The name of the lake's table, which is made where it does not exist: Iceberg streams into existing tables only.
    The lake is a catalog of its own, in directories, so that the table can be read by its path."""
    from pyspark.sql import functions as f

    catalog = f"kalda_{hashlib.sha256(str(lake.path).encode()).hexdigest()[:12]}"
    spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", lake.path.as_uri())
    name = f"{catalog}.{RECORDS}"
    if not lake.table_path("iceberg").exists():
        empty = spark.createDataFrame([], rows.schema)
        empty.writeTo(name).using("iceberg").partitionedBy(*(f.col(each) for each in PARTITIONED_BY)).create()
    return name


def _has_reached(progress: QueryProgress, until: Mapping[TopicPartition, int] | None) -> bool:
    return until is not None and all(progress.ends.get(partition, 0) >= end for partition, end in until.items())


def _complete(lake: Lake, until: Mapping[TopicPartition, int] | None) -> None:
    """Mark the lake of a load with an end that has reached it."""
    reached = Checkpoint(lake.checkpoint).committed()
    if until is not None and all(reached.get(partition, 0) >= end for partition, end in until.items()):
        lake.write_settings((lake.settings() or {}) | {"complete": True})


# -- bounds


def starting_options(since: str, topics: TopicQuestions, names: tuple[str, ...]) -> dict[str, str]:
    """The source's options for the start. Raises `PipelineError`."""
    if since in ("earliest", "latest"):
        return {"startingOffsets": since}
    if since.lstrip().startswith("{"):
        return {"startingOffsets": _every_partition(since, topics, names)}
    milliseconds = parse_moment_ms(since)
    if milliseconds is None:
        raise PipelineError(
            f"start {since!r}: earliest, latest, a time such as 2026-01-31T12:00 or offsets as JSON are possible"
        )
    return {"startingTimestamp": str(milliseconds), "startingOffsetsByTimestampStrategy": "latest"}


def _every_partition(text: str, topics: TopicQuestions, names: tuple[str, ...]) -> str:
    """Offsets as JSON, with the earliest of each partition that they do not name."""
    given, partitions = _offsets(text), topics.partitions(names)
    _refuse_others(given, partitions)
    return json.dumps(to_json({one: given.get(one, int(OffsetSpec.EARLIEST)) for one in partitions}))


def _refuse_others(given: Collection[TopicPartition], partitions: Collection[TopicPartition]) -> None:
    others = sorted(set(given) - set(partitions))
    if others:
        raise PipelineError(f"offsets of {others[0]}: it is no partition of the topics that are loaded")


def _offsets(text: str) -> dict[TopicPartition, int]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"offsets {text[:200]!r} are not JSON: {error}") from None
    return from_json(parsed)


def _until(topics: TopicQuestions, settings: LoadSettings) -> dict[TopicPartition, int] | None:
    if settings.until is None:
        return None
    ends = topics.ends(settings.topics)
    if settings.until.lstrip().startswith("{"):
        given = _offsets(settings.until)
        _refuse_others(given, ends)
        if min(given.values()) < 0:
            raise PipelineError(f"end {settings.until!r}: offsets are 0 or more")
        return {partition: min(given.get(partition, each.end), each.end) for partition, each in ends.items()}
    milliseconds = parse_moment_ms(settings.until)
    if milliseconds is None:
        raise PipelineError(f"end {settings.until!r}: a time such as 2026-01-31T12:00 or offsets as JSON are possible")
    found = topics.offsets_at(list(ends), milliseconds)
    return {partition: found[partition] if found[partition] >= 0 else each.end for partition, each in ends.items()}


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Raises `PipelineError`."""
    try:
        found = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        found = {}
    if not found or not all(int(OffsetSpec.EARLIEST) <= offset < 2**63 for offset in found.values()):
        raise PipelineError(f'offsets {str(offsets)[:200]!r}: such as {{"topic": {{"0": 12}}}} are expected')
    return found


def totals(spark: SparkSession, lake: Lake) -> list[dict[str, Any]]:
    """For each topic and table of a Parquet lake: partitions, offsets, rows, files and bytes."""
    from pyspark.sql import functions as f

    files = lake.files()
    if not files:
        return []
    rows = (
        lake.rows(spark)
        .groupBy("topic", "table", "partition")
        .agg(f.count("*").alias("rows"), f.min("offset").alias("first"), f.max("offset").alias("last"))
    )
    found = [row.asDict() for row in rows.orderBy("topic", "table", "partition").collect()]
    for row in found:
        mine = [each for each in files if f"/table={row['table']}/topic={row['topic']}/" in str(each.path)]
        row["files"], row["bytes"] = len(mine), sum(each.size_bytes for each in mine)
    return found
