"""A file whose page cache a test fills, and jobs that are done by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kalda.base.disk import Buffer

T = TypeVar("T")


class PaperFile:
    """A file of which only `cached` bytes are in the page cache."""

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


class HandJobs:
    """Jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self, job: Callable[[], T], finish: Callable[[T | None, BaseException | None], None]) -> None:
        def work() -> None:
            try:
                value = job()
            except OSError as error:
                finish(None, error)
            else:
                finish(value, None)

        self.waiting.append(work)
