"""Protobuf messages as Spark's columns, decoded by google.protobuf in the tasks: no jar is needed.

A message is decoded with the descriptor of the columns (the reader's), as Protobuf's rules of evolution have it: fields
are found by their numbers. Fields whose numbers the descriptor does not have are returned as JSON, by name where the
writer's descriptor is known, else by number and in base64.

A field without a value is its default, and null where the field is `optional`, of `oneof` or a message. Types are those
of Spark's own `from_protobuf`, but for these: uint32 is a bigint and uint64 a decimal(20,0), which hold all values; a
Timestamp is a timestamp; a message within itself becomes JSON in a column of text.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.formats.avro import BadValue, DecodedValue
from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql.types import DataType, StructType

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WELL_KNOWN: Final = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
                      "wrappers")  # fmt: skip
_MAX_INDEXES: Final = 32
"""Messages within messages, in the index of a message of a registry's schema."""


@dataclass(frozen=True)
class MessageSchema:
    """A message of a set of files."""

    files: bytes
    """A FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` makes it."""
    name: str

    def __reduce__(self) -> tuple[type[MessageSchema], tuple[bytes, str]]:
        return MessageSchema, (self.files, self.name)  # a descriptor cannot be pickled

    @cached_property
    def descriptor(self) -> Descriptor:
        """Raises `PipelineError`."""
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError

        try:
            files = FileDescriptorSet.FromString(self.files).file
        except DecodeError:
            raise PipelineError("the file of descriptors is none that protoc --descriptor_set_out makes") from None
        pool = _pool(files)
        try:
            return pool.FindMessageTypeByName(self.name.removeprefix("."))
        except KeyError:
            known = sorted(_messages(files))
            raise PipelineError(
                f"there is no message {self.name} in the descriptors; there are {', '.join(known[:20]) or 'none'}"
            ) from None

    @cached_property
    def columns(self) -> StructType:
        """Raises `PipelineError`."""
        return _columns(self.descriptor, ())


def _pool(files: Sequence[Any]) -> Any:
    """The files, each behind those that it imports."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, left = DescriptorPool(), {each.name: each for each in files}
    for each in _well_known():
        left.setdefault(each.name, each)

    def add(name: str, within: tuple[str, ...]) -> None:
        file = left.pop(name, None)
        if file is None:
            return
        for dependency in file.dependency:
            if dependency in within:
                raise PipelineError(f"the descriptors import each other: {' -> '.join([*within, name])}")
            add(dependency, (*within, name))
        pool.Add(file)

    try:
        for name in list(left):
            add(name, ())
    except TypeError as error:
        raise PipelineError(
            f"the descriptors lack a file that they import (protoc --include_imports): {' '.join(str(error).split())}"
        ) from None
    return pool


@lru_cache(maxsize=1)
def _well_known() -> tuple[Any, ...]:
    """Files that every one may import without having them."""
    from importlib import import_module

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    modules = [import_module(f"google.protobuf.{name}_pb2") for name in (*_WELL_KNOWN, "descriptor")]
    return tuple(FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in modules)


def _messages(files: Sequence[Any]) -> Iterator[str]:
    for file in files:
        for message in file.message_type:
            yield f"{file.package}.{message.name}".removeprefix(".")


def message_at(file: bytes, indexes: Sequence[int]) -> str:
    """The name of a message of a FileDescriptorProto by its place, as a registry's values have it. Raises
    `BadValue`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    parsed = FileDescriptorProto.FromString(file)
    names, inner = [parsed.package] if parsed.package else [], parsed.message_type
    for index in indexes:
        if index >= len(inner):
            raise BadValue(f"its schema has no message {index} of {len(inner)}")
        names.append(inner[index].name)
        inner = inner[index].nested_type
    return ".".join(names)


