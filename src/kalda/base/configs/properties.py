r"""The text format of `server.properties`: Java's properties.

A line is a key, a separator (`=`, `:` or blanks) and a value; `#` and `!` begin a comment; a line that ends in an odd
number of backslashes goes on in the next, whose leading blanks are cut; `\t \n \r \f \uXXXX` are characters, and any
other escaped character stands for itself. The last of several lines for one key holds.
"""

from __future__ import annotations

import re

_BLANK = " \t\f"
_SIMPLE = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    r"""Keys and values of a properties text. Raises `ValueError` for a malformed `\u` escape."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        properties[_unescape(key)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    joined: str | None = None
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANK)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined = line
        else:
            joined += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        lines.append(joined)
        joined = None
    if joined:
        lines.append(joined)
    return lines


def _split(line: str) -> tuple[str, str]:
    """Cut at the first separator that is not escaped."""
    pos = 0
    while pos < len(line) and line[pos] not in "=:" + _BLANK:
        pos += 2 if line[pos] == "\\" else 1
    key, rest = line[:pos], line[pos:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    pos = 0
    while pos < len(text):
        character = text[pos]
        pos += 1
        if character != "\\" or pos == len(text):
            if character != "\\":
                out.append(character)
            continue
        escaped = text[pos]
        pos += 1
        if escaped == "u":
            digits = text[pos : pos + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise ValueError(f"malformed \\u escape: \\u{digits}")
            out.append(chr(int(digits, 16)))
            pos += 4
        else:
            out.append(_SIMPLE.get(escaped, escaped))
    return "".join(out)
