"""Bytes to keys and values: what `key.deserializer` and `value.deserializer` may be.

A name (`bytes`, `str`, `int`, `float`, `uuid`, `json`), or an object with `deserialize(topic, headers, data)`, or a
function of the bytes. They are the inverses of the serializers of the same names; `int` reads one to eight bytes, and
`float` four or eight, so that Kafka's Short, Integer, Long, Float and Double are read. Null stays None: a deserializer
is not called for it. `bytes` costs nothing: keys and values are then made when they are first read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kalda.base.configs.definition import InvalidConfig

if TYPE_CHECKING:
    from kalda.records.consuming import Headers, Read

_FLOAT, _DOUBLE = Struct(">f"), Struct(">d")


@runtime_checkable
class Deserializer(Protocol):
    """Makes a key or a value of bytes."""

    def deserialize(self, topic: str, headers: Headers, data: bytes) -> Any:
        """The object. Raises any exception, which `poll` raises as `UndecodableRecord`."""
        ...


def _str(_topic: str, _headers: Headers, data: bytes) -> str:
    return data.decode()


def _int(_topic: str, _headers: Headers, data: bytes) -> int:
    if not 1 <= len(data) <= 8:
        raise ValueError(f"{len(data)} bytes are not an integer of at most 64 bits")
    return int.from_bytes(data, "big", signed=True)


def _float(_topic: str, _headers: Headers, data: bytes) -> float:
    if len(data) not in (4, 8):
        raise ValueError(f"{len(data)} bytes are neither a float nor a double")
    value: float = (_FLOAT if len(data) == 4 else _DOUBLE).unpack(data)[0]
    return value


def _uuid(_topic: str, _headers: Headers, data: bytes) -> Any:
    from uuid import UUID

    return UUID(data.decode())


def _json(_topic: str, _headers: Headers, data: bytes) -> Any:
    import json

    return json.loads(data)


_BY_NAME: dict[str, Read | None] = {
    "bytes": None,
    "str": _str,
    "int": _int,
    "float": _float,
    "uuid": _uuid,
    "json": _json,
}


def deserializer_of(key: str, given: object) -> Read | None:
    """The function of a configured deserializer; None: keys and values stay bytes. Raises `InvalidConfig`."""
    if given is None:
        return None
    if isinstance(given, str):
        if given not in _BY_NAME:
            raise InvalidConfig(
                f"Invalid value {given} for configuration {key}: {', '.join(_BY_NAME)}, an object with deserialize, or "
                f"a function is expected"
            )
        return _BY_NAME[given]
    if given is bytes:
        return None
    if isinstance(given, Deserializer) and not isinstance(given, type):
        return given.deserialize
    if callable(given):
        function: Callable[[bytes], Any] = given
        return lambda _topic, _headers, data: function(data)
    raise InvalidConfig(f"Invalid value {given!r} for configuration {key}: it deserializes nothing")
