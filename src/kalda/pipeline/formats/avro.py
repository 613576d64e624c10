"""Avro values as Spark's columns, decoded by fastavro in the tasks: no jar is needed.

A value is decoded with the schema that it was written with (the writer's) into the schema of the columns (the
reader's), by Avro's rules. What the writer's schema has and the reader's does not is returned as JSON.

Types are those of Spark's own `from_avro`, but for these, which become JSON in a column of text: a union of several
types other than null, int and long, float and double; a record within itself.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from functools import cached_property, lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NUMBERS: Final = (("int", "long"), ("float", "double"))
_KEPT_LOGICAL: Final = (
    "date",
    "timestamp-millis",
    "timestamp-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
)
"""Logical types that Spark has, and that fastavro decodes; others are what they are encoded as, but decimals."""
_OF_DEBEZIUM: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
}
"""Logical types by the names that Debezium gives to numbers."""
_DECIMAL: Final = "kaldaDecimal"
"""In the place of the logical type of decimals: fastavro would round those of too many digits."""
_MAX_DECIMAL_DIGITS: Final = 38
_DIGITS: Final = Context(prec=_MAX_DECIMAL_DIGITS)
_WHOLE: Final = "value"
"""The column of a value that is no record."""


class BadValue(ValueError):
    """A value cannot be decoded; the message says why."""


class DecodedValue(NamedTuple):
    """What has become of a value."""

    value: dict[str, Any]
    rescued: str | None
    """JSON of what the columns do not have."""


@dataclass(frozen=True)
class AvroSchema:
    """A schema, as JSON, that was parsed. Raises `PipelineError` where it is none, or one that no table has."""

    text: str
    named: tuple[str, ...] = ()
    """Schemas, as JSON, whose names this one uses: those that others of them use first."""

    @cached_property
    def _all(self) -> tuple[Any, ...]:
        """The schemas whose names it uses, and itself as the last one."""
        from fastavro.schema import parse_schema

        known: dict[str, Any] = {}
        try:
            return tuple(
                parse_schema(_plain(json.loads(text)), named_schemas=known) for text in (*self.named, self.text)
            )
        except Exception as error:  # fastavro's own have no common class
            raise PipelineError(f"the Avro schema {self.text[:200]} cannot be parsed: {_said(error)}") from None

    @property
    def parsed(self) -> Any:
        return self._all[-1]

    @cached_property
    def names(self) -> dict[str, Any]:
        """The schemas of its named types."""
        found: dict[str, Any] = {}
        for each in self._all:
            _collect(each, found)
        return found

    @cached_property
    def columns(self) -> StructType:
        """The columns of a record; a value of another kind is in the column `value`."""
        from pyspark.sql.types import StructField, StructType

        kind = _Types(self.names).of(self.parsed, ())
        return kind if isinstance(kind, StructType) else StructType([StructField(_WHOLE, kind)])


def _plain(schema: Any) -> Any:
    """The schema without logical types that Spark does not have, and without arrays of elements of no bytes: a few
    bytes would make any number of these."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key != "logicalType" or value in _KEPT_LOGICAL}
    if (logical := _OF_DEBEZIUM.get(schema.get("connect.name", ""))) is not None:
        plain["logicalType"] = logical
    if schema.get("logicalType") == "decimal" and 0 < int(schema["precision"]) <= _MAX_DECIMAL_DIGITS:
        plain[_DECIMAL] = True
    for key in ("type", "items", "values"):
        if isinstance(plain.get(key), dict | list):
            plain[key] = _plain(plain[key])
    if plain.get("type") == "array" and plain.get("items") in ("null", {"type": "null"}):
        raise ValueError("an array of nulls has no bound")
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [_plain(each) for each in plain["fields"]]
    return plain


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _collect(schema: Any, found: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _collect(each, found)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "error", "enum", "fixed"):
            found[schema["name"]] = schema
        for key in ("type", "items", "values"):
            if isinstance(schema.get(key), dict | list):
                _collect(schema[key], found)
        for each in schema.get("fields", ()):
            _collect(each["type"], found)


def _variants(schema: list[Any]) -> Any:
    """What a union is beside null: one type, the wider of two numbers, or a list of several."""
    kinds = [each for each in schema if each != "null"]
    plain = [each if isinstance(each, str) else each.get("type") for each in kinds]
    for narrow, wide in _NUMBERS:
        if sorted(map(str, plain)) == sorted((narrow, wide)) and all(isinstance(each, str) for each in kinds):
            return wide
    return kinds[0] if len(kinds) == 1 else kinds


# -- types


