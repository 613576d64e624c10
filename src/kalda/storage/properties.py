"""Java's properties format, as `meta.properties` is written in.

Lines `key=value`, `#` and `!` comments, backslash escapes, a backslash at the end of a line joins the next one. The
file is ISO 8859-1; other characters are `\\uXXXX`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {char: "\\" + code for code, char in _ESCAPES.items()} | {char: "\\" + char for char in "\\=:#!"}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_properties(text: str) -> dict[str, str]:
    """Keys to values; a key given twice has its last value."""
    values = {}
    for line in _logical_lines(text):
        at = 0
        while at < len(line) and line[at] not in "=: \t\f":
            at += 2 if line[at] == "\\" else 1
        key, rest = line[:at], line[at:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        values[_unescape(key)] = _unescape(rest)
    return values


def format_properties(values: Mapping[str, str], now_ms: int) -> str:
    """The file's text, headed by an empty comment and the date, as Java writes it."""
    lines = ["#", "#" + _java_date(now_ms)]
    for key, value in values.items():
        lines.append(f"{_escape(key, spaces=True)}={_escape(value, spaces=False)}")
    return "\n".join(lines) + "\n"


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = line.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                try:
                    char = chr(int(text[at : at + 4], 16))
                except ValueError as error:
                    raise ValueError(f"{text[at - 2 : at + 4]!r} is not a \\uXXXX escape") from error
                at += 4
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    return "".join(out)


def _escape(text: str, *, spaces: bool) -> str:
    out = []
    for at, char in enumerate(text):
        if char == " " and (spaces or at == 0):
            out.append("\\ ")
        elif char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif char < " " or char > "~":
            out.extend(f"\\u{ord(unit):04X}" for unit in _utf16(char))
        else:
            out.append(char)
    return "".join(out)


def _utf16(char: str) -> str:
    if ord(char) < 0x10000:
        return char
    rest = ord(char) - 0x10000
    return chr(0xD800 + (rest >> 10)) + chr(0xDC00 + (rest & 0x3FF))


def _java_date(now_ms: int) -> str:
    when = datetime.fromtimestamp(now_ms / 1000, UTC)
    day, month = _DAYS[when.weekday()], _MONTHS[when.month - 1]
    return f"{day} {month} {when.day:02d} {when:%H:%M:%S} UTC {when.year}"
