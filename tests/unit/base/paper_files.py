"""A file in memory of which a test chooses how much the page cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kalda.base.disk import Buffer

T = TypeVar("T")


class PaperFile:
    """A file of which the first `cached` bytes are in the page cache."""

    def __init__(self, data: bytes, cached: int) -> None:
        self.data = data
        self.cached = cached
        self.error: OSError | None = None

    def read(self, position: int, size: int) -> Buffer:
        if self.error is not None:
            raise self.error
        return self.data[position : position + size]

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return self.read(position, size) if position + size <= self.cached else None

    def write(self, position: int, data: Buffer) -> None:
        raise AssertionError

    def write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        raise AssertionError

    def size(self) -> int:
        return len(self.data)

    def truncate(self, size: int) -> None:
        raise AssertionError

    def sync(self) -> None:
        raise AssertionError

    def share(self) -> PaperFile:
        return self

    def close(self) -> None:
        pass