class _Types:
    """Spark's types of Avro's."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def of(self, schema: Any, within: tuple[str, ...]) -> DataType:
        from pyspark.sql import types as t

        if isinstance(schema, list):
            found = _variants(schema)
            return t.StringType() if isinstance(found, list) else self.of(found, within)
        if isinstance(schema, str) and schema in self._names:
            schema = self._names[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, within)
        match kind:
            case "record" | "error":
                return self._record(schema, within)
            case "array":
                return t.ArrayType(self.of(schema["items"], within))
            case "map":
                return t.MapType(t.StringType(), self.of(schema["values"], within))
        return (_logical(schema) if isinstance(schema, dict) else None) or _plain_types()[kind]

    def _record(self, schema: dict[str, Any], within: tuple[str, ...]) -> DataType:
        from pyspark.sql.types import StringType, StructField, StructType

        name = schema["name"]
        if name in within:
            return StringType()
        inner = (*within, name)
        return StructType([StructField(each["name"], self.of(each["type"], inner)) for each in schema["fields"]])


def _plain_types() -> dict[str, DataType]:
    from pyspark.sql import types as t

    return {
        "null": t.StringType(),
        "boolean": t.BooleanType(),
        "int": t.IntegerType(),
        "long": t.LongType(),
        "float": t.FloatType(),
        "double": t.DoubleType(),
        "bytes": t.BinaryType(),
        "fixed": t.BinaryType(),
        "string": t.StringType(),
        "enum": t.StringType(),
    }


def _logical(schema: dict[str, Any]) -> DataType | None:
    from pyspark.sql import types as t

    if schema.get(_DECIMAL):
        return t.DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    match schema.get("logicalType"):
        case "date":
            return t.DateType()
        case "timestamp-millis" | "timestamp-micros":
            return t.TimestampType()
        case "local-timestamp-millis" | "local-timestamp-micros":
            return t.TimestampNTZType()
    return None


# -- values


class AvroDecoder:
    """From one writer's schema to the columns of a reader's. Raises `BadValue` where that is not possible."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer, self._reader = writer, reader
        self._lacking = _Lacking(writer.names, reader.names).of(writer.parsed, reader.parsed)
        self._shape = _Shapes(reader.names).of(reader.parsed, ())
        self._is_record = isinstance(reader.parsed, dict) and reader.parsed.get("type") == "record"
        self._read = _reader_of(writer, reader)

    def decode(self, data: bytes) -> DecodedValue:
        """Raises `BadValue`."""
        found = self._read_whole(data, self._reader.parsed)
        value = found if self._shape is None else self._shape(found)
        if not self._is_record:
            value = {_WHOLE: value}
        if not self._lacking:
            return DecodedValue(value, None)
        whole = self._read_whole(data, None)
        if not isinstance(whole, dict):
            return DecodedValue(value, as_json(whole))
        rest = {name: whole[name] for name in self._lacking if whole.get(name) is not None}
        return DecodedValue(value, as_json(rest) if rest else None)

    def _read_whole(self, data: bytes, reader: Any) -> Any:
        body = BytesIO(data)
        try:
            found = self._read(body, self._writer.parsed, reader)
        except EOFError:
            raise BadValue("it ends too soon") from None
        except Exception as error:  # fastavro's own have no common class
            raise BadValue(_said(error)) from None
        if body.tell() != len(data):
            raise BadValue(f"it goes on behind its end at byte {body.tell()}")
        return found


def _reader_of(writer: AvroSchema, reader: AvroSchema) -> Callable[[BytesIO, Any, Any], Any]:
    """fastavro's. Of a record within itself a value may have any depth, which its compiled reader does not bound."""
    import fastavro

    if not any(_is_recursive(each.parsed, each.names, ()) for each in (writer, reader)):
        compiled: Callable[[BytesIO, Any, Any], Any] = fastavro.schemaless_reader
        return compiled
    from fastavro import _read_py

    bounded: Callable[[BytesIO, Any, Any], Any] = _read_py.schemaless_reader
    return bounded


def _is_recursive(schema: Any, names: Mapping[str, Any], within: tuple[str, ...]) -> bool:
    if isinstance(schema, list):
        return any(_is_recursive(each, names, within) for each in schema)
    if isinstance(schema, str):
        return schema in within or (schema in names and _is_recursive(names[schema], names, within))
    if schema.get("type") in ("record", "error"):
        if schema["name"] in within:
            return True
        inner = (*within, schema["name"])
        return any(_is_recursive(each["type"], names, inner) for each in schema["fields"])
    parts = [schema[key] for key in ("type", "items", "values") if key in schema]
    return any(_is_recursive(each, names, within) for each in parts)


