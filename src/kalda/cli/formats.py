"""How records are printed: as text, as JSON, or as raw bytes."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from enum import Enum
from typing import TYPE_CHECKING

from kalda.base.printable import printable, printable_json
from kalda.records.batch import TimestampType

if TYPE_CHECKING:
    from kalda.client.consumer_fetcher import Fetched
    from kalda.records.builder import Record


_LINES_A_WRITE = 1_000
"""How many records are printed by one write. After a failed write, none of its records is counted."""


class Layout(Enum):
    """TEXT escapes bytes that are not UTF-8, and on a terminal control characters too, as JSON does everywhere. RAW
    prints the bytes of each value and a newline, and nothing else."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


class RecordWriter:
    """Prints records on stdout, and counts them: where stdout is closed meanwhile, those that were printed before."""

    def __init__(self, layout: Layout, parts: set[str], separator: bytes) -> None:
        """`parts`, used with TEXT, are any of timestamp, partition, offset, headers, key; the value is always
        printed."""
        self.count = 0
        self._layout = layout
        self._parts = parts
        self._separator = separator
        self._readable = _readable_on_terminal if sys.stdout.isatty() else _readable
        """Makes a key or a value readable as text."""

    def write(self, fetched: Fetched, limit: int | None) -> int | None:
        """Print at most `limit` of the records. Returns the offset of the first that was not printed, or None."""
        lines: list[bytes] = []
        next_offset = None
        for header, records in fetched.batches():
            if limit is not None and len(lines) + len(records) > limit:
                next_offset = records[limit - len(lines)].offset
                records = records[: limit - len(lines)]
            if self._layout is Layout.JSON:
                lines += [self._json(fetched, record) for record in records]
            elif self._layout is Layout.RAW:
                lines += [record.value or b"" for record in records]
            elif self._parts:
                is_log_append = header.timestamp_type is TimestampType.LOG_APPEND
                lines += [self._text(fetched, record, is_log_append) for record in records]
            else:
                lines += [self._readable(record.value) for record in records]
            if next_offset is not None:
                break
        for start in range(0, len(lines), _LINES_A_WRITE):
            printed = lines[start : start + _LINES_A_WRITE]
            sys.stdout.buffer.write(b"\n".join([*printed, b""]))
            sys.stdout.buffer.flush()
            self.count += len(printed)
        return next_offset

    def _text(self, fetched: Fetched, record: Record, is_log_append: bool) -> bytes:
        parts, readable, shown = self._parts, self._readable, []
        if "timestamp" in parts:
            kind = "LogAppendTime" if is_log_append else "CreateTime"
            shown.append(f"{kind}:{record.timestamp}".encode() if record.timestamp >= 0 else b"NO_TIMESTAMP")
        if "partition" in parts:
            shown.append(b"Partition:%d" % fetched.partition)
        if "offset" in parts:
            shown.append(b"Offset:%d" % record.offset)
        if "headers" in parts:
            headers = b",".join(readable(name.encode()) + b":" + readable(value) for name, value in record.headers)
            shown.append(headers or b"NO_HEADERS")
        if "key" in parts:
            shown.append(readable(record.key))
        shown.append(readable(record.value))
        return self._separator.join(shown)

    def _json(self, fetched: Fetched, record: Record) -> bytes:
        document = {
            "topic": fetched.topic,
            "partition": fetched.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": as_json(record.key),
            "value": as_json(record.value),
            "headers": [[name, as_json(value)] for name, value in record.headers],
        }
        return printable_json(json.dumps(document, ensure_ascii=False)).encode()


def _readable(data: bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace").encode()
    return data


def _readable_on_terminal(data: bytes | None) -> bytes:
    return b"null" if data is None else printable(data.decode("utf-8", "backslashreplace")).encode()


def as_json(data: bytes | None) -> object:
    """Text where it is UTF-8, else an object with its base64."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}
