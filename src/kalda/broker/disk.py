"""The operating system's disk.

`read_nowait` asks the kernel with `RWF_NOWAIT`: an answer comes from the page cache or not at all, so the event loop
never waits for a device. A filesystem that does not know the flag (tmpfs, some overlays) says so once, and from then
on reads there are plain: tmpfs has no device to wait for.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence

from kalda.base.disk import Buffer, File, FileStat

_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_MAX_VECTORS = 512


class _Descriptor:
    """A file descriptor, closed with the last handle that refers to it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class RealFile:
    """A handle on a file descriptor, with positional reads and writes."""

    __slots__ = ("_descriptor", "_fd", "_nowait")

    def __init__(self, descriptor: _Descriptor, nowait: bool = _NOWAIT is not None) -> None:
        self._descriptor: _Descriptor | None = descriptor
        self._fd = descriptor.fd
        self._nowait = nowait

    def read(self, position: int, size: int) -> Buffer:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (more := os.pread(self._fd, size - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        if not self._nowait:
            return self.read(position, size)
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], position, _NOWAIT or 0)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._nowait = False
            return self.read(position, size)
        if got == size:
            return buffer
        # Short: the end of the file, or the first page that is not in the cache. Only the file's size can tell.
        if position + got < os.fstat(self._fd).st_size:
            return None
        return memoryview(buffer)[:got]

    def write(self, position: int, data: Buffer) -> None:
        written = os.pwrite(self._fd, data, position)
        if written != len(data):
            self._write_rest(position + written, memoryview(data).cast("B")[written:])

    def write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), _MAX_VECTORS):
            chunk = buffers[start : start + _MAX_VECTORS]
            size = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, position)
            if written != size:
                self._write_rest(position + written, memoryview(b"".join(chunk))[written:])
            position += size

    def _write_rest(self, position: int, rest: memoryview) -> None:
        while rest:
            written = os.pwrite(self._fd, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "the device took no bytes")
            position += written
            rest = rest[written:]

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def share(self) -> RealFile:
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return RealFile(self._descriptor, self._nowait)

    def close(self) -> None:
        self._descriptor, self._fd = None, -1


class RealDisk:
    """Files of this machine."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return RealFile(_Descriptor(os.open(path, flags, 0o644)))

    def read_file(self, path: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"{size} bytes are more than the {max_bytes} allowed", path)
            data = os.pread(fd, size, 0)
            while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, (found.st_mode & 0o170000) == 0o040000)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def set_modified(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def usable_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def lock(self, path: str) -> File | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # POSIX record locks, as Java's FileChannel takes them: so a Kafka in the same directory is noticed too.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return None
        return RealFile(_Descriptor(fd))
