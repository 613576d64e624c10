"""The error codes and messages of a decoded response, at every place where its API has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kalda.protocol.notation import Response, Struct
from kalda.protocol.schema import is_flexible, wire_struct


def structs_with_errors(response: Response, version: int) -> Iterator[tuple[Any, bool]]:
    """Every struct that has an `error_code` in that version, the response itself first; and whether it has an
    `error_message` there too. In AddPartitionsToTxn the field is a `partition_error_code`."""
    yield from _walk(response, version, is_flexible(type(response), version))


def error_codes(response: Response, version: int) -> list[int]:
    """All error codes in the response, one on top first."""
    structs = [struct for struct, _ in structs_with_errors(response, version)]
    return [getattr(struct, "partition_error_code", None) or getattr(struct, "error_code", 0) for struct in structs]


def _walk(struct: Struct, version: int, flexible: bool) -> Iterator[tuple[Any, bool]]:
    layout = wire_struct(type(struct), version, flexible)
    present = layout.fields + layout.tagged
    names = {field.name for field in present}
    if names & {"error_code", "partition_error_code"}:
        yield struct, "error_message" in names
    for field in present:
        if field.struct is not None:
            value = getattr(struct, field.name)
            if value is not None:
                for inner in value if field.is_list else [value]:
                    yield from _walk(inner, version, flexible)
