"""A part of a file that is sent unchanged: it is read piece by piece, at the pace at which the peer receives it.

A response that contains a slice is never whole in memory, however large it is and however slow the peer; and its first
bytes are sent before its last bytes are read. A slice is one of a response's buffers. It has a length, and the
connection that sends the buffers calls `read` for its bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from kalda.base.disk import Buffer, File
from kalda.base.scheduling import Jobs


class FileSlice:
    """Read once, from front to back. `file` is a handle of the slice alone (see `File.share`)."""

    __slots__ = ("_end", "_error", "_file", "_jobs", "_loaded", "_on_error", "_position", "_size")

    def __init__(
        self, file: File, position: int, size: int, jobs: Jobs, on_error: Callable[[BaseException], None]
    ) -> None:
        """`on_error` is called with the `OSError` of a read that fails, before `read` raises it."""
        self._file = file
        self._position = position
        self._size = size
        self._end = position + size
        self._jobs = jobs
        self._on_error = on_error
        self._loaded: Buffer | None = None
        """the piece that a job has read, until `read` returns it"""
        self._error: BaseException | None = None
        """the error of the job's read, until `read` raises it"""

    def __len__(self) -> int:
        return self._size

    def read(self, size: int, ready: Callable[[], None]) -> Buffer | None:
        """The next piece, of at most `size` bytes; empty at the end. None where the page cache does not hold it: a job
        then reads it, `ready` is called afterwards, and the next call, with the same `size`, returns the piece. Raises
        `OSError`."""
        position = self._position
        size = min(size, self._end - position)
        if not size:
            return b""
        piece, self._loaded = self._loaded, None
        try:
            if self._error is not None:
                raise self._error
            if piece is None:
                piece = self._file.read_nowait(position, size)
                if piece is None:
                    self._jobs.run(partial(self._file.read, position, size), partial(self._on_read, ready))
                    return None
        except OSError as error:
            self._on_error(error)
            raise
        if len(piece) != size:
            raise OSError(errno.EIO, f"the file ends at {position + len(piece)}, the slice of it at {self._end}")
        self._position = position + size
        return piece

    def _on_read(self, ready: Callable[[], None], piece: Buffer | None, error: BaseException | None) -> None:
        self._loaded, self._error = piece, error
        ready()
