r"""Text that people and programs write: properties files, times, and what is safe to print.

Java's properties: the text format of `server.properties`, `meta.properties` and secrets in files.

A line is a key, a separator (`=`, `:` or blanks) and a value. `#` and `!` begin a comment. A line that ends in an odd
number of backslashes continues in the next line, whose leading blanks are cut. `\t \n \r \f \uXXXX` are characters; any
other escaped character stands for itself. Of several lines with the same key the last one counts.

Java reads such a file as Latin-1, in which any bytes are legal, and many a file has a comment in some other encoding.
One that is UTF-8 as a whole is read as that.

Text from others made safe to print: no character of it ends a line, moves a cursor or turns text around.

Client ids, group ids and records hold what their senders like: newlines by which a log line could be forged, escape
sequences that terminals obey.

Times that people write: ISO 8601, or milliseconds since 1970. As with Kafka's tools, one without a zone is UTC on every
machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
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


_UNSAFE = (
    *chain(range(0x20), range(0x7F, 0xA0)),  # controls
    *(0x2028, 0x2029),  # line and paragraph separators
    *chain((0x200E, 0x200F, 0x061C), range(0x202A, 0x202F), range(0x2066, 0x206A)),  # directions of text
    *range(0xD800, 0xE000),  # halves of pairs, which no encoding takes
)
_ESCAPES = {code: chr(code).encode("unicode_escape").decode("ascii") for code in _UNSAFE}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _UNSAFE if code >= 0x7F}


def printable(text: str) -> str:
    r"""The text with such characters as Python's escapes: a newline as `\n`, an escape character as `\x1b`."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_json(document: str) -> str:
    """A JSON document, which has its own escapes for most of these characters, with such escapes for the others."""
    return document if document.isprintable() else document.translate(_JSON_ESCAPES)


_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d+)?)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII | re.IGNORECASE
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment_ms(text: str) -> int | None:
    """A time in milliseconds since 1970, a part of one cut off; None where the text is no time."""
    if text.isascii() and text.isdecimal():
        return int(text) if len(text) < 20 else None
    if not _TIME.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):  # such as the 30th of February
        return None
