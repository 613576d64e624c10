"""JSON values as objects of a schema, in Spark's own expressions.

The schema is columns as in `CREATE TABLE`. A comment of a column, or of a field of an object, says how JSON encodes
what it has no type for, as Debezium writes it:

    amount decimal(12,2) comment 'base64'      the unscaled number's bytes, big-endian, in base64
    made timestamp comment 'micros'            microseconds since 1970; likewise millis and nanos
    day date comment 'days'                    days since 1970

Nothing of a value is lost without a trace: what the schema does not have is in `_rescued`.

Not obvious:

- Spark's parser ends behind the first object and passes over what follows it. So the value is parsed as the only
  element of a list within another object: what follows it makes that malformed, or the list longer.
- A value that has no more colons behind quotes or blanks than fields that were found has no other field. So most
  values are parsed once; the others once more, to find what the schema does not have.
- Spark compares names of fields with their case. A field that differs from one of the schema in case only is null
  there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

MAX_FIELDS: Final = 1_000
"""Fields of an object that is a row, and columns of an inferred schema. Spark plans no table of 20,000 columns."""
_MAX_DEPTH: Final = 50
"""Objects within objects."""
_JSON_TYPES: Final = {"integer": "bigint", "number": "double", "boolean": "boolean"}
_PARSED: Final = "_kalda_parsed"
_KEYS: Final = "_kalda_keys"
_PER_MICROSECOND: Final = {"millis": Decimal("0.001"), "micros": Decimal(1), "nanos": Decimal(1_000)}
_YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999 in microseconds since 1970."""
_YEARS_DAYS: Final = (-719_162, 2_932_896)
_COLON: Final = r"""["'\s]:"""
"""What is between the name of a field and its value, or within a text."""
_BYTES_OF_DECIMAL: Final = 16
"""As many as 38 digits have."""


class JsonColumns(NamedTuple):
    """What becomes of a column."""

    value: Column
    """The object; null where the value is null."""
    is_bad: Column
    """Whether the value is no object of the schema."""
    rescued: Column
    """An object of the value's fields that the schema does not have, or not whole, as JSON; null where it has all."""


def parsed_columns(schema: str, value: Column) -> dict[str, Column]:
    """What is made of a column first, in a step of its own: else Spark would parse for each use of it."""
    from pyspark.sql import functions as f

    text = value.cast("string")
    envelope = f.concat(f.lit('{"values":['), text, f.lit(f'\n],"{_PARSED}":true}}'))
    shape = f"values array<struct<{encoded(struct_of(schema)).toDDL()}>>, {_PARSED} boolean, _corrupt string"
    parsed = f.from_json(envelope, shape, {"columnNameOfCorruptRecord": "_corrupt"})
    return {_PARSED: parsed, _KEYS: f.json_object_keys(text)}


def json_columns(schema: str, value: Column) -> JsonColumns:
    """A column as objects of this schema, where the `parsed_columns` are there."""
    from pyspark.sql import functions as f

    wanted = struct_of(schema)
    text, parsed, keys = value.cast("string"), f.col(_PARSED), f.col(_KEYS)
    found = f.get(parsed["values"], f.lit(0))
    is_whole = parsed["_corrupt"].isNull() & parsed[_PARSED].isNotNull() & (f.size(parsed["values"]) == 1)
    fields = [_decoded(found[field.name], field) for field in wanted.fields]
    found_value = f.struct(*(each.value.alias(field.name) for each, field in zip(fields, wanted.fields, strict=True)))
    names = wanted.names
    lower = [name.lower() for name in names]
    has_other_case = f.exists(keys, lambda key: f.lower(key).isin(*lower) & ~key.isin(*names))
    is_bad = found.isNull() | ~f.coalesce(is_whole, f.lit(False))
    for refused in (
        has_other_case,
        f.size(keys) > MAX_FIELDS,
        *(each.is_bad for each in fields if each.is_bad is not None),
    ):
        is_bad |= f.coalesce(refused, f.lit(False))
    return JsonColumns(found_value, is_bad, _rescued(text, keys, found, wanted))


