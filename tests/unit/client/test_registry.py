"""Values in the wire format of a schema registry, with the library's registry in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kalda.clientcore.producing.outbound_record import serializer_of
from kalda.clientcore.producing.producer_errors import SerializationError
from kalda.clientcore.serdes import deserializer_of
from kalda.registry import Registry

pytest.importorskip("confluent_kafka.schema_registry.avro", reason="needs kalda[registry]")
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "int"}]}
SCHEMA = {"title": "Order", "type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


def decoded(registry: Registry, read: Any, data: bytes | None) -> object:
    function = deserializer_of("value.deserializer", read)
    assert function is not None
    assert data is not None
    return function("orders", (), data)


def test_avro_is_written_and_read() -> None:
    registry = Registry("mock://orders")
    serialize = serializer_of("value.serializer", registry.avro(json.dumps(ORDER)))
    data = serialize("orders", {"total": 42})
    assert data is not None
    assert (data[0], len(data)) == (0, 6), "the magic byte, the id in four bytes, a varint"
    assert decoded(registry, registry.read_avro(), data) == {"total": 42}
    assert registry.client.get_subjects() == ["orders-value"]
    with pytest.raises(SerializationError, match="orders"):
        serialize("orders", {"total": "many"})


def test_json_schema_is_written_and_read_and_keys_have_their_own_subject() -> None:
    registry = Registry("mock://keys")
    serialize = serializer_of("key.serializer", registry.json_schema(json.dumps(SCHEMA), is_key=True))
    data = serialize("orders", {"total": 1})
    assert decoded(registry, registry.read_json_schema(json.dumps(SCHEMA), is_key=True), data) == {"total": 1}
    assert registry.client.get_subjects() == ["orders-key"]


def test_protobuf_is_written_and_read() -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Order").field.add(
        name="total", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    registry = Registry("mock://protobuf")
    serialize = serializer_of("value.serializer", registry.protobuf(message))
    found: Any = decoded(registry, registry.read_protobuf(message), serialize("orders", message(total=7)))
    assert found.total == 7
