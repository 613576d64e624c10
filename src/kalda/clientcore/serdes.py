"""The types of Kafka's own serializers and deserializers, by their names: bytes are as Kafka's Java clients write them.

A type is named as Kafka names it (`org.apache.kafka.common.serialization.IntegerSerializer`, `…IntegerDeserializer`,
`…Serdes$IntegerSerde`), or in short: `int` and `float` are Kafka's Long and Double, eight bytes each; the others have
the names in `_SHORT`. `list[short]` is a list of those; Kafka's own name of lists takes the type of the elements from
`default.list.key.serde.inner` or `default.list.value.serde.inner`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from kalda.base.configs.definition import InvalidConfig

if TYPE_CHECKING:
    from kalda.records.consuming import Headers, Read

_PACKAGE: Final = "org.apache.kafka.common.serialization."
_LIST: Final = "List"
_INT: Final = Struct(">i")
_NULL_ENTRY: Final = -1
_CONSTANT_SIZE, _VARIABLE_SIZE = 0, 1


class Serde(NamedTuple):
    """How values of a type become bytes, and bytes values. Both raise `ValueError`; None is not passed to them."""

    to_bytes: Callable[[Any], bytes | None]
    from_bytes: Callable[[bytes], Any]
    fixed_bytes: int | None = None
    """The size of every value, where that is known: a list of such values is written without their sizes."""


def _number(name: str, form: str, kind: str) -> Serde:
    struct = Struct(form)

    def to_bytes(value: Any) -> bytes:
        try:
            return struct.pack(value)
        except (struct_error, OverflowError) as error:
            raise ValueError(f"{kind} of {struct.size * 8} bits is expected, not {value!r}") from error

    def from_bytes(data: bytes) -> Any:
        if len(data) != struct.size:
            raise ValueError(f"{len(data)} bytes are no {name}: {struct.size} are expected")
        return struct.unpack(data)[0]

    return Serde(to_bytes, from_bytes, struct.size)


def _text_to_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"a str is expected, not {type(value).__name__}")
    return value.encode()


def _uuid_to_bytes(value: Any) -> bytes:
    from uuid import UUID

    if not isinstance(value, UUID):
        raise ValueError(f"a uuid.UUID is expected, not {type(value).__name__}")
    return str(value).encode()


def _uuid_from_bytes(data: bytes) -> Any:
    from uuid import UUID

    return UUID(data.decode())


def _bool_to_bytes(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise ValueError(f"a bool is expected, not {value!r}")
    return b"\x01" if value else b"\x00"


def _bool_from_bytes(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise ValueError(f"{data[:8]!r} is no Boolean: one byte, 0 or 1, is expected")
    return data == b"\x01"


def _buffer_to_bytes(value: Any) -> bytes:
    try:
        return bytes(memoryview(value))
    except TypeError as error:
        raise ValueError(f"bytes are expected, not {type(value).__name__}") from error


def _nothing_to_bytes(_value: Any) -> None:
    return None


def _nothing_from_bytes(data: bytes) -> None:
    raise ValueError(f"{len(data)} bytes are no Void: a null is expected")


def _json_to_bytes(value: Any) -> bytes:
    import json

    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _json_from_bytes(data: bytes) -> Any:
    import json

    return json.loads(data)


_BYTES: Final = Serde(_buffer_to_bytes, bytes)
_BY_KAFKAS_NAME: Final[dict[str, Serde]] = {
    "Boolean": Serde(_bool_to_bytes, _bool_from_bytes),
    "ByteArray": _BYTES,
    "ByteBuffer": _BYTES,
    "Bytes": _BYTES,
    "Double": _number("Double", ">d", "a float"),
    "Float": _number("Float", ">f", "a float"),
    "Integer": _number("Integer", ">i", "an int"),
    "Long": _number("Long", ">q", "an int"),
    "Short": _number("Short", ">h", "an int"),
    "String": Serde(_text_to_bytes, bytes.decode),
    "UUID": Serde(_uuid_to_bytes, _uuid_from_bytes, 36),
    "Void": Serde(_nothing_to_bytes, _nothing_from_bytes),
}
_SHORT: Final[dict[str, str]] = {
    "bytes": "ByteArray", "str": "String", "string": "String", "int": "Long", "float": "Double", "uuid": "UUID",
    "short": "Short", "int16": "Short", "integer": "Integer", "int32": "Integer", "long": "Long", "int64": "Long",
    "float32": "Float", "double": "Double", "float64": "Double", "bool": "Boolean", "boolean": "Boolean",
    "bytebuffer": "ByteBuffer", "void": "Void", "list": _LIST,
}  # fmt: skip
_OF_KALDA: Final[dict[str, Serde]] = {"json": Serde(_json_to_bytes, _json_from_bytes)}
NAMES: Final = ", ".join([*_SHORT, *_OF_KALDA, "list[…] of one of these"])


def serde_of(key: str, name: str, configs: Mapping[str, object]) -> Serde:
    """The type that the configuration `key` names; `configs` has that of a list's elements. Raises `InvalidConfig`."""
    if name in _OF_KALDA:
        return _OF_KALDA[name]
    if name.startswith("list[") and name.endswith("]"):
        return _list_of(serde_of(key, name.removeprefix("list[").removesuffix("]"), configs))
    kafkas = _SHORT.get(name) or _kafkas_name(name)
    if kafkas == _LIST:
        inner_key = f"default.list.{key.partition('.')[0]}.serde.inner"
        inner = configs.get(inner_key)
        if not isinstance(inner, str):
            raise InvalidConfig(f"{key}: a list needs the type of its elements: set {inner_key}, or name list[…]")
        return _list_of(serde_of(inner_key, inner, {}))
    if kafkas not in _BY_KAFKAS_NAME:
        raise InvalidConfig(f"Invalid value {name} for configuration {key}: expected {NAMES}, or an object or function")
    return _BY_KAFKAS_NAME[kafkas]


