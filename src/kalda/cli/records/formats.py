"""How records are printed: as text, as JSON, as raw bytes, or by a format of kcat's."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import click

from kalda.base.texts import printable, printable_json
from kalda.cli.common.failures import Failure
from kalda.records.batch import TimestampType

if TYPE_CHECKING:
    from kalda.records.consuming import Record

_LINES_A_WRITE = 1_000
"""How many records are printed by one write. After a failed write, none of its records is counted."""
_ESCAPE = re.compile(r"%([%A-Za-z])|\\(x[0-9A-Fa-f]{2}|[nrt\\0])")
_CONTROLS = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
Decode = Callable[[str, bytes], object]
"""What is shown of a key or a value: topic and bytes in, text, number or anything of JSON out."""


class RecordLayout(Enum):
    """TEXT prints a line a record, RAW the bytes of each value and a newline, and nothing else. Bytes are printed as
    they are, and escaped on a terminal only where they are not UTF-8 or control characters; JSON escapes them
    everywhere."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


class Decoders(NamedTuple):
    """How keys and values are decoded; None: as text."""

    key: Decode | None = None
    value: Decode | None = None


TEXTS = Decoders()


class Filters(NamedTuple):
    """Records that are printed: all of the given patterns are found in them."""

    key: re.Pattern[bytes] | None = None
    value: re.Pattern[bytes] | None = None
    headers: tuple[tuple[str, re.Pattern[bytes]], ...] = ()
    """A header of this name has a value with the pattern."""

    def match(self, record: Record) -> bool:
        """Whether the record is printed."""
        if self.key is not None and not (isinstance(record.key, bytes) and self.key.search(record.key)):
            return False
        if self.value is not None and not (isinstance(record.value, bytes) and self.value.search(record.value)):
            return False
        return all(
            any(name == wanted and pattern.search(content or b"") for name, content in headers_of(record))
            for wanted, pattern in self.headers
        )


def headers_of(record: Record) -> Sequence[tuple[str, bytes | None]]:
    """Names and values."""
    headers: Sequence[tuple[str, bytes | None]] = record.headers
    return headers


class RecordWriter:
    """Prints records on stdout, and counts them: where stdout is closed meanwhile, those that were printed before."""

    def __init__(
        self,
        layout: RecordLayout | str,
        parts: set[str],
        separator: bytes,
        *,
        decoders: Decoders = TEXTS,
        filters: Filters | None = None,
    ) -> None:
        """`layout` is one of `RecordLayout`, or a format such as `%t %p %o %s\\n`. `parts`, used with TEXT, are any of
        timestamp, partition, offset, headers, key; the value is always printed."""
        self.count = 0
        """Records that were printed."""
        self._parts = parts
        self._separator = separator
        self._decoders = decoders
        self._filters = filters
        self._readable = _readable_on_terminal if sys.stdout.isatty() else _as_it_is
        """What is printed of a key or a value."""
        self._end = b"\n"
        """What follows each record."""
        self._line: Callable[[Record], bytes]
        if isinstance(layout, str):
            self._line, self._end = self._by_format(layout), b""
        elif layout is RecordLayout.JSON:
            self._line = self._json
        elif layout is RecordLayout.RAW:
            self._line = lambda record: self._readable(record.value) if isinstance(record.value, bytes) else b""
        elif parts:
            self._line = self._text
        else:
            self._line = lambda record: self._shown(record, record.value, self._decoders.value)

    def write(self, records: Sequence[Record], limit: int | None) -> int:
        """Print at most `limit` of the records that the filters match. Returns how many were looked at: all, or those
        up to the last that was printed."""
        lines: list[bytes] = []
        done = len(records)
        if limit is None and self._filters is None:
            lines = [self._line(record) for record in records]
        else:
            for index, record in enumerate(records):
                if limit is not None and len(lines) >= limit:
                    done = index
                    break
                if self._filters is None or self._filters.match(record):
                    lines.append(self._line(record))
        end = self._end
        for start in range(0, len(lines), _LINES_A_WRITE):
            printed = lines[start : start + _LINES_A_WRITE]
            sys.stdout.buffer.write(end.join([*printed, b""]))
            sys.stdout.buffer.flush()
            self.count += len(printed)
        return done

    def _shown(self, record: Record, data: object, decode: Decode | None) -> bytes:
        """A key or a value as text."""
        if decode is not None and isinstance(data, bytes):
            found = _decoded(record, data, decode)
            text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
            return self._readable(text.encode())
        return self._readable(data)

    def _text(self, record: Record) -> bytes:
        parts, shown = self._parts, []
        if "timestamp" in parts:
            kind = "LogAppendTime" if record.timestamp_type is TimestampType.LOG_APPEND else "CreateTime"
            shown.append(f"{kind}:{record.timestamp_ms}".encode() if record.timestamp_ms >= 0 else b"NO_TIMESTAMP")
        if "partition" in parts:
            shown.append(b"Partition:%d" % record.partition)
        if "offset" in parts:
            shown.append(b"Offset:%d" % record.offset)
        if "headers" in parts:
            shown.append(self._headers(record, b":") or b"NO_HEADERS")
        if "key" in parts:
            shown.append(self._shown(record, record.key, self._decoders.key))
        shown.append(self._shown(record, record.value, self._decoders.value))
        return self._separator.join(shown)

    def _headers(self, record: Record, between: bytes) -> bytes:
        readable = self._readable
        return b",".join(readable(name.encode()) + between + readable(value) for name, value in headers_of(record))

    def _json(self, record: Record) -> bytes:
        document = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": self._of_json(record, record.key, self._decoders.key),
            "value": self._of_json(record, record.value, self._decoders.value),
            "headers": [[name, as_json(value)] for name, value in headers_of(record)],
        }
        return printable_json(json.dumps(document, ensure_ascii=False, default=str)).encode()

    def _of_json(self, record: Record, data: object, decode: Decode | None) -> object:
        if decode is not None and isinstance(data, bytes):
            return _decoded(record, data, decode)
        return as_json(data if isinstance(data, bytes) else None)

    # -- kcat's formats

    def _by_format(self, text: str) -> Callable[[Record], bytes]:
        """A function for a format. Raises `click.UsageError`."""
        parts: list[bytes | Callable[[Record], bytes]] = []
        at = 0
        fields = self._fields()
        for found in _ESCAPE.finditer(text):
            parts.append(text[at : found.start()].encode("utf-8", "surrogateescape"))
            at = found.end()
            field, control = found.groups()
            if control is not None:
                parts.append(bytes([int(control[1:], 16)]) if control[0] == "x" else _CONTROLS[control])
            elif field == "%":
                parts.append(b"%")
            elif field in fields:
                parts.append(fields[field])
            else:
                known = ", ".join(f"%{each}" for each in fields)
                raise click.UsageError(f"--format {text}: %{field} is not known; there are {known}")
        parts.append(text[at:].encode("utf-8", "surrogateescape"))
        return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    def _fields(self) -> Mapping[str, Callable[[Record], bytes]]:
        """kcat's letters. What is null is empty, and has the length -1."""

        def content(record: Record, data: object, decode: Decode | None) -> bytes:
            return b"" if data is None else self._shown(record, data, decode)

        return {
            "s": lambda record: content(record, record.value, self._decoders.value),
            "S": lambda record: b"%d" % record.serialized_value_size,
            "R": lambda record: record.serialized_value_size.to_bytes(4, "big", signed=True),
            "k": lambda record: content(record, record.key, self._decoders.key),
            "K": lambda record: b"%d" % record.serialized_key_size,
            "T": lambda record: b"%d" % record.timestamp_ms,
            "h": lambda record: self._headers(record, b"="),
            "t": lambda record: record.topic.encode(),
            "p": lambda record: b"%d" % record.partition,
            "o": lambda record: b"%d" % record.offset,
        }


