"""Serializers and deserializers of a schema registry, in its wire format, for producers and consumers.

    from kalda import Producer
    from kalda.registry import Registry

    registry = Registry("http://localhost:8081")
    with Producer(bootstrap_servers="localhost:9092", value_serializer=registry.avro(schema)) as producer:
        producer.send("orders", {"total": 42})

Needs the extra `registry`: confluent-kafka's library talks to the registry, and encodes Avro, Protobuf and JSON Schema.
Options of its serializers (`auto.register.schemas`) are passed as `options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class _Codec:
    """One of the library's serializers or deserializers, which are called with a value and a context."""

    def __init__(self, call: Callable[[Any, Any], Any], is_key: bool) -> None:
        from confluent_kafka.serialization import MessageField, SerializationContext

        self._call = call
        self._context = SerializationContext
        self._field = MessageField.KEY if is_key else MessageField.VALUE


class RegistrySerializer(_Codec):
    """For `key.serializer` and `value.serializer`."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """The magic byte, the schema's id, and the encoded value. Raises what the library raises."""
        data: bytes | None = self._call(value, self._context(topic, self._field))
        return data


class RegistryDeserializer(_Codec):
    """For `key.deserializer` and `value.deserializer`."""

    def deserialize(self, topic: str, _headers: object, data: bytes) -> Any:
        """The value, by the schema whose id is in the data. Raises what the library raises."""
        return self._call(data, self._context(topic, self._field))


class Registry:
    """A client of a schema registry."""

    def __init__(self, url: str, **keys: Any) -> None:
        """`keys` are those of confluent-kafka's `SchemaRegistryClient`, in snake_case (`basic_auth_user_info`). Raises
        `ImportError` without the extra."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ImportError(f"schema registries need the extra: pip install 'kalda[registry]' ({error})") from error
        config = {"url": url, **{name.replace("_", "."): value for name, value in keys.items()}}
        self.client = SchemaRegistryClient.new_client(config)
        """The library's client, for subjects, versions and compatibility."""

    def avro(
        self, schema: str, *, is_key: bool = False, options: Mapping[str, object] | None = None
    ) -> RegistrySerializer:
        """Encodes dictionaries by an Avro schema, which is JSON text."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        return RegistrySerializer(AvroSerializer(self.client, schema, conf=dict(options or {})), is_key)

    def json_schema(
        self, schema: str, *, is_key: bool = False, options: Mapping[str, object] | None = None
    ) -> RegistrySerializer:
        """Encodes what a JSON Schema describes."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        return RegistrySerializer(JSONSerializer(schema, self.client, conf=dict(options or {})), is_key)

    def protobuf(
        self, message_type: type, *, is_key: bool = False, options: Mapping[str, object] | None = None
    ) -> RegistrySerializer:
        """Encodes messages of a generated class."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        return RegistrySerializer(ProtobufSerializer(message_type, self.client, conf=dict(options or {})), is_key)

    def read_avro(self, schema: str | None = None, *, is_key: bool = False) -> RegistryDeserializer:
        """Decodes Avro by the schema with which it was written, as `schema` where it is given."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        return RegistryDeserializer(AvroDeserializer(self.client, schema), is_key)

    def read_json_schema(self, schema: str | None = None, *, is_key: bool = False) -> RegistryDeserializer:
        """Decodes JSON, and checks it by the schema with which it was written."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return RegistryDeserializer(JSONDeserializer(schema, schema_registry_client=self.client), is_key)

    def read_protobuf(self, message_type: type, *, is_key: bool = False) -> RegistryDeserializer:
        """Decodes messages of a generated class."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        return RegistryDeserializer(ProtobufDeserializer(message_type, {}, self.client), is_key)
