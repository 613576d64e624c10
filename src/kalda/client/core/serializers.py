"""Keys and values to bytes: what `key.serializer` and `value.serializer` may be.

The name of a type (`serdes`: `str`, `int`, `json`, Kafka's class names), an object with `serialize(topic, value)` or a
class of such, or a function of the value. None stays None: a record without a key, or a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from kalda.base.configs.definition import InvalidConfig
from kalda.client.core.producer_errors import SerializationError
from kalda.client.core.serdes import serde_of


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of a key or a value."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """The bytes. Raises any exception, which the caller of `send` gets as a `SerializationError`."""
        ...


_NO_CONFIGS: Mapping[str, object] = {}
Serialize = Callable[[str, Any], bytes | None]


def to_bytes(topic: str, value: Any) -> bytes | None:
    """Bytes as they are; other buffers as bytes."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SerializationError(f"{topic}: bytes are expected, not {type(value).__name__}; choose another serializer")


def serializer_of(key: str, given: object, configs: Mapping[str, object] = _NO_CONFIGS) -> Serialize:
    """The serializer that a configuration names; `configs` are its other keys. Raises `InvalidConfig`."""
    if given is None or given == "bytes":
        return to_bytes
    if isinstance(given, str):
        serde = serde_of(key, given, configs)
        return _none_or(_guarded(lambda _topic, value: serde.to_bytes(value), "the value is not of the type"))
    if isinstance(given, type) and isinstance(given, Serializer):
        given = given()
    if isinstance(given, Serializer):
        return _guarded(given.serialize)
    if callable(given):
        function = given
        return _guarded(lambda _topic, value: function(value))
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it has no serialize(topic, value)")


def _none_or(serialize: Serialize) -> Serialize:
    return lambda topic, value: None if value is None else serialize(topic, value)


def _guarded(serialize: Callable[[str, Any], Any], what: str = "the serializer failed") -> Serialize:
    def call(topic: str, value: Any) -> bytes | None:
        try:
            return to_bytes(topic, serialize(topic, value))
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"{topic}: {what}: {error}") from error

    return call
