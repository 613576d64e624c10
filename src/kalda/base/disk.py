"""The disk's interface: files by path, positional reads and writes, and the two kinds of sync.

There are two implementations: the operating system's, and a simulated one that loses unsynced data. Callers may rely
on what POSIX promises and no more:

- A write is visible to every later read. It survives a crash only after `File.sync`.
- A created, renamed or removed name survives a crash only after `Disk.sync_dir` of its directory. A synced file
  whose name was not synced may be missing after a crash.
- After a sync that failed, reads may return bytes that are not on the device, and later syncs may succeed without
  writing them. Only `File.drop_cache` shows what the device has.
- A write either happens whole or raises. After an error the bytes from `position` on are undefined: the caller
  writes them again or truncates the file.

Failures are `OSError` with an errno (`ENOSPC`, `EIO`, `EROFS`, `ENOENT`…); `NoHandleLeft` is the one that does not come
from the disk. Paths are strings with forward slashes.
Files are opened once and kept open. `File.share` gives a second handle on the same open file. A job on another thread
can use it even after the first handle was closed, or the file was renamed or removed.

A part of a file that is sent unchanged: it is read piece by piece, at the pace at which the peer receives it.

A response that contains a slice is never whole in memory, however large it is and however slow the peer; and its first
bytes are sent before its last bytes are read. A slice is one of a response's buffers. It has a length, and the
connection that sends the buffers calls `read` for its bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from kalda.base.scheduling import Jobs

Buffer = bytes | bytearray | memoryview


class NoHandleLeft(OSError):
    """A file was not opened, because this process or its machine has no descriptor or no memory left for it. That says
    nothing about the disk, and nothing has been changed."""


class FileStat(NamedTuple):
    """Size, modification time and kind of one directory entry."""

    size_bytes: int
    modified_ms: int
    is_dir: bool


class File(Protocol):
    """An open file. Positions are absolute: there is no cursor."""

    def read(self, position: int, size: int) -> Buffer:
        """Up to `size` bytes from `position`; shorter only at the end of the file. May wait for the device."""
        ...

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        """As `read`, or None where it would wait for the device."""
        ...

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`."""
        ...

    def write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers, one after another, from `position` on."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """All earlier writes are on the device when this returns."""
        ...

    def drop_cache(self) -> None:
        """Reads come from the device from now on, as far as earlier writes are synced, or count as synced."""
        ...

    def share(self) -> File:
        """Another handle on the same open file, closed on its own."""
        ...

    def close(self) -> None:
        """Closing twice is harmless."""
        ...


class Disk(Protocol):
    """One machine's files."""

    @property
    def without_reserve(self) -> Disk:
        """The same files, for what is kept open and may be very many: it never gets the descriptors that are kept in
        reserve for all else."""
        ...

    def when_many_are_open(self, call: Callable[[], None] | None) -> None:
        """`call` is called, on any thread, each time a file is opened while few descriptors are left, or cannot be
        opened because none is left. None ends that."""
        ...

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> File:
        """`create`: make the file where it is missing; `exclusive`: and raise `EEXIST` where it is not."""
        ...

    def read_file(self, path: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """The whole file. `EFBIG` where it is larger than `max_bytes`."""
        ...

    def stat(self, path: str) -> FileStat | None:
        """None where nothing has that name."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Names in sorted order."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create the directory and its parents; no error where they exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; a file at `target` is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error where it is missing."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all its content; no error where it is missing."""
        ...

    def sync_dir(self, path: str) -> None:
        """All earlier creations, renames and removals in the directory are on the device when this returns."""
        ...

    def set_modified(self, path: str, modified_ms: int) -> None: ...

    def usable_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> File | None:
        """Lock the file `path` for this process until the returned file is closed; None where another process holds
        the lock."""
        ...


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
