"""Operations to a file of each process, and one history from the files.

A process may be killed at any moment, so each has a file of its own: only the last line of a file can be cut off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kalda.verify.history import Operation
from kalda.verify.history_file import write_operation

_SUFFIX = ".jsonl"


def now_us() -> int:
    """Microseconds of the host's monotonic clock, which all processes share."""
    return time.monotonic_ns() // 1_000


class Recorder:
    """Appends operations to one file; each is in the file when `add` returns. A context manager."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = (directory / f"{name}{_SUFFIX}").open("ab", buffering=0)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, operation: Operation) -> None:
        self._file.write(write_operation(operation).encode() + b"\n")


def recorded_lines(directory: Path) -> Iterator[str]:
    """The complete lines of all files, without newlines."""
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line[:-1]
