"""What `kalda produce` reads: lines, JSON envelopes, whole files; each becomes a record."""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kalda.cli.common.failures import Failure

Header = tuple[str, bytes | None]
_READ_BYTES = 256 * 1024
_MAX_RECORD_BYTES = 64 * 1024 * 1024
_HEADERS_END = b"\t"
_ENVELOPE = frozenset(
    ("topic", "partition", "offset", "timestamp", "ts", "tstype", "broker", "key", "value", "payload", "headers")
)
"""Names in what `kalda consume --format json` and `kcat -J` print."""


class InputRecord(NamedTuple):
    """`partition` and `timestamp_ms` are None where the input does not have them."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None = None
    timestamp_ms: int | None = None


Parse = Callable[[bytes, int], InputRecord]
"""A record of a piece of input and its number, from 1. Raises `Failure`."""


class LineFormat(NamedTuple):
    """How a line is split into key, value and headers."""

    key_separator: bytes | None
    has_headers: bool
    null_marker: bytes | None
    headers: tuple[Header, ...]
    key: bytes | None = None
    """Of every record, where lines have no key."""

    def parse(self, line: bytes, number: int) -> InputRecord:
        """Key, value and headers of a line. Raises `Failure` where a separator is missing."""
        headers = self.headers
        if self.has_headers:
            text, tab, line = line.partition(_HEADERS_END)
            if not tab:
                raise Failure(f"line {number}: no tab after the headers in {shown(text)}")
            headers = (*headers, *self._parse_headers(text, number))
        key: bytes | None = self.key
        value: bytes | None = line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise Failure(f"line {number}: no key separator {shown(self.key_separator)} in {shown(line)}")
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return InputRecord(key, value, headers)

    def _parse_headers(self, text: bytes, number: int) -> Iterator[Header]:
        for header in text.split(b",") if text else ():
            name, colon, value = header.partition(b":")
            if not colon:
                raise Failure(f"line {number}: header {shown(header)} is not NAME:VALUE")
            try:
                text_name = name.decode()
            except UnicodeDecodeError:
                raise Failure(f"line {number}: the name of header {shown(header)} is not UTF-8") from None
            yield text_name, None if value == self.null_marker else value


class EnvelopeFormat(NamedTuple):
    """One JSON object a line, as `kalda consume --format json` and `kcat -J` print it. Its topic and offset are not
    used."""

    headers: tuple[Header, ...]

    def parse(self, line: bytes, number: int) -> InputRecord:
        """The record of an object. Raises `Failure`."""
        try:
            found = json.loads(line)
        except ValueError as error:
            raise Failure(f"line {number}: no JSON: {error}") from None
        if not isinstance(found, dict):
            raise Failure(f"line {number}: an object like {{'key': 'k', 'value': 'v'}} is expected, not {shown(line)}")
        unknown = sorted(found.keys() - _ENVELOPE)
        if unknown:
            known = ", ".join(sorted(_ENVELOPE))
            raise Failure(f"line {number}: {unknown[0]!r} is not a part of a record; those are {known}")
        return InputRecord(
            _content(found.get("key"), number),
            _content(found.get("value", found.get("payload")), number),
            (*self.headers, *_headers(found.get("headers"), number)),
            _number(found.get("partition"), "partition", number),
            _number(found.get("timestamp", found.get("ts")), "timestamp", number),
        )


def _content(value: object, number: int) -> bytes | None:
    """Text as UTF-8, `{"base64": TEXT}` as its bytes, any other JSON as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise Failure(f"line {number}: {value['base64']!r} is not base64") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _headers(value: object, number: int) -> Iterator[Header]:
    """Of an object, of pairs, or of names and values in turn, as kcat prints them."""
    if value is None:
        return
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value):
        pairs = [(name, content) for name, content in value]
    elif isinstance(value, list) and len(value) % 2 == 0:
        pairs = list(zip(value[::2], value[1::2], strict=True))
    else:
        raise Failure(f"line {number}: headers are an object, or a list of names and values")
    for name, content in pairs:
        if not isinstance(name, str):
            raise Failure(f"line {number}: the name of a header is text, not {name!r}")
        yield name, _content(content, number)


def _number(value: object, what: str, number: int) -> int | None:
    if value is None or (value == -1 and what == "timestamp"):  # a record without a timestamp
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Failure(f"line {number}: the {what} is a number from 0 on, not {value!r}")
    return value


def read_pieces(fd: int, delimiter: bytes) -> Iterator[list[bytes]]:
    """What stands between delimiters, several pieces at a time, as soon as it has come. Where lines are read, a
    carriage return before the newline is not a part of the line. Raises `Failure`."""
    rest = b""
    while chunk := os.read(fd, _READ_BYTES):
        pieces = (rest + chunk).split(delimiter)
        rest = pieces.pop()
        if len(rest) > _MAX_RECORD_BYTES:
            raise Failure(
                f"a record is longer than {_MAX_RECORD_BYTES} bytes; check that the input has {shown(delimiter)} "
                "between its records"
            )
        if pieces:
            yield [piece.removesuffix(b"\r") for piece in pieces] if delimiter == b"\n" else pieces
    if rest:
        yield [rest]


def shown(text: bytes) -> str:
    """The beginning of a text, for messages."""
    return repr(text[:40].decode("utf-8", "replace")) + ("…" if len(text) > 40 else "")
