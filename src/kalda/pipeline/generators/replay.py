"""A table or files into a topic, in order, resumable.

The rows are spread over lanes, as many as the topic has partitions: a row's lane is its own partition, or is computed
from its key. Each lane is written by one task, in order, with a transactional producer of its own. A transaction has
some thousand rows and commits how many rows of the lane are written, as an offset of the replay's group. So a replay
that is run again under the same name continues behind the last committed row of each lane: no row is lost or written
twice, provided that the table has not changed. The offset's metadata says how rows were spread and ordered; a replay
that would spread or order them otherwise is refused, since other rows would be behind that offset.

Within a lane rows are in the order of the columns that are given, by default partition and offset; equal ones in the
order of a hash of what is written, so that they are in the same order each time.

Not obvious:

- A replay is no project: Spark's streams of a table have its files in the order of commits, and a batch in one
  transaction. Rows in the order of their columns, over the whole table and continued within it, need a batch query.
- A replay reads its committed offset after `init_transactions`, which ends what a task that died has left open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.base.configs.admin import ADMIN
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import producer_config
from kalda.client.admin.admin_client import Admin
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.pipeline.formats.values import RESCUED
from kalda.pipeline.session import PipelineError
from kalda.pipeline.topics import TopicQuestions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_SENT: Final = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Where rows go, and in which order."""

    topic: str
    name: str
    """Of this replay: its group is `kalda-replay-NAME`."""
    options: Mapping[str, str]
    """Of the source: `kafka.bootstrap.servers` and the like."""
    order_by: tuple[str, ...] = ("partition", "offset")
    keeps_partitions: bool = True
    """A row goes to the partition that it names; else to that of its key."""

    @property
    def group(self) -> str:
        return f"kalda-replay-{self.name}"

    def layout(self, partitions: int) -> str:
        """How rows are spread over lanes and ordered in them, where the topic has so many partitions."""
        lanes = "partition" if self.keeps_partitions else f"key of {partitions}"
        return json.dumps({"lanes": lanes, "by": self.order_by}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a run has written."""

    written: int
    skipped: int
    """Rows that an earlier run had written."""


def replay(rows: DataFrame, settings: ReplaySettings) -> Replayed:
    """Write the rows: columns value, and where there are any key, timestamp, headers, partition. Objects and lists are
    written as JSON, such as the values of a lake that was loaded as JSON. Raises `PipelineError`."""
    from pyspark.sql import functions as f

    config = _client_options(settings.options)
    missing = [name for name in ("value", *settings.order_by) if name not in rows.columns]
    if missing:
        raise PipelineError(f"the table has no column {', '.join(missing)}; it has {', '.join(rows.columns)}")
    with TopicQuestions(settings.options) as topics:
        count = len(topics.partitions([settings.topic]))
    _refuse_another_layout(settings, config, count)
    rows = _encodable(rows)
    if settings.keeps_partitions:
        if "partition" not in rows.columns:
            raise PipelineError("the table has no column partition: let the keys choose the partitions")
        is_there = f.coalesce(f.col("partition").between(0, count - 1), f.lit(False))
        others = rows.where(~is_there).select("partition").head(1)
        if others:
            raise PipelineError(
                f"the table has rows of partition {others[0][0]}, and topic {settings.topic} has {count} partitions: "
                f"add partitions, or let the keys choose"
            )
        lane = f.col("partition").cast("int")
    else:
        lane = f.expr(f"pmod(xxhash64(key), {count})").cast("int") if "key" in rows.columns else f.lit(0)
    sent = [name for name in _SENT if name in rows.columns]
    tie = f.xxhash64(*sent)
    chosen = rows.select(*sent, *(f.col(name).alias(f"_by_{name}") for name in settings.order_by), lane.alias("_lane"))
    order = [f"_by_{name}" for name in settings.order_by]
    ordered = chosen.repartitionByRange(count, "_lane").sortWithinPartitions("_lane", *order, tie)
    write = _writer(settings, config, settings.layout(count))
    done = ordered.select(*sent, "_lane").mapInArrow(write, "lane int, written long, skipped long").collect()
    return Replayed(sum(row["written"] for row in done), sum(row["skipped"] for row in done))


def _client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The producers' configuration. Raises `PipelineError` for options that would have no effect."""
    others = [name for name in options if not name.startswith("kafka.")]
    if others:
        raise PipelineError(f"option {others[0]}: a replay has the options of a producer, which begin with kafka.")
    config = {name.removeprefix("kafka."): value for name, value in options.items()}
    try:
        producer_config(dict(config), {"transactional_id": "checked"})
    except InvalidConfig as error:
        raise PipelineError(f"options kafka.*: {error.message}") from None
    return config


def _admin(config: Mapping[str, str]) -> Admin:
    """A client with those of a producer's keys that it has."""
    return Admin(keys_of(ADMIN, config))


def _encodable(rows: DataFrame) -> DataFrame:
    """The rows with key and value as bytes or text. Raises `PipelineError` for types that are no bytes of a record."""
    from pyspark.sql import functions as f

    for name in ("key", "value"):
        if name not in rows.columns:
            continue
        kind = rows.schema[name].dataType
        if kind.typeName() in ("struct", "array", "map", "variant"):
            is_rescued = name == "value" and RESCUED in rows.columns
            rows = rows.withColumn(name, _with_rescued(f.to_json(name)) if is_rescued else f.to_json(name))
        elif kind.typeName() not in ("binary", "string"):
            raise PipelineError(
                f"column {name} is {kind.simpleString()}: bytes, text, or objects for JSON are expected"
            )
    return rows


def _with_rescued(text: Column) -> Column:
    """The object with the fields that its lake's schema does not have. A field of both is in the latter whole."""
    from pyspark.sql import functions as f

    rescued, members = f.col(RESCUED), "map<string,variant>"
    keys = f.json_object_keys(rescued)
    of_schema = f.map_filter(f.from_json(text, members), lambda key, _: ~f.array_contains(keys, key))
    both = f.to_json(f.map_concat(of_schema, f.from_json(rescued, members)))
    return f.when(rescued.isNull(), text).when(f.size(of_schema) == 0, rescued).otherwise(both)


def _refuse_another_layout(settings: ReplaySettings, config: Mapping[str, str], partitions: int) -> None:
    """Raises `PipelineError` where an earlier run of this name has spread or ordered the rows otherwise."""
    with _admin(config) as admin:
        found = admin.list_group_offsets(settings.group).check()
    for partition, committed in found.succeeded.items():
        if partition.topic == settings.topic and committed.metadata not in ("", settings.layout(partitions)):
            raise PipelineError(
                f"replay {settings.name} was begun with {committed.metadata}, and now has "
                f"{settings.layout(partitions)}: rows would be lost or written twice. Give the order and the lanes "
                f"that it was begun with; where partitions were added, write all rows to a new topic under another name"
            )


def _writer(
    settings: ReplaySettings, config: Mapping[str, str], layout: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a task runs over its rows."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        lane: _Lane | None = None
        try:
            for batch in batches:
                for number, part in _by_lane(batch):
                    if lane is None or lane.number != number:
                        if lane is not None:
                            yield lane.result(pa)
                            lane.close()
                        lane = _Lane(settings, config, number, layout)
                    lane.write(part)
            if lane is not None:
                yield lane.result(pa)
        finally:
            if lane is not None:
                lane.close()

    return write


def _by_lane(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each lane in a batch that is sorted by lane."""
    lanes: Sequence[int] = batch.column("_lane").to_pylist()
    start = 0
    while start < len(lanes):
        end = start
        while end < len(lanes) and lanes[end] == lanes[start]:
            end += 1
        yield lanes[start], batch.slice(start, end - start).drop_columns(["_lane"])
        start = end


class _Lane:
    """One lane's producer, in a task."""

    def __init__(self, settings: ReplaySettings, config: Mapping[str, str], number: int, layout: str) -> None:
        from kalda.client.producer.producer import Producer

        self.number = number
        self._layout = layout
        self._settings = settings
        self._config = dict(config)
        transactional_id = f"{settings.group}-{settings.topic}-{number}"
        self._producer = Producer(self._config | {"transactional.id": transactional_id})
        # Ends a transaction that a dead task has left, and fences a task that still runs. After that the offset stands.
        self._producer.init_transactions()
        self._done = self._committed()
        self._skipped = self._written = 0

    def _committed(self) -> int:
        from kalda.base.ids import TopicPartition

        partition = TopicPartition(self._settings.topic, self.number)
        with _admin(self._config) as admin:
            found = admin.list_group_offsets(self._settings.group, [partition]).check()
        return found.value(partition).offset if partition in found else 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows that are not written yet, in one transaction."""
        skip = min(rows.num_rows, self._done - self._skipped)
        self._skipped += skip
        rows = rows.slice(skip)
        if not rows.num_rows:
            return
        topic = self._settings.topic
        place: dict[str, Any] = {"partition": self.number} if self._settings.keeps_partitions else {}
        with self._producer.transaction():
            self._producer.send_batch(topic, rows, **place)
            at = OffsetAndEpoch(self._done + self._written + rows.num_rows, -1, self._layout)
            self._producer.send_offsets_to_transaction({(topic, self.number): at}, self._settings.group)
        self._written += rows.num_rows

    def result(self, pa: Any) -> pa.RecordBatch:
        types = {"lane": pa.int32(), "written": pa.int64(), "skipped": pa.int64()}
        row = {"lane": self.number, "written": self._written, "skipped": self._skipped}
        return pa.RecordBatch.from_pylist([row], schema=pa.schema(list(types.items())))

    def close(self) -> None:
        self._producer.close()
