"""Why a value is bad, as one sentence that names the field and the cause: what the column `reason` of a quarantined
row has.

Spark's functions say that a value cannot be decoded, and not why. Here the value is looked at once more, in Python, for
bad rows only.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from kalda.pipeline.formats.json_values import MAX_FIELDS, encoding_of

_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Bits, by the name of the type."""
_SHOWN: Final = 60
"""Characters of a value that a sentence has."""
Fault = Callable[[bytes], str]
"""What is wrong with a bad value."""


def fault_column(bad: Column, fault: Fault) -> Column:
    """A sentence for each value; null where the value is null."""

    def faults(values: pa.Array) -> pa.Array:
        return pa.array([None if value is None else fault(value) for value in values.to_pylist()], pa.string())

    found: Column = cast(Any, arrow_udf)(faults, "string")(bad)  # its types ask for more than its documentation
    return found


def of_text(value: bytes) -> str:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the value is not UTF-8: byte {error.start} is {value[error.start]:#04x}"
    return "the value is not UTF-8"


def of_json(schema: StructType) -> Fault:
    """What is wrong with a value that is no JSON object of this schema."""

    def fault(value: bytes) -> str:
        try:
            found = json.loads(value.decode("utf-8"))
        except UnicodeDecodeError:
            return of_text(value)
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":
                return f"the value is more than one JSON object: it goes on at character {error.pos}"
            return f"the value is not JSON: {error.msg} at character {error.pos}"
        except (ValueError, RecursionError) as error:
            return f"the value is not JSON that can be read: {error}"
        if not isinstance(found, dict):
            return f"the value is {_shown(found)}, not a JSON object"
        if len(found) > MAX_FIELDS:
            return f"the object has more than {MAX_FIELDS} fields"
        lower = {name.lower(): name for name in schema.names}
        for key in found:
            if key not in schema.names and key.lower() in lower:
                return f"field {key} differs from {lower[key.lower()]} of the schema in case only"
        return _of_type(found, schema, "") or "the value is not a JSON object of the schema"

    return fault


def _of_type(value: Any, kind: DataType, path: str) -> str | None:
    """The first part of the value that is not of its type."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            return _refused(path, value, "an object")
        parts = (
            _of_field(value.get(field.name), field, f"{path}.{field.name}" if path else field.name) for field in kind
        )
        return next((part for part in parts if part is not None), None)
    if isinstance(kind, ArrayType):
        if not isinstance(value, list):
            return _refused(path, value, "a list")
        parts = (_of_type(each, kind.elementType, f"{path}[{index}]") for index, each in enumerate(value))
        return next((part for part in parts if part is not None), None)
    if isinstance(kind, MapType):
        if not isinstance(value, dict):
            return _refused(path, value, "an object")
        parts = (_of_type(each, kind.valueType, f"{path}.{key}") for key, each in value.items())
        return next((part for part in parts if part is not None), None)
    return None if _is_of(value, kind) else _refused(path, value, kind.simpleString())


def _of_field(value: Any, field: StructField, path: str) -> str | None:
    encoding = encoding_of(field)
    if encoding is None or value is None:
        return _of_type(value, field.dataType, path)
    kind = field.dataType.simpleString()
    if encoding != "base64":
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return (
            _refused(path, value, f"a {kind} in {encoding} since 1970 of the years 1 to 9999")
            if (not is_number or _is_beyond(value, encoding))
            else None
        )
    return None if _is_decimal(value, field.dataType) else _refused(path, value, f"a {kind} in base64")


_PER_DAY: Final = {"days": 1, "millis": 86_400_000, "micros": 86_400_000_000, "nanos": 86_400_000_000_000}


def _is_beyond(value: int, unit: str) -> bool:
    return not -719_162 <= value // _PER_DAY[unit] <= 2_932_896


def _is_decimal(value: Any, kind: DataType) -> bool:
    assert isinstance(kind, DecimalType)
    try:
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), signed=True)
    except (TypeError, ValueError, binascii.Error):
        return False
    return bool(value) and abs(unscaled) < 10**kind.precision


def _is_of(value: Any, kind: DataType) -> bool:
    """Whether Spark may read the value as this type, which is no object and no list."""
    name = kind.simpleString()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _INTEGERS:
        return (
            is_number and isinstance(value, int) and -(2 ** (_INTEGERS[name] - 1)) <= value < 2 ** (_INTEGERS[name] - 1)
        )
    if name in ("float", "double"):
        return is_number or value in ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")
    if name == "boolean":
        return isinstance(value, bool)
    if isinstance(kind, DecimalType):
        return (is_number and abs(value) < 10 ** (kind.precision - kind.scale)) or isinstance(value, str)
    if name in ("date", "timestamp", "timestamp_ntz"):
        return is_number or (isinstance(value, str) and _is_moment(value))
    return True


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _refused(path: str, value: Any, wanted: str) -> str:
    article = "" if wanted.startswith(("a ", "an ")) else "an " if wanted[0] in "aeiou" else "a "
    return f"field {path} is {_shown(value)}, not {article}{wanted}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