def ddl_of(json_schema: str) -> str:
    """Columns of what a JSON Schema describes: a type for strings, numbers, booleans, arrays and objects with
    properties, also where null is possible; anything else is text. Raises `PipelineError` where it is of no object."""
    try:
        parsed = json.loads(json_schema)
    except (ValueError, RecursionError):
        parsed = None
    properties = parsed.get("properties") if isinstance(parsed, dict) else None
    if not isinstance(properties, dict) or not properties:
        raise PipelineError(f"the JSON Schema {json_schema[:200]!r} describes no object with properties")
    return ", ".join(f"{_name(name)} {_type_of(each, 0)}" for name, each in properties.items())


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _type_of(schema: Any, depth: int) -> str:
    kinds = [schema] if not isinstance(schema, dict) else schema.get("oneOf") or schema.get("anyOf") or [schema]
    others = [each for each in kinds if isinstance(each, dict) and each.get("type") != "null"]
    if len(others) != 1 or depth > _MAX_DEPTH:
        return "string"
    match others[0]:
        case {"type": "object" | ["object"] | ["object", "null"] | ["null", "object"], "properties": dict() as inner}:
            fields = (f"{_name(name)}: {_type_of(each, depth + 1)}" for name, each in inner.items())
            return f"struct<{', '.join(fields)}>" if inner else "string"
        case {"type": "array" | ["array"] | ["array", "null"] | ["null", "array"], "items": dict() as items}:
            return f"array<{_type_of(items, depth + 1)}>"
        case {"type": str() as name} | {"type": [str() as name] | [str() as name, "null"] | ["null", str() as name]}:
            return _JSON_TYPES.get(name, "string")
    return "string"


def struct_of(schema: str) -> StructType:
    """The schema's columns. Raises what Spark raises where it does not parse."""
    from pyspark.sql.types import StructType

    return cast(StructType, StructType.fromDDL(schema))


# -- encodings


class _Decoded(NamedTuple):
    value: Column
    is_bad: Column | None
    """Whether the encoded value cannot be decoded; None where nothing is encoded."""


def encoding_of(field: StructField) -> str | None:
    """How the field is encoded in JSON; None where it is as Spark reads it."""
    comment = str((field.metadata or {}).get("comment", "")).strip().lower()
    kind = field.dataType.typeName()
    encodings = {"decimal": ("base64",), "timestamp": tuple(_PER_MICROSECOND), "date": ("days",)}
    return comment if comment in encodings.get(kind, ()) else None


def encoded(kind: StructType) -> StructType:
    """The type with the fields as JSON has them, which Spark's parser is given."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _encoded_type(field)) for field in kind.fields])


def _encoded_type(field: StructField) -> DataType:
    from pyspark.sql.types import IntegerType, LongType, StringType

    match encoding_of(field):
        case "base64":
            return StringType()
        case "days":
            return IntegerType()
        case None:
            return _encoded_within(field.dataType)
    return LongType()


def _encoded_within(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_encoded_within(kind.elementType))
    return encoded(kind) if isinstance(kind, StructType) else kind


def _decoded(column: Column, field: StructField) -> _Decoded:
    encoding = encoding_of(field)
    if encoding is None:
        return _decoded_within(column, field.dataType)
    value = _decoders()[encoding](column, field.dataType)
    return _Decoded(value, column.isNotNull() & value.isNull())


def _decoded_within(column: Column, kind: DataType) -> _Decoded:
    """Of an object or of a list of them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType) and _has_encodings(kind.elementType):
        element = kind.elementType
        return _Decoded(
            f.transform(column, lambda each: _decoded_within(each, element).value),
            f.exists(
                column, lambda each: f.coalesce(cast("Column", _decoded_within(each, element).is_bad), f.lit(False))
            ),
        )
    if not isinstance(kind, StructType) or not _has_encodings(kind):
        return _Decoded(column, None)
    fields = [_decoded(column[field.name], field) for field in kind.fields]
    value = f.struct(*(each.value.alias(field.name) for each, field in zip(fields, kind.fields, strict=True)))
    bad = [f.coalesce(each.is_bad, f.lit(False)) for each in fields if each.is_bad is not None]
    return _Decoded(f.when(column.isNotNull(), value), reduce(or_, bad))


