"""Requests that name things: two elements in every array, and a different value in every field."""

from __future__ import annotations

from itertools import count
from typing import Any

from kalda.protocol.apis import ApiKey, request_class
from kalda.protocol.notation import Request, Struct
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct

_NUMBERS = frozenset(("Int8", "Int16", "UInt16", "Int32", "UInt32", "Int64"))


def naming_request(key: ApiKey, version: int) -> Request:
    """A request of that API in which every field that the version has is set, strings to `name-1`, `name-2` and so on.
    Numbers count up from 1 as well, so that no two partitions of a topic are the same."""
    cls = request_class(key)
    flexible = is_flexible(cls, version)
    request = _struct(wire_struct(cls, version, flexible), version, count(1))
    assert isinstance(request, Request)
    return request


def _struct(layout: WireStruct, version: int, numbers: count[int]) -> Struct:
    fields = layout.fields + layout.tagged
    return layout.cls(**{field.name: _value(field, version, layout.flexible, numbers) for field in fields})


def _value(field: WireField, version: int, flexible: bool, numbers: count[int]) -> Any:
    if field.is_list:
        element = field._replace(is_list=False)
        return [_value(element, version, flexible, numbers) for _ in range(2)]
    if field.struct is not None:
        return _struct(wire_struct(field.struct, version, flexible), version, numbers)
    if field.kind == "Bool":
        return True
    number = next(numbers)
    if field.kind in _NUMBERS:
        return number
    if field.kind == "Float64":
        return float(number)
    if field.kind == "Uuid":
        return number.to_bytes(16, "big")
    if field.kind in ("Bytes", "Records"):
        return f"bytes-{number}".encode()
    return f"name-{number}"
