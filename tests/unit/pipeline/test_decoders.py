"""Values of Avro and Protobuf as columns, and what of them the columns do not have."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
import fastavro
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from kalda.pipeline.formats.avro import AvroDecoder, AvroSchema, BadValue
from kalda.pipeline.formats.decoders import AvroValues, MessageValues, RegisteredValues, message_of, split
from kalda.pipeline.formats.frames import row_of
from kalda.pipeline.formats.json_values import ddl_of
from kalda.pipeline.formats.protobuf import MessageDecoder, MessageSchema, indexes_of
from kalda.pipeline.formats.registry import RegisteredSchema, Subject
from kalda.pipeline.session import PipelineError

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
    {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "any", "type": ["int", "string"]},
    {"name": "size", "type": ["int", "long"]},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}},
    {"name": "next", "type": ["null", "Order"], "default": None},
]
ROW: dict[str, Any] = {
    "id": 1,
    "total": Decimal("-1.23"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "day": 20_000,
    "clock": 5,
    "any": "x",
    "size": 2**40,
    "counts": {"a": 1},
    "place": {"x": 1},
    "next": None,
}


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


def written(schema: Any, row: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return file.getvalue()


def decoder(writer: Any, reader: Any) -> AvroDecoder:
    return AvroDecoder(AvroSchema(json.dumps(writer)), AvroSchema(json.dumps(reader)))


def test_avro_has_the_types_of_spark() -> None:
    schema = AvroSchema(json.dumps(order(*FIELDS)))
    assert schema.columns.simpleString() == (
        "struct<id:bigint,total:decimal(5,2),at:timestamp,day:date,clock:int,any:string,size:bigint,"
        "counts:map<string,int>,place:struct<x:int>,next:string>"
    )
    value = decoder(order(*FIELDS), order(*FIELDS)).decode(written(order(*FIELDS), {**ROW, "next": ROW})).value
    nested = json.loads(value.pop("next"))
    assert (nested["id"], nested["next"]) == (1, None)
    assert value == {name: each for name, each in ROW.items() if name != "next"} | {
        "day": date(2024, 10, 4),
        "any": '"x"',
        "counts": [("a", 1)],
    }
    assert AvroSchema('"string"').columns.simpleString() == "struct<value:string>"


def test_what_only_the_writer_has_is_rescued() -> None:
    new = {"name": "new", "type": ["null", "string"], "default": None}
    place = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}
    writer = order(*FIELDS[:8], {"name": "place", "type": place}, FIELDS[9], new)
    renamed = {**FIELDS[0], "name": "number", "aliases": ["id"]}
    reads = decoder(writer, order(renamed, *FIELDS[1:], {"name": "more", "type": "int", "default": 7}))
    found = reads.decode(written(writer, {**ROW, "place": {"x": 1, "y": 2}, "new": "n"}))
    assert (found.value["number"], found.value["place"], found.value["more"]) == (1, {"x": 1}, 7)
    assert json.loads(str(found.rescued)) == {"place": {"x": 1, "y": 2}, "new": "n"}
    assert decoder(order(FIELDS[0], new), order(FIELDS[0])).decode(b"\x02\0").rescued is None  # a null is nothing


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (written(order(*FIELDS), ROW)[:-2], "it ends too soon"),
        (written(order(*FIELDS), ROW) + b"x", "it goes on behind its end at byte"),
        (b"", "it ends too soon"),
        (written(order(*FIELDS), {**ROW, "at": 2**62}), "out of range"),
    ],
)
def test_bytes_that_are_no_avro(data: bytes, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        decoder(order(*FIELDS), order(*FIELDS)).decode(data)


def test_avro_that_has_no_bound_or_no_column() -> None:
    amount = {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}}
    with pytest.raises(BadValue, match="more than 5 digits"):
        decoder(order(amount), order(amount)).decode(b"\x06\x01\x86\xa0")
    with pytest.raises(BadValue, match="a decimal has scale 2, and its column 1"):
        decoder(order(amount), order({"name": "total", "type": {**amount["type"], "scale": 1}}))
    deep = written(order(FIELDS[0], FIELDS[9]), {"id": 1, "next": None})[:-1] + b"\x02\x02" * 100_000 + b"\0"
    with pytest.raises(BadValue, match="recursion"):
        decoder(order(FIELDS[0], FIELDS[9]), order(FIELDS[0], FIELDS[9])).decode(deep)
    for text, words in (
        ('{"type": "array", "items": "null"}', "an array of nulls has no bound"),
        ('{"type": "record"}', "cannot be parsed"),
        ("x", "cannot be parsed"),
    ):
        with pytest.raises(PipelineError, match=words):
            AvroSchema(text).columns  # noqa: B018


def messages(*, with_new: bool) -> FileDescriptorProto:
    file = FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    item = file.message_type.add(name="Item")
    item.field.add(name="count", number=1, type=5, label=1)
    made = file.message_type.add(name="Order")
    made.field.add(name="id", number=1, type=3, label=1)
    made.field.add(name="size", number=2, type=4, label=1)
    made.field.add(name="at", number=3, type=11, type_name=".google.protobuf.Timestamp", label=1)
    made.field.add(name="items", number=4, type=11, type_name=".p.Item", label=3)
    made.field.add(name="next", number=5, type=11, type_name=".p.Order", label=1)
    entry = made.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    made.field.add(name="by", number=6, type=11, type_name=".p.Order.ByEntry", label=3)
    if with_new:
        item.field.add(name="note", number=2, type=9, label=1)
        made.field.add(name="new", number=9, type=9, label=1)
    return file


def schema_of(file: FileDescriptorProto, name: str = "p.Order") -> MessageSchema:
    return MessageSchema(FileDescriptorSet(file=[file]).SerializeToString(), name)


def test_messages_and_what_only_the_writer_has() -> None:
    reader, writer = schema_of(messages(with_new=False)), schema_of(messages(with_new=True))
    assert reader.columns.simpleString() == (
        "struct<id:bigint,size:decimal(20,0),at:timestamp,items:array<struct<count:int>>,next:string,by:map<string,int>>"
    )
    message = GetMessageClass(writer.descriptor)(id=1, size=2**64 - 1, new="n")
    message.at.seconds, message.at.nanos = 1, 2_000
    message.items.add(count=3, note="x")
    message.next.id = 2
    message.by["a"] = 4
    data = message.SerializeToString()
    found = MessageDecoder(reader, writer).decode(data)
    assert found.value == {
        "id": 1,
        "size": 2**64 - 1,
        "at": datetime(1970, 1, 1, 0, 0, 1, 2, UTC),
        "items": [{"count": 3}],
        "next": '{"id": "2"}',
        "by": [("a", 4)],
    }
    assert json.loads(str(found.rescued)) == {"new": "n", "items": {"0": {"note": "x"}}}
    alone = MessageDecoder(reader).decode(data)  # the writer's names are not known
    assert json.loads(str(alone.rescued)) == {"9": "bg==", "items": {"0": {"2": "eA=="}}}
    assert MessageDecoder(reader).decode(b"").value["at"] is None
    values = pickle.loads(pickle.dumps(MessageValues(reader)))  # for the tasks
    with pytest.raises(BadValue, match=r"the value is not a message p\.Order: "):
        values.decode(data[:-1])


def test_descriptors_that_lack_something() -> None:
    lone = messages(with_new=False)
    lone.dependency.append("other.proto")
    for files, name, words in (
        (b"\xff", "p.Order", "is none that protoc"),
        (schema_of(messages(with_new=False)).files, "p.Other", r"no message p\.Other .* there are p\.Item, p\.Order"),
        (schema_of(lone).files, "p.Order", "lack a file that they import"),
    ):
        with pytest.raises(PipelineError, match=words):
            MessageSchema(files, name).columns  # noqa: B018


def test_values_of_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from base64 import b64encode

    old = RegisteredSchema("AVRO", json.dumps(order(FIELDS[0])))
    new = RegisteredSchema("AVRO", json.dumps(order(FIELDS[0], {"name": "new", "type": "int"})))
    proto = RegisteredSchema("PROTOBUF", b64encode(messages(with_new=False).SerializeToString()).decode())
    schemas = {1: old, 2: new, 3: proto, 4: RegisteredSchema("AVRO", "x")}
    monkeypatch.setattr("kalda.pipeline.formats.decoders.schema_of", lambda _, number: schemas.get(number))
    subject = Subject("orders-value", old, frozenset((1,)))
    values = RegisteredValues("http://r", subject, AvroValues(AvroSchema(old.text)).schema, ends_at_new=False)
    assert values.decode(b"\0\0\0\0\x01\x02") == ({"id": 1}, None)
    assert values.decode(b"\0\0\0\0\x02\x02\x04") == ({"id": 1}, '{"new": 2}')
    for data, words in (
        (b"\0\0\0\0\x07x", "the schema registry has no schema with the id 7"),
        (b"\0\0\0\0\x03x", "the schema with the id 3 is PROTOBUF, not AVRO"),
        (b"\0\0\0\0\x04x", "the schema with the id 4: the Avro schema x cannot be parsed"),
        (b"\0\0\0\0\x01", "the value is not Avro of the schema with the id 1: it ends too soon"),
        (b"\0\0\0", "the value does not begin with the byte 0"),
        (b"\x01\0\0\0\x01\x02", "the value does not begin with the byte 0"),
    ):
        with pytest.raises(BadValue, match=words):
            values.decode(data)
    with pytest.raises(Exception, match="fields of the schema with the id 2, which is newer than the columns: new"):
        RegisteredValues("http://r", subject, values.reader, ends_at_new=True).decode(b"\0\0\0\0\x02\x02\x04")
    of_messages = RegisteredValues("http://r", subject, message_of(proto, (1,)), ends_at_new=False)
    assert of_messages.decode(b"\0\0\0\0\x03\x02\x02\x08\x05").value["id"] == 5
    with pytest.raises(BadValue, match="its schema has no message 5 of 2"):
        of_messages.decode(b"\0\0\0\0\x03\x02\x0a\x08\x05")
    with pytest.raises(PipelineError, match="as source"):
        message_of(RegisteredSchema("PROTOBUF", 'syntax = "proto3";'))


def test_the_place_of_a_message() -> None:
    assert split(b"\0\0\0\x01\0x") == (256, b"x")
    assert indexes_of(b"\0rest") == ((0,), b"rest")
    assert indexes_of(b"\x04\x02\0rest") == ((1, 0), b"rest")
    for data in (b"", b"\x80", b"\x01", b"\x7f", b"\x02\x01", b"\xff" * 9):
        with pytest.raises(BadValue):
            indexes_of(data)


def test_columns_of_schemas_in_json() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "total": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "items": {"type": "array", "items": {"type": "object", "properties": {"is": {"type": "boolean"}}}},
            "any": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        },
    }
    assert ddl_of(json.dumps(schema)) == (
        "`id` bigint, `name` string, `total` double, `items` array<struct<`is`: boolean>>, `any` string"
    )
    for text in ("x", '"string"', '{"type": "object"}', "[" * 100_000):
        with pytest.raises(PipelineError, match="describes no object with properties"):
            ddl_of(text)


def test_the_row_in_a_change_of_debezium() -> None:
    fields = [{"field": "id", "type": "int32"}]
    change = {"schema": {"fields": [{"field": "before"}, {"field": "after", "fields": fields}]}, "payload": {}}
    assert row_of(json.dumps(change).encode()) == fields
    for value in (None, b"", b"{}", b'{"schema": 1}', b'{"schema": {"fields": [{"field": "before"}]}}', b"\xff"):
        assert row_of(value) is None