def _has_encodings(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return _has_encodings(kind.elementType)
    if not isinstance(kind, StructType):
        return False
    return any(encoding_of(field) is not None or _has_encodings(field.dataType) for field in kind.fields)


def _decoders() -> dict[str, Callable[[Column, DataType], Column]]:
    """From an encoded column to one of the declared type; null where it cannot be decoded."""
    return {"base64": _decimal, "days": _date, **{name: _moment(name) for name in _PER_MICROSECOND}}


def _date(column: Column, _: DataType) -> Column:
    from pyspark.sql import functions as f

    return f.when(column.between(*_YEARS_DAYS), f.date_from_unix_date(column))


def _moment(unit: str) -> Callable[[Column, DataType], Column]:
    per_microsecond = _PER_MICROSECOND[unit]

    def decode(column: Column, _: DataType) -> Column:
        from pyspark.sql import functions as f

        least, most = (int(edge * per_microsecond) for edge in _YEARS_US)
        is_within = column.between(max(least, -(2**63)), min(most, 2**63 - 1))
        microseconds = f.floor(column.cast("decimal(19,0)") / f.lit(per_microsecond)).cast("bigint")
        return f.when(is_within, f.timestamp_micros(microseconds))

    return decode


def _decimal(column: Column, kind: DataType) -> Column:
    """Of two's complement: the higher 8 bytes times 2^64, and the lower 8 bytes. Of a negative number, 2^64 is moved
    from the former to the latter, so that no part has more digits than the number."""
    from pyspark.sql import functions as f

    digits = f.hex(f.try_to_binary(column, f.lit("base64")))
    is_sized = f.length(digits).between(2, 2 * _BYTES_OF_DECIMAL)
    is_negative = f.substring(digits, 1, 1).isin(*"89ABCDEF")
    sign = f.when(is_negative, "F").otherwise("0")
    whole = f.lpad(digits, 2 * _BYTES_OF_DECIMAL, sign)
    higher = f.conv(f.substring(whole, 1, _BYTES_OF_DECIMAL), 16, -10).cast("decimal(20,0)")
    lower = f.conv(f.substring(whole, _BYTES_OF_DECIMAL + 1, _BYTES_OF_DECIMAL), 16, 10).cast("decimal(20,0)")
    part = f.lit(str(2**64)).cast("decimal(20,0)")
    product = f.try_multiply(f.when(is_negative, higher + 1).otherwise(higher), part)
    rest = f.when(is_negative, lower - part).otherwise(lower)
    unscaled = f.try_add(product.cast("decimal(38,0)"), rest).cast("string")
    scale = getattr(kind, "scale", 0)
    return f.when(is_sized, f.concat(unscaled, f.lit(f"E-{scale}")).try_cast(kind))


# -- what the schema does not have


def _rescued(text: Column, keys: Column, found: Column, wanted: StructType) -> Column:
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType for field in wanted.fields}
    has_others = f.exists(keys, lambda key: ~key.isin(*kinds))
    nested = {name: kind for name, kind in kinds.items() if _has_objects(kind)}
    members = _members(f.try_parse_json(text))

    def is_kept(key: Column, member: Column) -> Column:
        kept = ~key.isin(*kinds)
        for name, kind in nested.items():
            kept |= (key == name) & _lacks(member, kind)
        return kept

    kept = f.map_filter(members, is_kept)
    # Spark's variants have no object with a name twice: of such a value all is kept.
    others = f.when(members.isNull(), text).when(f.size(kept) > 0, f.to_json(kept))
    if not nested:
        return f.when(has_others, others)
    has_no_others = f.regexp_count(text, f.lit(_COLON)) <= _count(found, encoded(wanted))
    return f.when(f.coalesce(has_no_others, f.lit(False)), f.lit(None)).otherwise(others)


def _count(column: Column, kind: DataType) -> Column:
    """How many fields with a value the objects of a value have."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        parts = (f.when(column[each.name].isNotNull(), 1 + _count(column[each.name], each.dataType)) for each in kind)
        return reduce(add, (f.coalesce(part, f.lit(0)) for part in parts), f.lit(0))
    if isinstance(kind, ArrayType) and _has_objects(kind):
        element = kind.elementType
        return f.aggregate(column, f.lit(0), lambda count, each: count + f.coalesce(_count(each, element), f.lit(0)))
    return f.size(column) if isinstance(kind, MapType) else f.lit(0)


def _has_objects(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    return isinstance(kind, StructType) or (isinstance(kind, ArrayType) and _has_objects(kind.elementType))


def _members(variant: Column) -> Column:
    return variant.try_cast("map<string,variant>")


def _lacks(variant: Column, kind: DataType) -> Column:
    """Whether an object, or one of a list of objects, has a field that the type does not have."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        element = kind.elementType
        found = f.exists(variant.try_cast("array<variant>"), lambda each: _lacks(each, element))
        return f.coalesce(found, f.lit(False))
    assert isinstance(kind, StructType)
    members = _members(variant)
    lacks = f.exists(f.map_keys(members), lambda key: ~key.isin(*kind.names))
    for field in kind.fields:
        if _has_objects(field.dataType):
            lacks |= _lacks(f.try_element_at(members, f.lit(field.name)), field.dataType)
    return f.coalesce(lacks, f.lit(False))