def layout_of(text: str) -> RecordLayout | str:
    """The value of --format. Raises `click.UsageError`."""
    if text in {layout.value for layout in RecordLayout}:
        return RecordLayout(text)
    if "%" not in text:
        names = ", ".join(layout.value for layout in RecordLayout)
        raise click.UsageError(f"--format {text}: {names}, or a format such as '%t %p %o %k %s\\n' is expected")
    return text


def _decoded(record: Record, data: bytes, decode: Decode) -> object:
    try:
        return decode(record.topic, data)
    except Exception as error:
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        raise Failure(f"the record of {place} cannot be decoded: {error}") from error


def _as_it_is(data: object) -> bytes:
    return data if isinstance(data, bytes) else b"null"


def _readable_on_terminal(data: object) -> bytes:
    return printable(data.decode("utf-8", "backslashreplace")).encode() if isinstance(data, bytes) else b"null"


def as_json(data: bytes | None) -> object:
    """Text where it is UTF-8, else an object with its base64."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}


def decoder_of(option: str, kind: str | None, registry_url: str | None = None) -> Decode | None:
    """The decoder that --key-as or --value-as names; None for text. Raises `click.UsageError`, and `Failure` where what
    it needs is not installed."""
    if kind is None or kind == "text":
        return None
    if kind == "hex":
        return lambda _topic, data: data.hex()
    if kind == "base64":
        return lambda _topic, data: b64encode(data).decode("ascii")
    if kind in ("avro", "json-schema"):
        if registry_url is None:
            raise click.UsageError(f"{option} {kind}: --registry URL is needed, where the schemas are")
        return _registry_decoder(registry_url, kind, is_key=option == "--key-as")
    from kalda.clientcore.serdes import deserializer_of

    read = deserializer_of(option, kind)
    assert read is not None, f"{kind} is not bytes"
    return lambda topic, data: read(topic, (), data)


def _registry_decoder(url: str, kind: str, *, is_key: bool) -> Decode:
    try:
        from kalda.registry import Registry

        registry = Registry(url)
        codec = registry.read_avro(is_key=is_key) if kind == "avro" else registry.read_json_schema(is_key=is_key)
    except ImportError as error:
        raise Failure(str(error)) from error
    return lambda topic, data: codec.deserialize(topic, (), data)


DECODED_AS = ("text", "int", "float", "uuid", "json", "hex", "base64", "avro", "json-schema")
