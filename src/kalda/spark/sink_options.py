"""The options of `df.write` and `df.writeStream` with format "kalda", and the columns that they need.

Names, columns and refusals are those of Spark's own Kafka sink; the column `timestamp` and the options with the prefix
`kalda.` are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import PRODUCER, producer_config
from kalda.spark.options import CONNECTION, OptionError, OptionTable, bootstrap_servers, connected, kafka_error

EXACTLY_ONCE: Final = "kalda.exactly.once"
NAME: Final = "kalda.exactly.once.name"
BATCH: Final = "kalda.exactly.once.batch"
CHECK: Final = "kalda.exactly.once.check"
NAMES: Final = ("topic", "includeHeaders", CONNECTION, EXACTLY_ONCE, NAME, BATCH, CHECK)
_DEFAULTS: Final = {"client.id": "kalda-spark", "enable.idempotence": "true", "linger.ms": "5"}
_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The largest that brokers allow by default: a task's transaction is open until all tasks of the batch have ended."""
_REFUSED_KEYS: Final = {
    "key.serializer": "it is not supported: keys are columns of bytes or text; convert them in the query",
    "value.serializer": "it is not supported: values are columns of bytes or text; convert them in the query",
    "transactional.id": f"it is not supported: set option {EXACTLY_ONCE} to true, and each task has an id of its own",
}
_TYPES: Final[dict[str, tuple[tuple[DataType, ...], str]]] = {
    "topic": ((StringType(),), "a string"),
    "key": ((StringType(), BinaryType()), "a string or binary"),
    "value": ((StringType(), BinaryType()), "a string or binary"),
    "partition": ((IntegerType(),), "an int"),
    "timestamp": ((TimestampType(), TimestampNTZType(), LongType()), "a timestamp, or milliseconds as a bigint"),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are written."""

    kafka: Mapping[str, str]
    """The producers' configuration, by Kafka's keys; without a transactional id."""
    columns: tuple[str, ...]
    """The frame's columns that are written, in its order."""
    topic: str | None = None
    """Of all rows, whatever the column `topic` has; None: that of the column."""
    is_exactly_once: bool = False
    name: str | None = None
    """Names the write in its transactions. None: the id of the streaming query, or a new name for each batch job."""
    batch: int | None = None
    """The number of this batch; None: that of the streaming query's batch."""
    checks_rows: bool = True
    """Whether a task that is run again compares its rows with those that were committed."""


def write_options(given: Mapping[str, str], schema: StructType, *, is_streaming: bool) -> WriteOptions:
    """Parse the options, and check the frame's columns. Raises `OptionError`, `ValueError`."""
    own = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    options = OptionTable.of(connected(own, {*PRODUCER.names()} - _REFUSED_KEYS.keys()), NAMES)
    bootstrap_servers(options)
    kafka = {**_DEFAULTS, **options.kafka(_REFUSED_KEYS)}
    topic = options.text("topic")
    is_exactly_once = options.flag(EXACTLY_ONCE, False)
    if is_exactly_once:
        kafka.setdefault("transaction.timeout.ms", str(_TRANSACTION_TIMEOUT_MS))
    try:
        producer_config(dict(kafka), {"transactional_id": "checked"} if is_exactly_once else {})
    except InvalidConfig as error:
        raise kafka_error(kafka, error) from None
    name, batch = options.text(NAME), options.number(BATCH, None, 0)
    for option in (NAME, BATCH, CHECK):
        if (text := options.text(option)) is not None and not is_exactly_once:
            raise OptionError(option, text, f"it has no effect without {EXACTLY_ONCE}=true; set that too")
    if is_streaming and batch is not None:
        raise OptionError(BATCH, batch, "a streaming query numbers its batches itself; take it out")
    if batch is not None and not name:
        raise OptionError(BATCH, batch, f"a batch that is run again is found by its name and number; set {NAME} too")
    return WriteOptions(
        kafka=kafka,
        columns=_columns(schema, topic),
        topic=topic,
        is_exactly_once=is_exactly_once,
        name=name,
        batch=batch,
        checks_rows=options.flag(CHECK, True),
    )


_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname", "path"))
"""Options that Spark adds to those of the sink."""


def _columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ValueError(f"Required attribute 'value' not found; the columns are {', '.join(types) or 'none'}")
    if topic is None and "topic" not in types:
        raise ValueError("topic option required when no 'topic' attribute is present. Use the topic option")
    for name, (allowed, words) in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise ValueError(f"{name} attribute type must be {words}, and it is {types[name].simpleString()}")
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise ValueError(
            f"headers attribute type must be array<struct<key:string,value:binary>>, and it is {headers.simpleString()}"
        )
    return tuple(field.name for field in schema.fields if field.name in (*_TYPES, "headers"))


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [(field.name, field.dataType) for field in kind.elementType.fields] == [
        ("key", StringType()),
        ("value", BinaryType()),
    ]
