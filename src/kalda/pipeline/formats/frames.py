"""Decoding functions for definition files: a frame of the source's records in, one with columns of values out.

    from kalda.pipeline import debezium, decoded, expect_or_drop

    @dp.table
    @expect_or_drop("decoded", "reason IS NULL")
    def orders():
        rows = decoded(topic("orders"), "registry", registry="http://localhost:8081", subject="orders-value")
        return rows.select("value.*", "_rescued", "raw", "reason", "headers")

Nothing is read until a query runs, but the registry's schemas and, for Debezium's, a topic's last records.
The columns of Debezium's rows are those of today: the last records are read from each partition, each with its schema
as Kafka Connect's JsonConverter writes it; a column of several partitions has the type of the latest record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from kalda.base.configs.consumer import CONSUMER
from kalda.base.errors import ApiError, KafkaError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.consumer import Consumer
from kalda.pipeline.formats.values import RESCUED, ValueFormat, names_beside, schema_text, with_values
from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.tables.contracts import quoted
from kalda.spark.options import CONNECTION, connected, connection_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NEW_FIELDS: Final = ("rescue", "restart")
_ROWS: Final = ("c", "r", "u", "d")
"""Debezium's operations on one row: create, read (of a snapshot), update, delete."""
_PARTS: Final = "before string, after string, op string"
_CHANGE: Final = "_kalda_change"
_WHOLE: Final = "_kalda_whole"
_KAFKA: Final = "kafka."


def decoded(
    frame: DataFrame,
    format: str,  # noqa: A002 - as in Spark's own functions
    *,
    column: str = "value",
    schema: str | None = None,
    message: str | None = None,
    descriptor: str | None = None,
    registry: str | None = None,
    connection: str | None = None,
    subject: str | None = None,
    new_fields: str = "rescue",
) -> DataFrame:
    """The records with `column` (`value` or `key`) decoded, lazily; every record stays a row. One that cannot be
    decoded has null there, its bytes in `raw`, and in `reason` a sentence; what a value has beyond its columns is in
    `_rescued`, as JSON. With `key`, these are `key_raw`, `key_reason`, `key_rescued`.

    - `string`
    - `json`: `schema` is columns as in `CREATE TABLE`, or a file
    - `avro`: `schema` is JSON, or a file
    - `protobuf`: `message` is the message's name, `descriptor` the file that `protoc --include_imports
      --descriptor_set_out` has written
    - `registry`: Avro, Protobuf or JSON, each value by the schema whose id it begins with, into the columns of the
      newest schema of `subject` in the schema registry at the URL `registry`, or that of the profile `connection`
      (`schema.registry.url`, `basic.auth.user.info`). `schema` is other columns: of Avro or,
      with JSON Schema, as in `CREATE TABLE`. With `new_fields="restart"`, a value of a later schema with fields more
      fails the query; Kalda's engine starts the flow again, with columns for them. Else they are in `_rescued`.

    Raises `PipelineError` where the format lacks something, or the registry does; `Unavailable` where the registry does
    not answer."""
    if column not in frame.columns:
        raise PipelineError(f"decoded: there is no column {column}; there are {', '.join(frame.columns)}")
    if format == "registry" and subject is None:
        raise PipelineError("decoded: name the subject of the schema registry, such as subject='orders-value'")
    wanted = ValueFormat(
        name=format,
        schema=schema_text(schema),
        message=message,
        descriptor=descriptor,
        registry=registry if connection is None else _registry_of(connection),
        subject=subject,
        ends_at_new=_ends_at_new(new_fields),
    )
    return with_values(frame, wanted, column)


