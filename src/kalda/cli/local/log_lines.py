"""The nodes' log files: their last lines, merged by time, and new lines.

A line that does not begin with a time, such as one of a traceback, belongs to the line before it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] ")
_BLOCK = 1 << 16
_FOLLOW_POLL_S = 0.2


class LogLine(NamedTuple):
    """A line of a node's log, without its end."""

    node_id: int
    text: str


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a file; an empty list where it does not exist."""
    try:
        with open(path, "rb") as file:
            at = end = file.seek(0, os.SEEK_END)
            data = b""
            while at > 0 and data.count(b"\n") <= count:
                size = min(_BLOCK, at)
                at = file.seek(at - size)
                data = file.read(size) + data
                if end - at > 64 * _BLOCK:
                    break
    except FileNotFoundError:
        return []
    return data.decode("utf-8", "replace").splitlines()[-count:] if count else []


def merged_tail(logs: dict[int, Path], count: int) -> list[LogLine]:
    """The last lines of each node's log, sorted by time."""
    timed: list[tuple[str, int, int, str]] = []
    for node_id, path in logs.items():
        moment = ""
        for number, text in enumerate(tail(path, count)):
            found = _TIME.match(text)
            moment = found[1] if found else moment
            timed.append((moment, node_id, number, text))
    return [LogLine(node_id, text) for _, node_id, _, text in sorted(timed)]


class LogFollower:
    """The lines that are written after it was made. A file that is replaced is read from its beginning."""

    def __init__(self, logs: dict[int, Path]) -> None:
        self._logs = logs
        self._at: dict[int, tuple[int, int]] = {}
        """Inode and offset up to which each node's log was read."""
        self._partial_line: dict[int, bytes] = {}
        """The bytes after the last newline, where there are any."""
        for node_id, path in logs.items():
            self._at[node_id] = _identity(path)

    def new_lines(self) -> list[LogLine]:
        """The complete lines written since the last call."""
        found: list[LogLine] = []
        for node_id, path in self._logs.items():
            inode, offset = self._at[node_id]
            try:
                with open(path, "rb") as file:
                    stat = os.fstat(file.fileno())
                    if stat.st_ino != inode or stat.st_size < offset:
                        offset = 0
                        self._partial_line.pop(node_id, None)
                    file.seek(offset)
                    data = file.read(_BLOCK * 16)
            except FileNotFoundError:
                continue
            self._at[node_id] = (stat.st_ino, offset + len(data))
            whole, newline, rest = (self._partial_line.pop(node_id, b"") + data).rpartition(b"\n")
            if rest:
                self._partial_line[node_id] = rest
            if newline:
                found += [LogLine(node_id, text) for text in whole.decode("utf-8", "replace").split("\n")]
        return found

    def poll(self) -> Iterator[LogLine]:
        """New lines until there are none, then a pause of `_FOLLOW_POLL_S`."""
        while lines := self.new_lines():
            yield from lines
        time.sleep(_FOLLOW_POLL_S)


def _identity(path: Path) -> tuple[int, int]:
    """Inode and size of the file; zeros where it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (stat.st_ino, stat.st_size)