def as_json(value: Any) -> str:
    """Text for a column; bytes are in base64."""
    return json.dumps(value, default=_shown, ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


Shape = Callable[[Any], Any]


class _Shapes:
    """What is made of fastavro's values, so that Arrow takes them; None: nothing."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def of(self, schema: Any, within: tuple[str, ...]) -> Shape | None:
        if isinstance(schema, list):
            found = _variants(schema)
            return _optional(as_json if isinstance(found, list) else self.of(found, within))
        if isinstance(schema, str):
            if schema not in self._names:
                return None
            schema = self._names[schema]
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, within)
        match kind:
            case "record" | "error":
                return as_json if schema["name"] in within else self._record(schema, within)
            case "array":
                of_item = self.of(schema["items"], within)
                return None if of_item is None else lambda value: [of_item(each) for each in value]
            case "map":
                of_value = self.of(schema["values"], within)
                if of_value is None:
                    return lambda value: list(value.items())
                return lambda value: [(key, of_value(each)) for key, each in value.items()]
        return _decimal_shape(schema) if schema.get(_DECIMAL) else None

    def _record(self, schema: dict[str, Any], within: tuple[str, ...]) -> Shape | None:
        inner = (*within, schema["name"])
        shapes = {each["name"]: self.of(each["type"], inner) for each in schema["fields"]}
        changed = {name: shape for name, shape in shapes.items() if shape is not None}
        if not changed:
            return None

        def shape(value: dict[str, Any]) -> dict[str, Any]:
            return {**value, **{name: each(value[name]) for name, each in changed.items()}}

        return shape


def _optional(shape: Shape | None) -> Shape | None:
    return None if shape is None else lambda value: None if value is None else shape(value)


def _decimal_shape(schema: dict[str, Any]) -> Shape:
    bound, scale = 10 ** int(schema["precision"]), int(schema.get("scale", 0))

    def shape(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, signed=True)
        if abs(unscaled) >= bound:
            raise BadValue(f"a decimal has more than {schema['precision']} digits")
        return Decimal(unscaled).scaleb(-scale, _DIGITS)

    return shape


class _Lacking:
    """Which fields of a writer's record a reader's does not have, or not whole."""

    def __init__(self, writer: Mapping[str, Any], reader: Mapping[str, Any]) -> None:
        self._writer, self._reader = writer, reader
        self._open: set[tuple[str, str]] = set()
        """Pairs of records that are being compared."""

    def of(self, writer: Any, reader: Any) -> list[str]:
        """Names in the writer's record; `value` where another value is not whole. Raises `BadValue` for decimals of two
        scales."""
        writer, reader = self._resolved(writer, self._writer), self._resolved(reader, self._reader)
        if isinstance(writer, list) or isinstance(reader, list):
            return self._of_unions(writer, reader)
        kinds = [each["type"] if isinstance(each, dict) else each for each in (writer, reader)]
        if kinds[0] != kinds[1]:
            return []
        if kinds[0] in ("array", "map"):
            key = "items" if kinds[0] == "array" else "values"
            return self.of(writer[key], reader[key])
        if isinstance(writer, dict) and isinstance(reader, dict) and writer.get(_DECIMAL) and reader.get(_DECIMAL):
            scales = [int(each.get("scale", 0)) for each in (writer, reader)]
            if scales[0] != scales[1]:
                raise BadValue(f"a decimal has scale {scales[0]}, and its column {scales[1]}")
        return self._of_records(writer, reader) if kinds[0] == "record" else []

    def _resolved(self, schema: Any, names: Mapping[str, Any]) -> Any:
        while True:
            if isinstance(schema, str) and schema in names:
                schema = names[schema]
            elif isinstance(schema, dict) and isinstance(schema["type"], dict | list):
                schema = schema["type"]
            else:
                return schema

    def _of_unions(self, writer: Any, reader: Any) -> list[str]:
        """Of the types that both have; text of JSON has all."""
        variants = _variants(reader) if isinstance(reader, list) else reader
        if isinstance(variants, list):
            return []
        found = [self.of(each, variants) for each in (writer if isinstance(writer, list) else [writer])]
        return [name for names in found for name in names]

    def _of_records(self, writer: dict[str, Any], reader: dict[str, Any]) -> list[str]:
        pair = (writer["name"], reader["name"])
        if pair in self._open:
            return []
        self._open.add(pair)
        known = {name: each for each in reader["fields"] for name in (each["name"], *each.get("aliases", ()))}
        lacking = [
            each["name"]
            for each in writer["fields"]
            if each["name"] not in known or self.of(each["type"], known[each["name"]]["type"])
        ]
        self._open.discard(pair)
        return lacking


@lru_cache(maxsize=1_000)
def avro_decoder(writer: AvroSchema, reader: AvroSchema) -> AvroDecoder | str:
    """Of this process; or why none is possible."""
    try:
        return AvroDecoder(writer, reader)
    except BadValue as error:
        return str(error)
