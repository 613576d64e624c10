"""Columns whose values are decoded in Python, batch by batch of Arrow: Avro, Protobuf, and what a schema registry has.

A decoder is made in the driver and pickled for the tasks. It has the columns of its values; a value becomes these, or a
sentence that says why not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from kalda.base.errors import KafkaError
from kalda.pipeline.formats.avro import AvroSchema, BadValue, DecodedValue, avro_decoder
from kalda.pipeline.formats.protobuf import (
    MessageSchema,
    file_of,
    file_set,
    indexes_of,
    message_at,
    message_decoder,
)
from kalda.pipeline.formats.registry import PREFIX_BYTES, RegisteredSchema, Subject, schema_of
from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from kalda.pipeline.formats.faults import Fault

_RESULT: Final = (("value", None), ("reason", StringType()), ("rescued", StringType()))
_NAMES: Final = 5
"""How many fields an error names."""


class NewFields(KafkaError):
    """A value has fields that the columns do not have. A flow that is started again has columns for them."""


class Decoder(Protocol):
    """How values are decoded."""

    @property
    def columns(self) -> StructType:
        """Of a value. Raises `PipelineError`."""

    def decode(self, data: bytes) -> DecodedValue:
        """Raises `BadValue` with the whole sentence."""


def decoded_column(column: Column, decoder: Decoder) -> Column:
    """A struct: the `value` as a struct of the decoder's columns, null where it is null or bad; the `reason` of a bad
    one; what of it is `rescued`."""
    kind = StructType()
    for name, each in _RESULT:
        kind.add(name, decoder.columns if each is None else each)
    arrow = to_arrow_type(kind)

    def decode(values: pa.Array) -> pa.Array:
        return _array([_decoded(each, decoder) for each in values.to_pylist()], arrow)

    found: Column = cast(Any, arrow_udf)(decode, kind)(column)  # its types ask for more than its documentation
    return found


def _decoded(value: bytes | None, decoder: Decoder) -> dict[str, Any]:
    if value is None:
        return {"value": None, "reason": None, "rescued": None}
    try:
        found = decoder.decode(value)
    except BadValue as error:
        return {"value": None, "reason": str(error), "rescued": None}
    return {"value": found.value, "reason": None, "rescued": found.rescued}


def _array(rows: list[dict[str, Any]], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([_fitting(row, kind) for row in rows], kind)


def _fitting(row: dict[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """The row, or why it is none of this type."""
    try:
        pa.array([row], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        return {"value": None, "reason": f"the value is not of its columns: {error}", "rescued": None}
    return row


@dataclass(frozen=True)
class AvroValues:
    """All of one schema."""

    schema: AvroSchema

    @property
    def columns(self) -> StructType:
        return self.schema.columns

    def decode(self, data: bytes) -> DecodedValue:
        return _decode_avro(data, self.schema, self.schema, "the value is not Avro of the schema")


@dataclass(frozen=True)
class MessageValues:
    """Messages of Protobuf, all of one type."""

    schema: MessageSchema

    @property
    def columns(self) -> StructType:
        return self.schema.columns

    def decode(self, data: bytes) -> DecodedValue:
        try:
            return message_decoder(self.schema).decode(data)
        except BadValue as error:
            raise BadValue(f"the value is not a message {self.schema.name}: {error}") from None


def _decode_avro(data: bytes, writer: AvroSchema, reader: AvroSchema, words: str) -> DecodedValue:
    decoder = avro_decoder(writer, reader)
    if isinstance(decoder, str):
        raise BadValue(f"{words}: {decoder}")
    try:
        return decoder.decode(data)
    except BadValue as error:
        raise BadValue(f"{words}: {error}") from None


@dataclass(frozen=True)
class RegisteredValues:
    """Values of Avro or Protobuf, each with the id of its schema, into the columns of one of the subject's schemas."""

    url: str
    subject: Subject
    reader: AvroSchema | MessageSchema
    ends_at_new: bool
    """Whether a field of a later version than those of the subject is an error; else it is rescued."""

    @property
    def columns(self) -> StructType:
        return self.reader.columns

    def decode(self, data: bytes) -> DecodedValue:
        number, body = split(data)
        schema = schema_of(self.url, number)
        if schema is None:
            raise BadValue(f"the schema registry has no schema with the id {number}")
        kind = "AVRO" if isinstance(self.reader, AvroSchema) else "PROTOBUF"
        if schema.kind != kind:
            raise BadValue(f"the schema with the id {number} is {schema.kind}, not {kind}")
        found = self._decode(body, number, schema)
        if found.rescued is not None and self.ends_at_new and number not in self.subject.ids:
            raise NewFields(
                f"a value has fields of the schema with the id {number}, which is newer than the columns: "
                f"{', '.join(_fields(found.rescued))}. Started again, the flow has columns for them"
            )
        return found

    def _decode(self, body: bytes, number: int, schema: RegisteredSchema) -> DecodedValue:
        try:
            if isinstance(self.reader, AvroSchema):
                words = f"the value is not Avro of the schema with the id {number}"
                return _decode_avro(body, avro_of(schema), self.reader, words)
            words = f"the value is not a message of the schema with the id {number}"
            try:
                indexes, message = indexes_of(body)
                writer = message_of(schema, indexes)
                return message_decoder(self.reader, writer).decode(message)
            except BadValue as error:
                raise BadValue(f"{words}: {error}") from None
        except PipelineError as error:  # the schema itself is none
            raise BadValue(f"the schema with the id {number}: {error}") from None


