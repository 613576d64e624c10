"""Messages with random values in every field that a version has, from a seeded source."""

from __future__ import annotations

from random import Random
from typing import Any

from kalda.protocol.notation import Message, Struct
from kalda.protocol.schema import WireField, is_flexible, wire_struct

BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
TEXTS = ("", "a", "topic-1", "Käse ☂ 🗻", "x" * 126, "x" * 127, "x" * 128, "y" * 300, "\x00")


def random_message(rng: Random, cls: type[Message], version: int) -> Message:
    """A message with random values in the fields of `version`, and defaults in all others."""
    message = _struct(rng, cls, version, is_flexible(cls, version), 3)
    assert isinstance(message, Message)
    return message


def smallest_messages(cls: type[Message], version: int, count: int) -> list[Message]:
    """For each array of structs or strings in the message: a message with `count` elements in this array, each of the
    smallest size."""
    flexible = is_flexible(cls, version)
    layout = wire_struct(cls, version, flexible)
    found = []
    for field in layout.fields + layout.tagged:
        if field.is_list:
            for element in _smallest_elements(field, version, flexible):
                message = _smallest(cls, version, flexible)
                setattr(message, field.name, [element] * count)
                found.append(message)
    return found


def _struct(rng: Random, cls: type[Struct], version: int, flexible: bool, width: int) -> Struct:
    layout = wire_struct(cls, version, flexible)
    values: dict[str, Any] = {field.name: _value(rng, field, version, flexible, width) for field in layout.fields}
    for field in layout.tagged:
        if rng.random() < 0.6:
            values[field.name] = _value(rng, field, version, flexible, width)
    return cls(**values)


def _value(rng: Random, field: WireField, version: int, flexible: bool, width: int) -> Any:
    if field.nullable and rng.random() < 0.25:
        return None
    if field.is_list:
        item = field._replace(is_list=False, nullable=False)
        return [_value(rng, item, version, flexible, max(width - 1, 1)) for _ in range(rng.randint(0, width))]
    if field.struct is not None:
        return _struct(rng, field.struct, version, flexible, width)
    if field.kind in ("String", "LegacyString"):
        return rng.choice(TEXTS)
    if field.kind in ("Bytes", "Records"):
        return rng.randbytes(rng.choice((0, 1, 3, 126, 127, 128, 200)))
    return _scalar(rng, field)


def _scalar(rng: Random, field: WireField) -> Any:
    if field.kind == "Uuid":
        return rng.randbytes(16)
    if field.kind == "Bool":
        return rng.random() < 0.5
    if field.kind == "Float64":
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if field.kind in ("UInt16", "UInt32"):
        return rng.choice((0, 1, 9092, 65535))
    half = 1 << BITS[field.kind] - 1
    if field.name.endswith("error_code"):
        return rng.randint(-1, 133)
    if any(word in field.name for word in ("time", "_ms", "session_life")):
        return rng.randint(0, min(half - 1, 1 << 40))  # kio turns these into dates and durations
    return rng.choice((0, 1, -1, half - 1, -half, rng.randint(-half, half - 1)))


def _smallest(cls: type[Struct], version: int, flexible: bool) -> Any:
    layout = wire_struct(cls, version, flexible)
    return cls(**{field.name: _smallest_value(field, version, flexible) for field in layout.fields})


def _smallest_value(field: WireField, version: int, flexible: bool) -> Any:
    if field.is_list:
        return []  # takes more memory than null, and as many bytes on the wire
    if field.struct is not None:
        return None if field.nullable else _smallest(field.struct, version, flexible)
    if field.kind in ("String", "LegacyString"):
        return ""
    return b"" if field.kind in ("Bytes", "Records") else bytes(16) if field.kind == "Uuid" else 0


def _smallest_elements(field: WireField, version: int, flexible: bool) -> list[Any]:
    if field.struct is None:
        return [_smallest_value(field._replace(is_list=False), version, flexible)]
    elements = [_smallest(field.struct, version, flexible)]
    layout = wire_struct(field.struct, version, flexible)
    for inner in layout.fields:
        if inner.is_list:
            for small in _smallest_elements(inner, version, flexible):
                element = _smallest(field.struct, version, flexible)
                setattr(element, inner.name, [small])
                elements.append(element)
    return elements
