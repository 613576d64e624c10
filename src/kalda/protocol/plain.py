"""Messages as JSON types, for people and for tables."""

from __future__ import annotations

from base64 import b64encode

from kalda.base.ids import Uuid, uuid_to_text
from kalda.protocol.notation import Struct


def plain_fields(struct: Struct) -> dict[str, object]:
    """The fields of a message as JSON types: UUIDs in Kafka's base64 form, other bytes as text where
    they are UTF-8, else as an object with their base64."""
    return {name: _plain(struct, name, getattr(struct, name)) for name in type(struct).declared}


def _plain(struct: Struct, name: str, value: object) -> object:
    if isinstance(value, Struct):
        return plain_fields(value)
    if isinstance(value, list | tuple):
        return [_plain(struct, name, inner) for inner in value]
    if isinstance(value, bytes | bytearray | memoryview):
        if "Uuid" in type(struct).__annotations__[name]:
            return uuid_to_text(Uuid(bytes(value)))
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode("ascii")}
    return value
