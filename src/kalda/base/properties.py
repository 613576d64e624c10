r"""Java's properties: the text format of `server.properties`, `meta.properties` and secrets in files.

A line is a key, a separator (`=`, `:` or blanks) and a value. `#` and `!` begin a comment. A line that ends in an odd
number of backslashes continues in the next line, whose leading blanks are cut. `\t \n \r \f \uXXXX` are characters;
any other escaped character stands for itself. Of several lines with the same key the last one counts.

Java reads such a file as Latin-1, in which any bytes are legal, and many a file has a comment in some other encoding.
One that is UTF-8 as a whole is read as that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

_BLANK = " \t\f"
_SIMPLE = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {char: "\\" + code for code, char in _SIMPLE.items()} | {char: "\\" + char for char in "\\=:#!"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def decode_text(content: bytes) -> str:
    """The text of a file that Java's tools share: UTF-8, with or without a byte order mark, where all of it is, else
    Latin-1, where every byte is a character."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def parse_properties(text: str) -> dict[str, str]:
    r"""Keys and values of a properties text. Raises `ValueError`, with the line, for a malformed `\u` escape."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            properties[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return properties


def read_properties_file(path: str | Path) -> dict[str, str]:
    """Keys and values of a properties file. Raises `OSError`; `ValueError` with file and line for a malformed one."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return parse_properties(decode_text(content))
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def format_properties(values: Mapping[str, str], now_ms: int) -> str:
    """The text of a properties file. It begins with an empty comment and the date, as Java writes it."""
    lines = ["#", "#" + _java_date(now_ms)]
    for key, value in values.items():
        lines.append(f"{_escape(key, spaces=True)}={_escape(value, spaces=False)}")
    return "\n".join(lines) + "\n"


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """The lines, each with the number of the first one that it is joined of."""
    lines: list[tuple[int, str]] = []
    joined: str | None = None
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANK)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined, first = line, number
        else:
            joined += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        lines.append((first, joined))
        joined = None
    if joined:
        lines.append((first, joined))
    return lines


def _split(line: str) -> tuple[str, str]:
    """Key and value: the line cut at the first separator that is not escaped."""
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
    return _PAIR.sub(_joined, "".join(out))


def _joined(pair: re.Match[str]) -> str:
    """One character of a surrogate pair: Java writes a character above U+FFFF as two escapes."""
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")


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