def debezium(
    frame: DataFrame,
    format: str = "json",  # noqa: A002
    *,
    schema: str | None = None,
    registry: str | None = None,
    connection: str | None = None,
    subject: str | None = None,
    new_fields: str = "rescue",
) -> DataFrame:
    """The changes of rows that Debezium has written: in `value` the row (of a delete: the one before, of which Debezium
    may have the key alone), in `op` c, r, u or d, in `deleted` whether the row is no more; `raw`, `reason` and
    `_rescued` as with `decoded`. Tombstones, which follow deletes, are left out.

    - `json`: Connect's JsonConverter. `schema`: the row's columns as in `CREATE TABLE`, with comments that say how a
      decimal or a time is encoded. None: those of the topic's last records, which then have their schema with them
      (`schemas.enable`); with `new_fields="restart"`, a later record with a column more fails the query, and Kalda's
      engine starts the flow again.
    - `registry`: as with `decoded`.

    Raises as `decoded` does."""
    from pyspark.sql import functions as f

    ends_at_new = _ends_at_new(new_fields)
    frame = frame.where("value IS NOT NULL")
    if format == "registry":
        rows = decoded(
            frame,
            format,
            schema=schema,
            registry=registry,
            connection=connection,
            subject=subject,
            new_fields=new_fields,
        )
        names = rows.schema["value"].dataType.names  # type: ignore[attr-defined]
        missing = [name for name in ("before", "after", "op") if name not in names]
        if missing:
            raise PipelineError(f"debezium: the schema of {subject} is no envelope of Debezium: it has no {missing[0]}")
        op = f.col("value.op")
        row = f.when(op == "d", f.col("value.before")).otherwise(f.col("value.after"))
        return _judged(rows.withColumn(_WHOLE, f.lit(None).cast("binary")), row, op)
    if format != "json":
        raise PipelineError(f"debezium: format {format}: json and registry are possible")
    ends: Mapping[int, int] = {}
    if schema is None:
        kafka, topic = _topic_of(frame)
        latest = latest_columns(kafka, topic)
        schema, ends = latest.schema, latest.ends
    parts = f.from_json(f.col("value").cast("string"), f"payload struct<{_PARTS}>, {_PARTS}")
    frame = frame.withColumns({_WHOLE: f.col("value"), _CHANGE: parts})
    part = {
        name: f.coalesce(f.col(f"{_CHANGE}.payload.{name}"), f.col(f"{_CHANGE}.{name}"))
        for name in ("before", "after", "op")
    }
    row = f.when(part["op"] == "d", part["before"]).otherwise(part["after"])
    rows = with_values(frame.withColumn("value", row.cast("binary")), ValueFormat("json", str(schema_text(schema))))
    if ends_at_new and ends:
        rows = rows.withColumn("value", _or_new_fields(f.col("value"), ends))
    return _judged(rows, f.col("value"), part["op"]).drop(_CHANGE)


def _judged(rows: DataFrame, row: Column, op: Column) -> DataFrame:
    """The row, `op` and `deleted`; a reason where there is no row. `_kalda_whole` has the bytes of the record, where
    `raw` has those of a part."""
    from pyspark.sql import functions as f

    raw, why, _ = names_beside("value")
    is_known = f.coalesce(op.isin(*_ROWS), f.lit(False))
    reason = (
        f.when(f.col(why).isNotNull(), f.col(why))
        .when(op.isNull(), "the value is no change of Debezium: it has no op")
        .when(~is_known, f.concat(f.lit("op "), op, f.lit(f" is no change of a row; these are {', '.join(_ROWS)}")))
        .when(row.isNull(), "the change has no row")
    )
    whole = f.coalesce(f.col(_WHOLE), f.col(raw))
    names = [name for name in rows.columns if name not in (_WHOLE, "value", raw, why)]
    return rows.select(
        *(f.col(f"`{name}`") for name in names if name != RESCUED),
        f.when(reason.isNull(), row).alias("value"),
        op.alias("op"),
        (op == "d").alias("deleted"),
        RESCUED,
        f.when(reason.isNotNull(), whole).alias(raw),
        reason.alias(why),
    )


def _ends_at_new(new_fields: str) -> bool:
    if new_fields not in _NEW_FIELDS:
        raise PipelineError(f"new_fields is {new_fields!r}; there are {', '.join(_NEW_FIELDS)}")
    return new_fields == "restart"


