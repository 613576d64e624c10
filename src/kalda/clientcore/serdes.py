"""The types of Kafka's own serializers and deserializers, by their names: bytes are as Kafka's Java clients write them.

A type is named as Kafka names it (`org.apache.kafka.common.serialization.IntegerSerializer`, `…IntegerDeserializer`,
`…Serdes$IntegerSerde`), or in short: `int` and `float` are Kafka's Long and Double, eight bytes each; the others have
the names in `_SHORT`. `list[short]` is a list of those; Kafka's own name of lists takes the type of the elements from
`default.list.key.serde.inner` or `default.list.value.serde.inner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from kalda.base.configs.definition import InvalidConfig

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
