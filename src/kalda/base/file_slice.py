"""A part of a file that goes out as it lies: read piece by piece, as the peer takes it.

An answer that carries one is never whole in memory, however large it is and however slow its reader; and reading its
end does not keep its beginning waiting. A slice stands among an answer's buffers like any other: it has a length, and
whoever writes buffers asks it for its bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from kalda.base.disk import Buffer, File
from kalda.base.scheduling import Jobs


class FileSlice:
    """To be read once, from front to back. The file is the slice's own handle."""

    __slots__ = ("_came", "_end", "_error", "_failed", "_file", "_jobs", "_position", "_size")

    def __init__(
        self, file: File, position: int, size: int, jobs: Jobs, failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` is told of a disk that fails meanwhile."""
        self._file = file
        self._position = position
        self._size = size
        self._end = position + size
        self._jobs = jobs
        self._failed = failed
        self._came: Buffer | None = None
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return self._size

    def read(self, size: int, ready: Callable[[], None]) -> Buffer | None:
        """The next piece, of `size` bytes at most; empty at the end. None where the page cache does not have it: then
        `ready` is called once it is there. Raises `OSError`."""
        position = self._position
        size = min(size, self._end - position)
        if not size:
            return b""
        piece, self._came = self._came, None
        try:
            if self._error is not None:
                raise self._error
            if piece is None:
                piece = self._file.read_nowait(position, size)
                if piece is None:
                    self._jobs.run(partial(self._file.read, position, size), partial(self._on_read, ready))
                    return None
        except OSError as error:
            self._failed(error)
            raise
        if len(piece) != size:
            raise OSError(errno.EIO, f"the file ends at {position + len(piece)}, before its slice does at {self._end}")
        self._position = position + size
        return piece

    def _on_read(self, ready: Callable[[], None], piece: Buffer | None, error: BaseException | None) -> None:
        self._came, self._error = piece, error
        ready()
