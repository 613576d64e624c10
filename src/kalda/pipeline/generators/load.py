"""Topics into a table, exactly once: `kalda pipeline load` writes a project with one table, and runs it.

The table `records` has every record: with a value of the declared format where its column `table` is `events`, and as
bytes, with the reason, where that is `quarantine`. A batch's good and bad records are one commit of Delta, which has
the batch's identity and its offsets too: a load that ends at any moment continues with the batch that was not
committed.

What a load was started with (topics, value format, schema, bounds) is kept; a later load may leave these out and may
not change them. The end of a load with an end is in the options of its source, so that nothing behind it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from kalda.base.ids import TopicPartition
from kalda.base.texts import parse_moment_ms
from kalda.pipeline.engine.engine import RunOptions, RunResult
from kalda.pipeline.engine.runs import FlowReport
from kalda.pipeline.formats.registry import subject_of
from kalda.pipeline.formats.values import INFER, RESCUED, SAMPLE_RECORDS, ValueFormat, infer_schema, with_values
from kalda.pipeline.generators.generated import GeneratedDirectory, GeneratedProject, decoded_text, literal
from kalda.pipeline.projects.specification import Specification, read_specification
from kalda.pipeline.session import PipelineError, first_line, refuse_options
from kalda.pipeline.topics import TopicQuestions
from kalda.spark import starting_after
from kalda.spark.options import EARLIEST_OFFSET, STOP, OptionError, by_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = "records"
EVENTS: Final = "events"
QUARANTINE: Final = "quarantine"
ROWS_A_BATCH: Final = 2_000_000
SOURCE: Final = "kalda"
ISOLATION: Final = "kafka.isolation.level"
TIMES: Final = {"kalda.timestamp.overflow": "null"}
"""An option of the source: one record with a timestamp that Spark does not have must not end a query."""
_KEPT: Final = ("topics", "value", "schema", "message", "descriptor", "registry", "key", "until")
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
    STOP: "use --until",
    **dict.fromkeys(STARTS, "use --from"),
}
"""Options of the source that a load sets itself, and what to use instead."""
_TEXT: Final = '''\
"""Topics into the table `records`, each record once. Written by `kalda pipeline load`."""

from pyspark import pipelines as dp

from kalda.pipeline import decoded

OPTIONS = {options}


@dp.table(name="records", partition_cols=["table", "topic", "date"])
def load():
    records = spark.readStream.format("kalda").options(**OPTIONS).load()
    return {decoded}.selectExpr(
        "if(reason IS NULL, 'events', 'quarantine') AS table",
        "topic",
        "if(year(timestamp) BETWEEN 1 AND 9999, to_date(timestamp), NULL) AS date",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        {key},
        {columns},
        "headers",
        "reason",
        "raw",
    )
'''


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What is loaded, from where to where."""

    topics: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the source: `kafka.bootstrap.servers` and the like."""
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
    every: str = "10 seconds"
    """Of a load that follows its topics: how often a batch begins."""

    @property
    def value_format(self) -> ValueFormat:
        """Raises `PipelineError`."""
        return ValueFormat(self.value, self.schema, self.message, self.descriptor, self.registry, self.topics)


@dataclass(frozen=True, slots=True)
class Load:
    """A load whose bounds are offsets."""

    settings: LoadSettings
    bounds: Mapping[str, str]
    """Options of the source: where it begins and ends."""

    @property
    def needs_schema(self) -> bool:
        return self.settings.value == "json" and self.settings.schema in (None, INFER)

    def with_schema(self, spark: SparkSession) -> Load:
        """With a schema of JSON that is inferred from some records of each partition."""
        with TopicQuestions(self.settings.options) as topics:
            ends = topics.ends(self.settings.topics)
        upto = {partition: min(each.end, each.start + SAMPLE_RECORDS) for partition, each in ends.items()}
        reader = spark.read.format(SOURCE).options(**(TIMES | dict(self.settings.options)))
        reader = reader.option("subscribe", ",".join(self.settings.topics))
        sample = reader.option("endingOffsets", starting_after(upto)).load()
        return replace(self, settings=replace(self.settings, schema=infer_schema(sample)))

    @property
    def options(self) -> dict[str, str]:
        """Of the source."""
        return {
            **TIMES,
            ISOLATION: "read_committed",
            **self.settings.options,
            "subscribe": ",".join(self.settings.topics),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self.settings.rows_a_batch),
            **self.bounds,
        }

    def check(self, spark: SparkSession) -> None:
        """Raises `PipelineError` where Spark does not take the schema."""
        rows = spark.readStream.format(SOURCE).options(**self.options).load()
        try:
            with_values(rows, self.settings.value_format)
        except PipelineError:
            raise
        except Exception as error:
            raise PipelineError(f"values as {self.settings.value}: {first_line(error)}") from error

    def project(self, name: str, tuning: Mapping[str, str] | None = None) -> GeneratedProject:
        """`tuning`: options of the source that are of the process, not of the load. Raises `PipelineError`."""
        settings = self.settings
        options = {**(tuning or {}), **self.options}
        given = settings.value_format
        columns = ["value", RESCUED] if given.has_rescued else ["value"]
        return GeneratedProject(
            name,
            "load",
            _TEXT.format(
                options=literal(options),
                decoded=decoded_text("records", given),
                key=literal("CAST(key AS string) AS key" if settings.key == "string" else "key"),
                columns=",\n        ".join(map(literal, columns)),
            ),
            {"spark.sql.warehouse.dir": ".", "spark.sql.session.timeZone": "UTC", "kalda.trigger": settings.every},
        )


class Lake(GeneratedDirectory):
    """A directory that `load` fills."""

    def __init__(self, given: Any) -> None:
        super().__init__(given, "load", "lake", RECORDS)

    def frame(self, spark: SparkSession, table: str = EVENTS) -> DataFrame:
        """Its events, or what is in quarantine."""
        return self.rows(spark).where(f"table = '{table}'").drop("table")

    def agreed(self, settings: LoadSettings) -> Load:
        """The load that was begun, or with these settings a new one. Raises `PipelineError`."""
        refuse_options(settings.options, _OWN_OPTIONS)
        known = self.state()
        if known is not None:
            return self._continued(known, settings)
        if not settings.topics:
            raise PipelineError(f"{self.path} is not a lake yet: name the topics to load")
        if settings.registry is not None and settings.schema is None:
            settings.value_format  # noqa: B018  # refuses what is not possible with a registry
            subject = subject_of(settings.registry, f"{settings.topics[0]}-value")
            settings = replace(settings, schema=subject.newest.text)
        if settings.value != "json" or settings.schema is not None:
            settings.value_format  # noqa: B018
        with TopicQuestions({ISOLATION: "read_committed", **settings.options}) as topics:
            topics.partitions(settings.topics)  # refuses a topic that does not exist, before the lake is begun
            bounds = starting_options(settings.since, topics, settings.topics)
            if (stops := _until(topics, settings)) is not None:
                bounds[STOP] = starting_after(stops)
        return Load(settings, bounds)

    def _continued(self, known: Mapping[str, Any], settings: LoadSettings) -> Load:
        if self._has_lost_its_checkpoint():
            raise PipelineError(f"{self.path} has records, and its checkpoint was removed: load into a new directory")
        defaults = LoadSettings(())
        changed = [
            f"{name} is {known.get(name)!r}, not {given!r}"
            for name in _KEPT
            if (given := _plain(getattr(settings, name))) not in (known[name], _plain(getattr(defaults, name)), INFER)
        ]
        if changed:
            raise PipelineError(f"{self.path} was begun with other settings: {'; '.join(changed)}")
        kept = {name: known[name] for name in _KEPT} | {"topics": tuple(known["topics"])}
        options = {**known["options"], **settings.options}
        return Load(replace(settings, **kept, options=options), known["bounds"])

    def _has_lost_its_checkpoint(self) -> bool:
        """Whether there are rows, and nothing says up to which offsets: a load would append all of them again."""
        checkpoint = read_specification(self.path).checkpoint(RECORDS)
        commits = (self.table / "_delta_log").glob("[0-9]*.json")
        return not (checkpoint / "offsets").exists() and any(int(each.stem) for each in commits)

    def load(
        self,
        spark: SparkSession,
        load: Load,
        tuning: Mapping[str, str] | None = None,
        show: Callable[[FlowReport], None] = lambda _: None,
        *,
        follow: bool = False,
    ) -> tuple[FlowReport, RunResult]:
        """Load up to the ends of the topics or of the load, or with `follow` until stopped; while `alone`. Raises
        `PipelineError`."""
        if load.needs_schema:
            load = load.with_schema(spark)
        if self.state() is None:
            load.check(spark)
        spark.conf.set("spark.sql.session.timeZone", "UTC")  # of dates
        return self.run(spark, self.begin(load, tuning), RunOptions(follow), show)

    def begin(self, load: Load, tuning: Mapping[str, str] | None = None) -> Specification:
        """Write the load's project, while `alone`."""
        state = {name: _plain(getattr(load.settings, name)) for name in _KEPT}
        state |= {"options": dict(load.settings.options), "bounds": dict(load.bounds)}
        return self.write(load.project(self.path.name or "lake", tuning), state)

    def totals(self, spark: SparkSession) -> list[dict[str, Any]]:
        """For each topic and table: partitions, offsets, rows, files and bytes."""
        from pyspark.sql import functions as f

        if not (self.table / "_delta_log").exists():
            return []
        rows = self.rows(spark)
        counted = rows.groupBy("topic", "table", "partition").agg(
            f.count("*").alias("rows"), f.min("offset").alias("first"), f.max("offset").alias("last")
        )
        files = rows.select("topic", "table", "_metadata.file_path", "_metadata.file_size").distinct()
        sizes = files.groupBy("topic", "table").agg(f.count("*").alias("files"), f.sum("file_size").alias("bytes"))
        found = counted.join(f.broadcast(sizes), ["topic", "table"]).orderBy("topic", "table", "partition")
        return [row.asDict() for row in found.collect()]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


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
    given, partitions = offsets_of("from", text, EARLIEST_OFFSET), topics.partitions(names)
    _refuse_others(given, partitions)
    return starting_after({one: given.get(one, EARLIEST_OFFSET) for one in partitions})


