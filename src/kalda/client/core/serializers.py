"""Keys and values to bytes: what `key.serializer` and `value.serializer` may be.

A name (`bytes`, `str`, `int`, `float`, `uuid`, `json`), an object with `serialize(topic, value)`, or a function of the
value. Numbers are as Kafka's LongSerializer and DoubleSerializer write them: eight bytes, big-endian. None stays None:
a record without a key, or a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Any, Protocol, runtime_checkable

from kalda.base.configs.definition import InvalidConfig
from kalda.client.core.producer_errors import SerializationError

_LONG = Struct(">q")
_DOUBLE = Struct(">d")


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of a key or a value."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """The bytes. Raises any exception, which the caller of `send` gets as a `SerializationError`."""
        ...


Serialize = Callable[[str, Any], bytes | None]


def to_bytes(topic: str, value: Any) -> bytes | None:
    """Bytes as they are; other buffers as bytes."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise SerializationError(f"{topic}: bytes are expected, not {type(value).__name__}; choose another serializer")


def _str(topic: str, value: Any) -> bytes | None:
    if not isinstance(value, str):
        raise SerializationError(f"{topic}: a str is expected, not {type(value).__name__}")
    return value.encode()


def _int(topic: str, value: Any) -> bytes | None:
    try:
        return _LONG.pack(value)
    except struct_error as error:
        raise SerializationError(f"{topic}: an int of 64 bits is expected, not {value!r}") from error


def _float(topic: str, value: Any) -> bytes | None:
    try:
        return _DOUBLE.pack(value)
    except struct_error as error:
        raise SerializationError(f"{topic}: a float is expected, not {value!r}") from error


def _uuid(topic: str, value: Any) -> bytes | None:
    from uuid import UUID

    if not isinstance(value, UUID):
        raise SerializationError(f"{topic}: a uuid.UUID is expected, not {type(value).__name__}")
    return str(value).encode()  # as Kafka's UUIDSerializer


def _json(topic: str, value: Any) -> bytes | None:
    import json

    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise SerializationError(f"{topic}: not serializable as JSON: {error}") from error


_BY_NAME: dict[str, Serialize] = {
    "bytes": to_bytes, "str": _str, "int": _int, "float": _float, "uuid": _uuid, "json": _json,
}  # fmt: skip


def serializer_of(key: str, given: object) -> Serialize:
    """The serializer that a configuration names. Raises `InvalidConfig`."""
    if given is None:
        return to_bytes
    if isinstance(given, str):
        found = _BY_NAME.get(given)
        if found is None:
            raise InvalidConfig(
                f"Invalid value {given} for configuration {key}: expected {', '.join(_BY_NAME)}, or "
                "an object with serialize(topic, value)"
            )
        return to_bytes if found is to_bytes else _none_or(found)
    if isinstance(given, Serializer):
        return _guarded(given.serialize)
    if callable(given):
        function = given
        return _guarded(lambda _topic, value: function(value))
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it has no serialize(topic, value)")


def _none_or(serialize: Serialize) -> Serialize:
    return lambda topic, value: None if value is None else serialize(topic, value)


def _guarded(serialize: Callable[[str, Any], Any]) -> Serialize:
    def call(topic: str, value: Any) -> bytes | None:
        try:
            return to_bytes(topic, serialize(topic, value))
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"{topic}: the serializer failed: {error}") from error

    return call