def registered_values(url: str, subject: Subject, schema: str | None, ends_at_new: bool) -> RegisteredValues:
    """`schema`: Avro of the columns, in the place of the newest one. Raises `PipelineError`."""
    newest = subject.newest
    try:
        if newest.kind == "AVRO":
            reader: AvroSchema | MessageSchema = avro_of(newest) if schema is None else AvroSchema(schema)
        elif newest.kind == "PROTOBUF" and schema is None:
            reader = message_of(newest)
        else:
            raise PipelineError(f"its schemas are {newest.kind}, which is not read with a schema of your own")
        found = RegisteredValues(url, subject, reader, ends_at_new)
        found.columns  # noqa: B018 - refuses a schema that no table has
    except (PipelineError, BadValue) as error:
        raise PipelineError(f"the subject {subject.name}: {error}") from None
    return found


def behind_id(fault: Fault | None) -> Fault:
    """What is wrong with a value behind the id of its schema."""

    def found(value: bytes) -> str:
        try:
            _, body = split(value)
        except BadValue as error:
            return str(error)
        return "the value is bad" if fault is None else fault(body)

    return found


def split(data: bytes) -> tuple[int, bytes]:
    """The id of a value's schema, and the value. Raises `BadValue`."""
    if len(data) < PREFIX_BYTES or data[0]:
        raise BadValue("the value does not begin with the byte 0 and the id of a schema, as with a schema registry")
    return int.from_bytes(data[1:PREFIX_BYTES]), data[PREFIX_BYTES:]


def avro_of(schema: RegisteredSchema) -> AvroSchema:
    return AvroSchema(schema.text, tuple(text for _, text in schema.named))


def message_of(schema: RegisteredSchema, indexes: tuple[int, ...] = (0,)) -> MessageSchema:
    """A message of a registry's schema, by its place. Raises `BadValue`, `PipelineError`."""
    own = file_of(schema.text)
    others = [(name, file_of(text)) for name, text in schema.named]
    return MessageSchema(file_set([*others, (None, own)]), message_at(own, indexes))


def _fields(rescued: str) -> list[str]:
    found = json.loads(rescued)
    return sorted(found)[:_NAMES] if isinstance(found, dict) else ["the value"]
