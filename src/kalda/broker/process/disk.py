"""The operating system's disk.

`read_nowait` asks the kernel with `RWF_NOWAIT`: an answer comes from the page cache or not at all, so the event loop
never waits for a device. A filesystem without the flag (tmpfs, some overlays) fails with an error once, and from then
on reads there are plain: tmpfs has no device to wait for.

A process can have so many descriptors only. Some are kept in reserve: when there is no other left, files that are small
or not kept open (checkpoints, the quorum's state, directories) and the metadata log are still opened, with a warning.
The files of partitions, which may be very many, do not get the reserve (`without_reserve`). Long before the reserve is
needed, a callback says that many descriptors are in use, so that files without reads and appends can be closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from kalda.base.allocation import unfilled
from kalda.base.disk import Buffer, File, FileStat, NoHandleLeft
from kalda.base.sensors import Durations

T = TypeVar("T")

log = logging.getLogger("kalda.disk")

_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_MAX_VECTORS = 512
_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_WARNING_INTERVAL_S = 10.0
_SLOW_SYNC_US = 1_000_000
"""A sync that took so long is logged, unless another one was within `_WARNING_INTERVAL_S`."""
_MANY = 0.75
"""Few descriptors are left where this share of the limit is in use."""


def absolute_dir(path: str) -> str:
    """A directory of the configuration as Java's `File.getAbsolutePath` names it, and clients with it: below the
    working directory where it is relative, with single slashes, and with what `..` leads through."""
    whole = path if path.startswith("/") else f"{os.getcwd()}/{path}"
    return "/" + "/".join(name for name in whole.split("/") if name)


class _Syncs(Durations):
    """How long files were synced."""

    def __init__(self) -> None:
        super().__init__()
        self._warned_s = float("-inf")

    def add(self, path: str, took_us: int) -> None:
        """A file was synced. From any thread."""
        self.add_us(took_us)
        now_s = time.monotonic()
        if took_us >= _SLOW_SYNC_US and now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning(
                "the disk is slow: the sync of %s took %d ms, and what is committed by it waited as long",
                path,
                took_us // 1000,
            )


class _Descriptor:
    """A file descriptor, closed with the last handle that refers to it."""

    __slots__ = ("fd", "path", "syncs")

    def __init__(self, fd: int, path: str, syncs: _Syncs) -> None:
        self.fd = fd
        self.path = path
        """Where the file was opened."""
        self.syncs = syncs
        """Of the disk."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class RealFile:
    """A handle on a file descriptor, with positional reads and writes. What they raise names the file, as what is
    raised at its opening does: the kernel has the descriptor only."""

    __slots__ = ("_descriptor", "_fd", "_nowait")

    def __init__(self, descriptor: _Descriptor, nowait: bool = _NOWAIT is not None) -> None:
        self._descriptor: _Descriptor | None = descriptor
        self._fd = descriptor.fd
        self._nowait = nowait

    def read(self, position: int, size: int) -> Buffer:
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size and (more := os.pread(self._fd, size - got, position + got)):
                parts.append(more)
                got += len(more)
        except OSError as error:
            self._name(error)
            raise
        return b"".join(parts)

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        if not self._nowait:
            return self.read(position, size)
        buffer = unfilled(size)
        try:
            got = os.preadv(self._fd, [buffer], position, _NOWAIT or 0)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                self._name(error)
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
        try:
            written = os.pwrite(self._fd, data, position)
            if written != len(data):
                self._write_rest(position + written, memoryview(data).cast("B")[written:])
        except OSError as error:
            self._name(error)
            raise

    def write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            for start in range(0, len(buffers), _MAX_VECTORS):
                chunk = buffers[start : start + _MAX_VECTORS]
                size = sum(map(len, chunk))
                written = os.pwritev(self._fd, chunk, position)
                if written != size:
                    self._write_rest(position + written, memoryview(b"".join(chunk))[written:])
                position += size
        except OSError as error:
            self._name(error)
            raise

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
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            self._name(error)
            raise

    def sync(self) -> None:
        began_ns = time.monotonic_ns()
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._name(error)
            raise
        if self._descriptor is not None:
            self._descriptor.syncs.add(self._descriptor.path, (time.monotonic_ns() - began_ns) // 1000)

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _name(self, error: OSError) -> None:
        if error.filename is None and self._descriptor is not None:
            error.filename = self._descriptor.path

    def share(self) -> RealFile:
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return RealFile(self._descriptor, self._nowait)

    def close(self) -> None:
        self._descriptor, self._fd = None, -1


class _Opener:
    """Opens descriptors, with the reserve's help where there is one. For any thread."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        """How many descriptors are kept in reserve."""
        self._spare: list[int] = []
        """Those that are not used at the moment."""
        self._warned_s = float("-inf")
        self._on_many: Callable[[], None] | None = None
        self._many: float = float("inf")
        """Few are left where a descriptor has at least this number: the kernel gives the lowest one that is free."""

    def watch(self, on_many: Callable[[], None] | None) -> None:
        """As `Disk.when_many_are_open`."""
        self._on_many = on_many
        self._many = float("inf") if on_many is None else _MANY * resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def open(self, path: str, flags: int, *, spare: bool) -> int:
        """A descriptor; with `spare` from the reserve where there is no other. Raises `NoHandleLeft`."""
        fd = self.attempt(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644), path, spare=spare)
        if fd >= self._many:
            self._report()
        return fd

    def attempt(self, call: Callable[[], T], path: str, *, spare: bool) -> T:
        """The result of `call`, which needs a descriptor: with `spare`, one of the reserve is released for it where
        there is no other. Raises `NoHandleLeft`."""
        while True:
            try:
                result = call()
                break
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                self._warn(error)
                self._report()
                if error.errno == errno.ENOMEM or not spare or not self._release_one():
                    raise NoHandleLeft(error.errno, error.strerror, path) from error
        if len(self._spare) < self._reserve:
            self.fill()
        return result

    def _report(self) -> None:
        on_many = self._on_many
        if on_many is not None:
            on_many()

    def close(self) -> None:
        """Give the reserve back, and have none from now on."""
        self._reserve = 0
        while self._release_one():
            pass

    def __del__(self) -> None:
        self.close()

    def fill(self) -> None:
        """Take descriptors into the reserve again, as far as there are any."""
        with contextlib.suppress(OSError):
            while len(self._spare) < self._reserve:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _release_one(self) -> bool:
        try:
            os.close(self._spare.pop())
        except IndexError:
            return False
        return True

    def _warn(self, error: OSError) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            log.warning(
                "files cannot be opened: %s; %d of %d descriptors in reserve are left. Raise the limit of open files "
                "(RLIMIT_NOFILE, ulimit -n), or have fewer partitions or connections on this node",
                error.strerror,
                len(self._spare),
                self._reserve,
            )


class RealDisk:
    """Files of this machine."""

    def __init__(self, reserve: int = 0) -> None:
        """`reserve`: so many descriptors are kept in reserve, from the first file that is opened until `close`."""
        self.syncs = _Syncs()
        """How long files were synced. Threads add to it, so a few may be missing."""
        self._opener = _Opener(reserve)
        self._may_use_reserve = reserve > 0

    def close(self) -> None:
        """Give the reserve back. Files are still opened, without one."""
        self._opener.close()

    @property
    def without_reserve(self) -> RealDisk:
        twin = RealDisk()
        twin._opener, twin.syncs = self._opener, self.syncs
        return twin

    def when_many_are_open(self, call: Callable[[], None] | None) -> None:
        self._opener.watch(call)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> File:
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        fd = self._opener.open(path, flags, spare=self._may_use_reserve)
        return RealFile(_Descriptor(fd, path, self.syncs))

    def read_file(self, path: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        fd = self._opener.open(path, os.O_RDONLY, spare=self._may_use_reserve)
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"{size} bytes are more than the {max_bytes} allowed", path)
            data = os.pread(fd, size, 0)
            while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
                data += more
            return data
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(path):  # a file is meant to be here: it is not treated as one that never was
                raise OSError(errno.ENOENT, "a symbolic link to a file that does not exist", path) from None
            return None
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, (found.st_mode & 0o170000) == 0o040000)

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._opener.attempt(lambda: os.listdir(path), path, spare=self._may_use_reserve))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            raise NoHandleLeft(error.errno, error.strerror, path) from error

    def sync_dir(self, path: str) -> None:
        fd = self._opener.open(path, os.O_RDONLY | os.O_DIRECTORY, spare=self._may_use_reserve)
        try:
            os.fsync(fd)
        except OSError as error:
            error.filename = path
            raise
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
        except OSError as error:  # a filesystem without locks
            os.close(fd)
            error.filename = path
            raise
        return RealFile(_Descriptor(fd, path, self.syncs))
