"""Keys and values to bytes: what `key.serializer` and `value.serializer` may be.

The name of a type (`serdes`: `str`, `int`, `json`, Kafka's class names), an object with `serialize(topic, value)`, or a
function of the value. Of a class the object has been made before (`interceptors.codec_of`). None stays None: a record
without a key, or a tombstone.
"""

from __future__ import annotations

import inspect
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
_NO_HEADERS: Any = ()
Serialize = Callable[[str, Any, Any], bytes | None]
"""The bytes of a topic's key or value. The third argument are the record's headers: a list of pairs, where the
serializer `sees_headers`."""


def to_bytes(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
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
        return _none_or(_guarded(lambda _topic, value, _: serde.to_bytes(value), "the value is not of the type"))
    if isinstance(given, Serializer):
        return _guarded(_in_order(given.serialize))
    if callable(given):
        function = given
        if sees_headers(function):
            return _guarded(lambda _topic, value, headers: function(value, headers=headers))
        return _guarded(lambda _topic, value, _: function(value))
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it has no serialize(topic, value)")


def _none_or(serialize: Serialize) -> Serialize:
    def call(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
        return None if value is None else serialize(topic, value, headers)

    return call


def sees_headers(given: object) -> bool:
    """Whether a serializer that was configured has a parameter `headers`."""
    serialize = getattr(given, "serialize", given)
    if not callable(serialize):
        return False
    try:
        return "headers" in inspect.signature(serialize).parameters
    except (TypeError, ValueError):  # a function without a signature, as some of C
        return False


def _in_order(serialize: Callable[..., Any]) -> Callable[[str, Any, Any], Any]:
    """`serialize(topic, value)`, or with `headers` behind the topic, as in Java, or anywhere else."""
    if not sees_headers(serialize):
        return lambda topic, value, _: serialize(topic, value)
    if list(inspect.signature(serialize).parameters)[1:2] == ["headers"]:
        return lambda topic, value, headers: serialize(topic, headers, value)
    return lambda topic, value, headers: serialize(topic, value, headers=headers)


def _guarded(serialize: Callable[[str, Any, Any], Any], what: str = "the serializer failed") -> Serialize:
    def call(topic: str, value: Any, headers: Any = _NO_HEADERS) -> bytes | None:
        try:
            return to_bytes(topic, serialize(topic, value, headers))
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"{topic}: {what}: {error}") from error

    return call