def _or_new_fields(value: Column, ends: Mapping[int, int]) -> Column:
    """The value; of a record behind those that the columns were taken from, an error where it has fields more."""
    from pyspark.sql import functions as f

    end = f.create_map(*(f.lit(each) for pair in ends.items() for each in pair))[f.col("partition")]
    is_new = f.col(RESCUED).isNotNull() & (f.col("offset") >= f.coalesce(end, f.lit(0)))
    names = f.concat_ws(", ", f.json_object_keys(RESCUED))
    text = f.concat(f.lit("a change has columns that are newer than those of the flow: "), names,
                    f.lit(". Started again, the flow has columns for them"))  # fmt: skip
    return f.when(is_new, f.raise_error(text)).otherwise(value)


def _registry_of(connection: str) -> str:
    """The URL of a profile's schema registry, with user and password. Raises `PipelineError`."""
    keys = connection_of({CONNECTION: connection})
    url, user = keys.get("schema.registry.url"), keys.get("basic.auth.user.info")
    if url is None:
        raise PipelineError(f"the profile {connection} has no schema.registry.url")
    if user is None:
        return url
    parts = urlsplit(url)
    name, _, password = user.partition(":")
    host = f"{quote(name, safe='')}:{quote(password, safe='')}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _topic_of(frame: Any) -> tuple[dict[str, str], str]:
    """The consumer's keys and the topic of a frame that reads one topic. Raises `PipelineError`."""
    options = {name.lower(): value for name, value in connected((sources_of(frame) or [{}])[0], CONSUMER).items()}
    topic = options.get("subscribe", "")
    if not topic or "," in topic:
        raise PipelineError("debezium: give the columns (schema=...); they are found where the frame reads one topic")
    return {name[len(_KAFKA) :]: value for name, value in options.items() if name.startswith(_KAFKA)}, topic


def sources_of(frame: Any) -> list[dict[str, str]]:
    """The options of each source that the plan of a frame reads by itself: topics, files."""
    java = getattr(frame, "_jdf", None)
    if java is None:  # of Spark Connect
        return [_options_in(frame._plan)]
    found: list[dict[str, str]] = []
    leaves = java.queryExecution().analyzed().collectLeaves()
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        match leaf.getClass().getSimpleName():
            case "StreamingRelationV2":
                found.append(dict(leaf.extraOptions().asCaseSensitiveMap()))
            case "DataSourceV2Relation" | "DataSourceV2ScanRelation":
                found.append(dict(leaf.options().asCaseSensitiveMap()))
            case "StreamingRelation":
                path = leaf.dataSource().options().get("path")
                found += [{"path": path.get()}] if path.isDefined() else []
    return found


def _options_in(plan: Any) -> dict[str, str]:
    while plan is not None:
        options = getattr(plan, "_options", None)
        if options:
            return dict(options)
        plan = getattr(plan, "_child", None)
    return {}


# -- columns of Debezium

_LAST: Final = 100
"""Records of a partition that are looked at: the last ones may be tombstones or markers of transactions."""
_TIMEOUT_S: Final = 30.0
_PLAIN: Final = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}
_NAMED: Final = {
    "io.debezium.time.Date": ("date", "days"),
    "org.apache.kafka.connect.data.Date": ("date", "days"),
    "io.debezium.time.Timestamp": ("timestamp", "millis"),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", "millis"),
    "io.debezium.time.MicroTimestamp": ("timestamp", "micros"),
    "io.debezium.time.NanoTimestamp": ("timestamp", "nanos"),
    "io.debezium.time.ZonedTimestamp": ("timestamp", None),
}
"""The column's type, and how JSON encodes it (see `json_values`)."""
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DIGITS: Final = 38
_MAX_DEPTH: Final = 50


@dataclass(frozen=True, slots=True)
class LatestColumns:
    """What the last records of a topic have."""

    schema: str
    """As in `CREATE TABLE`, with comments that say how JSON encodes a value."""
    ends: Mapping[int, int]
    """By partition: the offset behind the record that its schema was taken from; 0 where none was."""


