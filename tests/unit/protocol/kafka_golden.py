"""Kafka's own messages, as bytes and as data: the reference for the tests of the protocol.

The bytes are those of Apache Kafka 4.3.1 and 4.4.0; layouts and tables are those of 4.4.0, which has all of 4.3.1's.
`KALDA_GOLDEN` may name directories, separated by colons, with the full `frames.jsonl.gz` and `records.jsonl.gz` of the
releases; without it the reduced copies in `tests/golden/protocol` are used.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import kalda.protocol.messages
from kalda.base.ids import uuid_from_text
from kalda.protocol.notation import Message, RecordBody, Request, Response, Struct
from kalda.protocol.schema import WireField, is_flexible, wire_struct

REDUCED = Path(__file__).parents[2] / "golden" / "protocol"
EARLIER_NAMES = {
    "generationIdOrMemberEpoch": "generationId",
    "acceptableRecoveryLagLegacy": "acceptableRecoveryLag",
}
"""What 4.3.1 calls fields that 4.4.0 has renamed."""


def read_lines(path: Path) -> list[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def of_all_releases(name: str) -> list[Any]:
    folders = (os.environ.get("KALDA_GOLDEN") or str(REDUCED)).split(":")
    return [row for folder in folders for row in read_lines(Path(folder) / name)]


@cache
def frames() -> list[Any]:
    """Sorted by message, so that those of one API and direction follow one another."""
    return sorted(of_all_releases("frames.jsonl.gz"), key=lambda row: (row["api"], row["kind"], row["version"]))


@cache
def records() -> list[Any]:
    """Sorted by message."""
    return sorted(of_all_releases("records.jsonl.gz"), key=lambda row: (row["record"], row["version"]))


@cache
def layouts() -> dict[str, Any]:
    return {row["name"]: row for row in read_lines(REDUCED / "layouts.jsonl.gz")}


@cache
def tables() -> Any:
    return read_lines(REDUCED / "tables.jsonl.gz")[0]


@cache
def message_modules() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(kalda.protocol.messages.__path__))


@cache
def message_classes() -> dict[str, type[Message]]:
    """Every message that is declared, by name."""
    found: dict[str, type[Message]] = {}
    for name in message_modules():
        for value in vars(import_module(f"kalda.protocol.messages.{name}")).values():
            if isinstance(value, type) and issubclass(value, Message):
                found[value.__name__] = value
    for base in (Message, Request, Response, RecordBody):
        found.pop(base.__name__, None)
    return found


def from_json(cls: type[Message], version: int, value: Any) -> Message:
    """The message that Kafka's JSON form of `version` stands for."""
    return _struct(cls, version, value, is_flexible(cls, version), layouts()[cls.__name__]["fields"], "")


def _struct(cls: type[Struct], version: int, value: Any, flexible: bool, fields: Any, path: str) -> Any:
    layout = wire_struct(cls, version, flexible)
    values = {}
    for field in layout.fields + layout.tagged:
        where = f"{path}.{field.name}" if path else field.name
        json_name = fields[where]["json"]
        if json_name not in value:
            json_name = EARLIER_NAMES.get(json_name, json_name)
        if json_name in value:
            values[field.name] = _value(field, version, value[json_name], flexible, fields, where)
    return cls(**values)


def _value(field: WireField, version: int, value: Any, flexible: bool, fields: Any, path: str) -> Any:
    if value is None:
        return None
    if field.is_list:
        item = field._replace(is_list=False)
        return [_value(item, version, one, flexible, fields, path) for one in value]
    if field.struct is not None:
        return _struct(field.struct, version, value, flexible, fields, path)
    if field.kind == "Uuid":
        return uuid_from_text(value)
    if field.kind in ("Bytes", "Records"):
        return base64.b64decode(value)
    return float(value) if field.kind == "Float64" else value
