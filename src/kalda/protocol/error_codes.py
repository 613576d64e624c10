"""Counts the error codes of a response, by a function that is generated for its class and version.

A response has codes at its top, of its topics, of their partitions, wherever a field is named `error_code`. The
function visits each of them once, NONE (0) included, and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from kalda.protocol.notation import Response, Struct
from kalda.protocol.schema import is_flexible, wire_struct

_FIELD = "error_code"
Counts = defaultdict[int, int]


def error_counter(response: type[Response], version: int) -> Callable[[Response, Counts], None]:
    """`count(response, counts)` adds one for each error code."""
    lines = _lines(response, version, is_flexible(response, version), "response", 1)
    source = "\n".join(["def count(response, counts):", *(lines or ["    counts[0] += 1"])])
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<error codes of {response.__name__} v{version}>", "exec"), namespace)
    count: Callable[[Response, Counts], None] = namespace["count"]
    return count


def _lines(struct: type[Struct], version: int, flexible: bool, owner: str, depth: int) -> list[str]:
    """Statements that count the codes of `owner`, a variable; none where it has no codes."""
    indent = "    " * depth
    layout = wire_struct(struct, version, flexible)
    found: list[str] = []
    for field in layout.fields + layout.tagged:
        if field.name == _FIELD:
            found.append(f"{indent}counts[{owner}.{_FIELD}] += 1")
        if field.struct is None:
            continue
        inner = f"inner_{depth}"
        lines = _lines(field.struct, version, flexible, inner, depth + 1)
        if lines:
            value = f"{owner}.{field.name}"
            items = (f"{value} or ()" if field.nullable else value) if field.is_list else f"({value},)"
            if not field.is_list and field.nullable:
                items = f"(() if {value} is None else ({value},))"
            found += [f"{indent}for {inner} in {items}:", *lines]
    return found