def indexes_of(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a message in its schema's file, which is before it with a registry, and the message. Raises
    `BadValue`."""
    count, at = _zigzag(data, 0)
    if not count:
        return (0,), data[at:]
    if not 0 < count <= _MAX_INDEXES:
        raise BadValue(f"the place of its message has {count} numbers")
    found = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        if index < 0:
            raise BadValue(f"the place of its message has the number {index}")
        found.append(index)
    return tuple(found), data[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise BadValue("it ends before its message")
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise BadValue("the place of its message is no number")


# -- types


def _columns(message: Descriptor, within: tuple[str, ...]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    inner = (*within, message.full_name)
    if not message.fields:
        raise PipelineError(f"message {message.full_name} has no fields, and no table has such a column")
    return StructType([StructField(field.name, _column(field, inner)) for field in message.fields])


def _column(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_type_of(entry["key"], within), _type_of(entry["value"], within))
    kind = _type_of(field, within)
    return ArrayType(kind) if field.is_repeated else kind


def _type_of(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    from pyspark.sql import types as t

    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return t.TimestampType()
        return t.StringType() if _is_json(field.message_type, within) else _columns(field.message_type, within)
    kinds = {
        field.CPPTYPE_INT32: t.IntegerType(),
        field.CPPTYPE_INT64: t.LongType(),
        field.CPPTYPE_UINT32: t.LongType(),
        field.CPPTYPE_UINT64: t.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: t.DoubleType(),
        field.CPPTYPE_FLOAT: t.FloatType(),
        field.CPPTYPE_BOOL: t.BooleanType(),
        field.CPPTYPE_ENUM: t.StringType(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return t.BinaryType() if field.type == field.TYPE_BYTES else t.StringType()
    return kinds[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_json(message: Descriptor, within: tuple[str, ...]) -> bool:
    """Whether a message becomes text: it is within itself, or its fields are, as with Struct and Value, or it has
    none."""
    return message.full_name in within or not message.fields or _is_within_itself(message)


@lru_cache(maxsize=10_000)
def _is_within_itself(message: Descriptor) -> bool:
    seen: set[str] = set()
    left = [message]
    while left:
        for field in left.pop().fields:
            inner = field.message_type
            if inner is None or inner.full_name in seen:
                continue
            if inner.full_name == message.full_name:
                return True
            seen.add(inner.full_name)
            left.append(inner)
    return False


# -- values

Shape = Callable[[Any], Any]


class MessageDecoder:
    """From messages to the columns of a reader's descriptor."""

    def __init__(self, reader: MessageSchema, writer: MessageSchema | None = None) -> None:
        from google.protobuf.message_factory import GetMessageClass

        self._class = GetMessageClass(reader.descriptor)
        self._shape = _Shapes().of(reader.descriptor, ())
        self._writer = None if writer is None else GetMessageClass(writer.descriptor)

    def decode(self, data: bytes) -> DecodedValue:
        """Raises `BadValue`."""
        from google.protobuf.message import DecodeError

        try:
            message = self._class.FromString(data)
            names = None if self._writer is None else self._writer.FromString(data)
        except (DecodeError, RuntimeError) as error:
            raise BadValue(" ".join(str(error).split()) or "it is no message of this type") from None
        rest = _unknown(message, names)
        return DecodedValue(self._shape(message), json.dumps(rest, ensure_ascii=False) if rest else None)


class _Shapes:
    """What Arrow takes, from messages."""

    def of(self, message: Descriptor, within: tuple[str, ...]) -> Shape:
        inner = (*within, message.full_name)
        fields = [(field.name, field.has_presence, self._of_field(field, inner)) for field in message.fields]

        def shape(value: Any) -> dict[str, Any]:
            return {
                name: None if has_presence and not value.HasField(name) else of_field(getattr(value, name))
                for name, has_presence, of_field in fields
            }

        return shape

    def _of_field(self, field: FieldDescriptor, within: tuple[str, ...]) -> Shape:
        if _is_map(field):
            entry = field.message_type.fields_by_name
            of_key, of_value = self._of_single(entry["key"], within), self._of_single(entry["value"], within)
            return lambda value: [(of_key(key), of_value(value[key])) for key in value]
        of_single = self._of_single(field, within)
        return (lambda value: [of_single(each) for each in value]) if field.is_repeated else of_single

    def _of_single(self, field: FieldDescriptor, within: tuple[str, ...]) -> Shape:
        if field.message_type is not None:
            if field.message_type.full_name == _TIMESTAMP:
                return _moment
            return _text if _is_json(field.message_type, within) else self.of(field.message_type, within)
        if field.enum_type is not None:
            names = {value.number: value.name for value in field.enum_type.values}
            return lambda value: names.get(value, str(value))
        return lambda value: value


def _moment(value: Any) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    except OverflowError:
        raise BadValue(f"a Timestamp of {value.seconds} seconds is not of the years 1 to 9999") from None


def _text(value: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    try:
        return json.dumps(MessageToDict(value, preserving_proto_field_name=True), ensure_ascii=False)
    except Exception as error:  # such as an Any of an unknown type
        raise BadValue(f"a {value.DESCRIPTOR.full_name} is no JSON: {error}") from None


def _unknown(message: Any, writer: Any) -> dict[str, Any]:
    """What a message has that its descriptor does not. `writer`: the message by the writer's descriptor, where that is
    known."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found: dict[str, Any] = {}
    for each in UnknownFieldSet(message):
        field = None if writer is None else writer.DESCRIPTOR.fields_by_number.get(each.field_number)
        if field is not None:
            found[field.name] = _named(writer, field.name)
        else:
            found[str(each.field_number)] = _raw(each.data)
    for field, value in message.ListFields():
        if field.message_type is None or (
            _is_map(field) and field.message_type.fields_by_name["value"].message_type is None
        ):
            continue
        others = None if writer is None else getattr(writer, field.name, None)
        inner = _unknown_within(field, value, others)
        if inner:
            found[field.name] = inner
    return found


def _unknown_within(field: FieldDescriptor, value: Any, writer: Any) -> dict[str, Any]:
    """Of messages in a field: of one, or of several by index or key."""
    if not field.is_repeated:
        return _unknown(value, writer)
    keys: Mapping[Any, Any] | range = value if _is_map(field) else range(len(value))
    found = {}
    for key in keys:
        rest = _unknown(value[key], None if writer is None else writer[key])
        if rest:
            found[str(key)] = rest
    return found


def _named(message: Any, name: str) -> Any:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True).get(name)


def _raw(data: Any) -> Any:
    """A number, or the base64 of bytes; of a group nothing but that it is there."""
    if isinstance(data, bytes):
        return b64encode(data).decode()
    return data if isinstance(data, int) else "group"


def file_of(text: str) -> bytes:
    """A registry's schema, which is a FileDescriptorProto in base64. Raises `PipelineError`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = b64decode(text, validate=True)
        FileDescriptorProto.FromString(found)
    except (ValueError, DecodeError):
        raise PipelineError(
            f"the registry has a Protobuf schema as source ({text[:60]!r}), and not with format=serialized"
        ) from None
    return found


def file_set(files: Sequence[tuple[str | None, bytes]]) -> bytes:
    """A FileDescriptorSet of FileDescriptorProtos, each with the name by which others import it, or its own."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    found = FileDescriptorSet()
    for name, data in files:
        file = FileDescriptorProto.FromString(data)
        if name is not None:
            file.name = name
        found.file.append(file)
    serialized: bytes = found.SerializeToString()
    return serialized


@lru_cache(maxsize=1_000)
def message_decoder(reader: MessageSchema, writer: MessageSchema | None = None) -> MessageDecoder:
    """Of this process. Raises `PipelineError`."""
    return MessageDecoder(reader, writer)
