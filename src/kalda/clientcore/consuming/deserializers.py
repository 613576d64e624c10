"""Bytes to keys and values: what `key.deserializer` and `value.deserializer` may be.

The name of a type (`serdes`), an object with `deserialize(topic, headers, data)`, or a function of the bytes. Of a
class the object has been made before (`interceptors.codec_of`). They are the inverses of the serializers of the same
names; `int` reads one to eight bytes, and `float` four or eight, so that Kafka's Short, Integer, Long, Float and Double
are read. Null stays None: a deserializer is not called for it. `bytes` costs nothing: keys and values are then made
when they are first read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kalda.base.configs.definition import InvalidConfig
from kalda.clientcore.serdes import serde_of

if TYPE_CHECKING:
    from kalda.records.consuming import Headers, Read

_FLOAT, _DOUBLE = Struct(">f"), Struct(">d")


@runtime_checkable
class Deserializer(Protocol):
    """Makes a key or a value of bytes."""

    def deserialize(self, topic: str, headers: Headers, data: bytes) -> Any:
        """The object. Raises any exception, which `poll` raises as `UndecodableRecord`."""
        ...


def _int(_topic: str, _headers: Headers, data: bytes) -> int:
    if not 1 <= len(data) <= 8:
        raise ValueError(f"{len(data)} bytes are not an integer of at most 64 bits")
    return int.from_bytes(data, "big", signed=True)


def _float(_topic: str, _headers: Headers, data: bytes) -> float:
    if len(data) not in (4, 8):
        raise ValueError(f"{len(data)} bytes are neither a float nor a double")
    value: float = (_FLOAT if len(data) == 4 else _DOUBLE).unpack(data)[0]
    return value


_OF_ANY_SIZE: dict[str, Read] = {"int": _int, "float": _float}
_NO_CONFIGS: Mapping[str, object] = {}


def deserializer_of(key: str, given: object, configs: Mapping[str, object] = _NO_CONFIGS) -> Read | None:
    """The function of a configured deserializer; None: keys and values stay bytes. `configs` are the other keys. Raises
    `InvalidConfig`."""
    if given is None or given is bytes or given == "bytes":
        return None
    if isinstance(given, str):
        if given in _OF_ANY_SIZE:
            return _OF_ANY_SIZE[given]
        serde = serde_of(key, given, configs)
        return None if serde.from_bytes is bytes else lambda _topic, _headers, data: serde.from_bytes(data)
    if isinstance(given, Deserializer):
        return given.deserialize
    if callable(given):
        function: Callable[[bytes], Any] = given
        return lambda _topic, _headers, data: function(data)
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it deserializes nothing")
