"""Counts the error codes of responses, by an encoder that is generated for a response's class and version.

A response has codes at its top, of its topics, of their partitions, wherever a field is named `error_code`. Each is
compared with NONE (0) before the response is encoded, and counted where it differs. It is one function, without further
calls, since all responses of a node pass it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from kalda.protocol.notation import Response, Struct
from kalda.protocol.schema import is_flexible, wire_struct

T = TypeVar("T")
_FIELD = "error_code"
Counts = defaultdict[int, int]
"""How often each code but NONE was there."""


def counting_encoder(
    response: type[Response], version: int, encode: Callable[[int, Response], T], counts: Counts
) -> Callable[[int, Response], T]:
    """`encode`, a function of correlation id and response, which counts the error codes of the response first."""
    lines = _lines(response, version, is_flexible(response, version), "response", 1)
    source = ["def count_and_encode(correlation_id, response):", *lines, "    return encode(correlation_id, response)"]
    namespace: dict[str, Any] = {"encode": encode, "counts": counts}
    exec(compile("\n".join(source), f"<error codes of {response.__name__} v{version}>", "exec"), namespace)
    made: Callable[[int, Response], T] = namespace["count_and_encode"]
    return made


def _lines(struct: type[Struct], version: int, flexible: bool, owner: str, depth: int) -> list[str]:
    """Statements that count the codes of `owner`, a variable; none where it has no codes."""
    indent = "    " * depth
    layout = wire_struct(struct, version, flexible)
    found: list[str] = []
    for field in layout.fields + layout.tagged:
        value = f"{owner}.{field.name}"
        if field.name == _FIELD:
            found += [f"{indent}if {value}:", f"{indent}    counts[{value}] += 1"]
        if field.struct is None:
            continue
        inner = f"inner_{depth}"
        lines = _lines(field.struct, version, flexible, inner, depth + 1)
        if lines and field.is_list:
            found += [f"{indent}for {inner} in {value}{' or ()' if field.nullable else ''}:", *lines]
        elif lines:
            found += [f"{indent}{inner} = {value}", f"{indent}if {inner} is not None:", *lines]
    return found