def _kafkas_name(name: str) -> str:
    """What is between the package and the ending of a class of Kafka's; empty for other names."""
    if not name.startswith(_PACKAGE):
        return ""
    plain = name.removeprefix(_PACKAGE).removeprefix("Serdes$")
    for ending in ("Serializer", "Deserializer", "Serde"):
        if plain.endswith(ending):
            return plain.removesuffix(ending)
    return ""


def _list_of(inner: Serde) -> Serde:
    """As Kafka's ListSerializer: values of a known size without theirs, behind the positions of the nulls among them;
    others behind their sizes, and nulls as the size -1."""
    fixed_bytes = inner.fixed_bytes

    def to_bytes(values: Any) -> bytes:
        if not isinstance(values, list | tuple):
            raise ValueError(f"a list is expected, not {type(values).__name__}")
        out = bytearray((_VARIABLE_SIZE if fixed_bytes is None else _CONSTANT_SIZE,))
        if fixed_bytes is not None:
            nulls = [at for at, value in enumerate(values) if value is None]
            out += b"".join(map(_INT.pack, (len(nulls), *nulls)))
        out += _INT.pack(len(values))
        for value in values:
            data = None if value is None else inner.to_bytes(value)
            if fixed_bytes is None:
                out += _INT.pack(_NULL_ENTRY if data is None else len(data))
            out += data or b""
        return bytes(out)

    def from_bytes(data: bytes) -> list[Any]:
        reader = _Reader(data)
        kind = reader.take(1)[0]
        if kind not in (_CONSTANT_SIZE, _VARIABLE_SIZE):
            raise ValueError(f"{kind} is no kind of list: 0 or 1 is expected")
        if kind == _CONSTANT_SIZE and fixed_bytes is None:
            raise ValueError("the list has elements of one size, which the configured type has not")
        nulls = {reader.number() for _ in range(reader.count())} if kind == _CONSTANT_SIZE else frozenset()
        values: list[Any] = []
        for at in range(reader.count()):
            size = reader.number() if kind == _VARIABLE_SIZE else fixed_bytes or 0
            is_null = size == _NULL_ENTRY or at in nulls
            values.append(None if is_null else inner.from_bytes(reader.take(size)))
        return values

    return Serde(to_bytes, from_bytes)


class _Reader:
    """Reads a list from its start to its end. Raises `ValueError` where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"the list ends after {len(self._data)} bytes, within an element or its size")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        """The next four bytes."""
        number: int = _INT.unpack(self.take(_INT.size))[0]
        return number

    def count(self) -> int:
        """The next four bytes, which count something that has a byte at least."""
        count = self.number()
        if not 0 <= count <= len(self._data):
            raise ValueError(f"{count} elements are not in {len(self._data)} bytes")
        return count


# Objects of the application that a client makes, configures and closes.
#
# What `interceptor.classes` names, objects or classes of such, may have `configure(configs)`, called with the
# client's keys as they were given. A class that `key.serializer` or one of its like names may have
# `configure(configs, is_key)`, which is not called for an object: whoever made that has configured it, as in Kafka.
# `close()` is called once for each.

log = logging.getLogger(__name__)


def interceptors_of(given: Mapping[str, object], calls: str) -> tuple[Any, ...]:
    """The configured objects; `calls` are what they need to have. Raises `InvalidConfig`."""
    found = given.get("interceptor.classes") or ()
    if not isinstance(found, list | tuple) or any(isinstance(each, str) for each in found):
        raise InvalidConfig(f"interceptor.classes: a list of objects or classes with {calls} is expected")
    made = tuple(each() if isinstance(each, type) else each for each in found)
    for each in made:
        getattr(each, "configure", _nothing)(given)
    return made


def codec_of(given: object, method: str, configs: Mapping[str, object], *, is_key: bool) -> object:
    """A class that has the method becomes an object of it that is configured; anything else is as it is."""
    if not isinstance(given, type) or not hasattr(given, method):
        return given
    made = given()
    getattr(made, "configure", _nothing)(configs, is_key)
    return made


def close_all(objects: Iterable[object]) -> None:
    """Close those that have a `close`, each once. What it raises is logged."""
    for each in {id(each): each for each in objects if not isinstance(each, type)}.values():
        try:
            getattr(each, "close", _nothing)()
        except Exception:
            log.exception("%r could not be closed", each)


def _nothing(*_arguments: object) -> None:
    return None


# Bytes to keys and values: what `key.deserializer` and `value.deserializer` may be.
#
# The name of a type (`serdes`), an object with `deserialize(topic, headers, data)`, or a function of the bytes. Of a
# class the object has been made before (`interceptors.codec_of`). They are the inverses of the serializers of the
# same names; `int` reads one to eight bytes, and `float` four or eight, so that Kafka's Short, Integer, Long, Float
# and Double are read. Null stays None: a deserializer is not called for it. `bytes` costs nothing: keys and values
# are then made when they are first read.

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