def latest_columns(kafka: Mapping[str, str], topic: str) -> LatestColumns:
    """Read them. `kafka`: of a consumer, by Kafka's keys. Raises `PipelineError`, `Unavailable`."""
    fields: dict[str, str] = {}
    ends: dict[int, int] = {}
    try:
        with Consumer({**kafka, "enable.auto.commit": "false", "auto.offset.reset": "none"}) as consumer:
            partitions = [TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic).partitions]
            found = [(each, *last) for each in partitions if (last := _last(consumer, each)) is not None]
    except (ApiError, TimeoutError) as error:
        raise Unavailable(f"topic {topic} has not been read: {error}") from error
    except KafkaError as error:
        raise PipelineError(f"topic {topic} cannot be read: {error}") from error
    for partition, offset, _, row in sorted(found, key=lambda one: one[2]):
        fields |= {str(field.get("field")): _column(field, 0) for field in row}
        ends[partition.partition] = offset + 1
    if not fields:
        raise PipelineError(
            f"topic {topic} has no change of Debezium with a schema among the last {_LAST} records of its partitions: "
            f"give the columns (schema=...), or set value.converter.schemas.enable=true in Connect"
        )
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())
    return LatestColumns(schema, {each.partition: ends.get(each.partition, 0) for each in partitions})


def _last(consumer: Consumer[Any, Any], partition: TopicPartition) -> tuple[int, int, list[Any]] | None:
    """Offset, time and columns of the last record with a schema."""
    consumer.assign([partition])
    (start,), (end,) = (each(partition).values() for each in (consumer.beginning_offsets, consumer.end_offsets))
    consumer.seek(partition, max(start, end - _LAST))
    found = None
    while consumer.position(partition) < end:
        records = consumer.poll(_TIMEOUT_S)
        if not records:
            raise TimeoutError(f"no record of {partition} within {_TIMEOUT_S:.0f} s")
        for record in records:
            row = row_of(record.value)
            found = found if row is None else (record.offset, record.timestamp_ms or 0, row)
    return found


def row_of(value: bytes | None) -> list[Any] | None:
    """The fields of a row in the schema that a change has with it; None where it has none."""
    try:
        parsed = json.loads(value or b"")
        parts = {part["field"]: part for part in parsed["schema"]["fields"]}
        fields = (parts.get("after") or parts["before"])["fields"]
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None
    return fields if isinstance(fields, list) and all(isinstance(each, dict) for each in fields) else None


def _column(field: Mapping[str, Any], depth: int) -> str:
    """Type and comment."""
    name, kind = field.get("name"), field.get("type")
    if name == _DECIMAL:
        parameters = field.get("parameters") or {}
        scale = min(_number(parameters.get("scale"), 0), _DIGITS)
        precision = min(max(_number(parameters.get("connect.decimal.precision"), _DIGITS), scale, 1), _DIGITS)
        return f"decimal({precision},{scale}) comment 'base64'"
    if name in _NAMED:
        found, encoding = _NAMED[str(name)]
        return found if encoding is None else f"{found} comment '{encoding}'"
    return _within(field, depth) or _PLAIN.get(str(kind), "string")


def _within(field: Mapping[str, Any], depth: int) -> str | None:
    """The type of what has parts."""
    if depth >= _MAX_DEPTH:
        return None
    match field:
        case {"type": "struct", "fields": [*parts]} if parts:
            fields = (f"{quoted(str(each.get('field')))}: {_column(each, depth + 1)}" for each in _objects(parts))
            return f"struct<{', '.join(fields)}>"
        case {"type": "array", "items": dict() as items}:
            return f"array<{_uncommented(_column(items, depth + 1))}>"
        case {"type": "map", "values": dict() as values, "keys": {"type": "string"}}:
            return f"map<string, {_uncommented(_column(values, depth + 1))}>"
    return None


def _uncommented(column: str) -> str:
    """Elements of lists and maps have no comments: an encoded one is as JSON has it."""
    kind, comment, encoding = column.partition(" comment ")
    if not comment or kind.startswith("struct<"):
        return column
    return "string" if "base64" in encoding else "bigint"


def _objects(parts: list[Any]) -> Iterator[Mapping[str, Any]]:
    return (each for each in parts if isinstance(each, dict))


def _number(given: Any, default: int) -> int:
    text = str(given)
    return int(text) if text.isdecimal() and len(text) < 9 else default
