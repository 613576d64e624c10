"""Columns of the rows in Debezium's changes as Kafka Connect's JsonConverter writes them, each with its schema.

A topic's last records have the columns of today. They are read from each partition; a column of several partitions has
the type of the latest record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kalda.base.errors import ApiError, KafkaError
from kalda.base.ids import TopicPartition
from kalda.client.consumer.consumer import Consumer
from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.tables.contracts import quoted

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