def _refuse_others(given: Collection[TopicPartition], partitions: Collection[TopicPartition]) -> None:
    others = sorted(set(given) - set(partitions))
    if others:
        raise PipelineError(f"offsets of {others[0]}: it is no partition of the topics that are loaded")


def offsets_of(name: str, text: str, lowest: int) -> dict[TopicPartition, int]:
    """Raises `PipelineError` with the `name` of what is given."""
    try:
        return by_partition(name, text, lambda offset: offset >= lowest, f"offsets from {lowest} on")
    except OptionError as error:
        raise PipelineError(str(error)) from None


def _until(topics: TopicQuestions, settings: LoadSettings) -> dict[TopicPartition, int] | None:
    if settings.until is None:
        return None
    ends = topics.ends(settings.topics)
    if settings.until.lstrip().startswith("{"):
        given = offsets_of("until", settings.until, 0)
        _refuse_others(given, ends)
        return {partition: min(given.get(partition, each.end), each.end) for partition, each in ends.items()}
    milliseconds = parse_moment_ms(settings.until)
    if milliseconds is None:
        raise PipelineError(f"end {settings.until!r}: a time such as 2026-01-31T12:00 or offsets as JSON are possible")
    found = topics.offsets_at(list(ends), milliseconds)
    return {partition: found[partition] if found[partition] >= 0 else each.end for partition, each in ends.items()}
