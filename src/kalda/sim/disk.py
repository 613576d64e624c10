"""A disk in memory that keeps after a crash what POSIX guarantees, and nothing more.

Written bytes are read back until `crash()`. After it, only these are certain: the bytes of a file at its last `sync`,
and the names of a directory at its last `sync_dir`. Of later writes the seeded random source keeps none, a prefix with
a torn last write, or any sectors, as real devices do. Of later changes of names it keeps a prefix for each directory,
because journaling filesystems keep these in order.

Faults on request: a full disk (`capacity_bytes`), a directory whose calls fail (`fail`), a flipped bit (`flip_bit`), a
write to a wrong place (`misdirect`), a cold page cache (`cold`, so that `read_nowait` returns None), no descriptor left
(`handles_left`), syncs without effect (`lying`, `lie_below`), failed syncs after which bytes count as synced
(`forgets_failed_writes`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence

from kalda.base.disk import Buffer, FileStat, NoHandleLeft

SECTOR_BYTES = 512


class _FileNode:
    """A file: its bytes now (`data`), at its last sync (`durable`), and the operations since (`pending`)."""

    __slots__ = ("data", "durable", "locked", "modified_ms", "pending")

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # None: truncated to that position
        self.modified_ms = now_ms
        self.locked = False

    def sync(self) -> None:
        for position, piece in self.pending:
            _apply(self.durable, position, piece)
        self.pending.clear()

    def crash(self, rng: random.Random) -> None:
        data = bytearray(self.durable)
        mode = rng.randrange(3)
        if mode == 1:
            kept = rng.randint(0, len(self.pending))
            for index, (position, piece) in enumerate(self.pending[:kept]):
                if piece is not None and index == kept - 1:
                    piece = piece[: rng.randint(0, len(piece))]
                _apply(data, position, piece)
        elif mode == 2:
            for position, piece in self.pending:
                if piece is None:
                    _apply(data, position, None)
                else:
                    _apply_sectors(data, position, piece, rng)
        self.data, self.durable = data, bytearray(data)
        self.locked = False
        self.pending.clear()


class _DirNode:
    """A directory: its names now (`entries`), at its last sync (`durable`), and the operations since (`pending`)."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: list[list[tuple[str, _Node | None]]] = []

    def change(self, *changes: tuple[str, _Node | None]) -> None:
        """One atomic change: each name gets its node, or is removed where that is None."""
        self.pending.append(list(changes))
        _rename_in(self.entries, changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def crash(self, rng: random.Random) -> None:
        entries = dict(self.durable)
        for changes in self.pending[: rng.randint(0, len(self.pending))]:
            _rename_in(entries, changes)
        self.entries = entries
        self.sync()
        for name in sorted(entries):
            entries[name].crash(rng)


_Node = _FileNode | _DirNode


def _rename_in(entries: dict[str, _Node], changes: Sequence[tuple[str, _Node | None]]) -> None:
    for name, node in changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _apply(data: bytearray, position: int, piece: bytes | None) -> None:
    if piece is None:
        if position < len(data):
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if not piece:
        return
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(piece)] = piece


def _apply_sectors(data: bytearray, position: int, piece: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(piece):
        upto = min(len(piece), at + SECTOR_BYTES - (position + at) % SECTOR_BYTES)
        if rng.random() < 0.5:
            _apply(data, position + at, piece[at:upto])
        at = upto


class SimFile:
    """A file handle; a handle opened before a crash raises `EBADF`."""

    __slots__ = ("_closed", "_disk", "_generation", "_locker", "_node", "path")

    def __init__(self, disk: SimDisk, node: _FileNode, path: str, *, locker: bool = False) -> None:
        self._disk = disk
        self._node = node
        self._generation = disk.generation
        self._closed = False
        self._locker = locker
        self.path = path

    def _check(self, operation: str) -> _FileNode:
        self._disk.check(self.path, operation)
        if self._closed or self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._node

    def read(self, position: int, size: int) -> Buffer:
        return bytes(self._check("read").data[position : position + size])

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None if self._disk.cold else self.read(position, size)

    def write(self, position: int, data: Buffer) -> None:
        node = self._check("write")
        piece = bytes(data)
        growth = max(0, position + len(piece) - len(node.data))
        room = self._disk.room()
        if growth > room:
            # A full disk writes what fits and then fails: the caller gets a torn write.
            piece = piece[: max(0, len(piece) - (growth - room))]
        _apply(node.data, position, piece)
        node.pending.append((position, piece))
        node.modified_ms = self._disk.now_ms()
        self._disk.writes += 1
        if growth > room:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk", self.path)

    def write_many(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.write(position, b"".join(buffers))

    def size(self) -> int:
        return len(self._check("read").data)

    def truncate(self, size: int) -> None:
        node = self._check("write")
        _apply(node.data, size, None)
        node.pending.append((size, None))
        node.modified_ms = self._disk.now_ms()

    def sync(self) -> None:
        try:
            node = self._check("sync")
        except OSError:
            if self._disk.forgets_failed_writes:
                self._node.pending.clear()
            raise
        self._disk.syncs += 1
        if not self._disk.lies_about(self.path):
            node.sync()

    def drop_cache(self) -> None:
        node = self._check("read")
        node.data[:] = node.durable
        for position, piece in node.pending:
            _apply(node.data, position, piece)

    def share(self) -> SimFile:
        self._check("read")
        return SimFile(self._disk, self._node, self.path)

    def close(self) -> None:
        if self._locker and not self._closed:
            self._node.locked = False
        self._closed = True


class SimDisk:
    """All files of one simulated machine. `rng` decides what a crash leaves."""

    def __init__(
        self,
        rng: random.Random,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        capacity_bytes: int | None = None,
    ) -> None:
        self._rng = rng
        self._root = _DirNode()
        self._failing: dict[str, tuple[int, frozenset[str] | None]] = {}
        """The errno and the operations that fail, by path prefix; None: all operations."""
        self.now_ms = now_ms
        self.capacity_bytes = capacity_bytes
        self.handles_left: int | None = None
        self._on_many_open: Callable[[], None] | None = None
        """So many files can be opened, and none after them, small files that are replaced excepted; None: no limit."""
        self.cold = False
        """`read_nowait` finds nothing in the page cache."""
        self.lying = False
        """Syncs have no effect."""
        self.lie_below = ""
        """Syncs below this directory have no effect, as with a drive that has a volatile cache."""
        self.forgets_failed_writes = False
        """After a sync that fails, the bytes that it was to write count as synced, and are in the page cache only."""
        self.before: Callable[[str, str], None] = _nothing
        """Called with the path and the operation before each operation; an exception that it raises replaces it."""
        self.generation = 0
        """Raised by each crash and end of a process: handles of earlier generations are closed."""
        self.writes = 0
        self.syncs = 0

    # Faults

    def crash(self) -> None:
        """Lose what a power failure loses: afterwards the disk is as the next start finds it. Faults stay on."""
        self.generation += 1
        self._root.crash(self._rng)

    def let_go(self) -> None:
        """The process has ended: no data is lost, but its files are closed and its locks are free."""
        self.generation += 1
        for node in _files(self._root):
            node.locked = False

    def fail(self, prefix: str, code: int = errno.EIO, operations: frozenset[str] | None = None) -> None:
        """From now on calls on paths below `prefix` raise `code`; only `operations` (read write sync name) if given."""
        self._failing[prefix] = (code, operations)

    def mend(self, prefix: str) -> None:
        self._failing.pop(prefix, None)

    def flip_bit(self, path: str, bit: int | None = None) -> int:
        """Flip one bit of the stored file, without an error; returns the bit's number."""
        node = self._file(path)
        assert node.data, f"{path} is empty: there is no bit to flip"
        bit = self._rng.randrange(len(node.data) * 8) if bit is None else bit
        for image in (node.data, node.durable):
            if bit // 8 < len(image):
                image[bit // 8] ^= 1 << bit % 8
        return bit

    def misdirect(self, source: str, at: int, size: int, target: str, to: int) -> None:
        """Move `size` bytes of `source` at `at` into `target` at `to`, without an error: zeros take their place, and
        they overwrite the bytes there."""
        target_node, source_node = self._file(target), self._file(source)
        piece = bytes(source_node.data[at : at + size])
        for image in (target_node.data, target_node.durable):
            image[to : to + size] = piece[: max(0, len(image) - to)]
        for image in (source_node.data, source_node.durable):
            image[at : at + size] = bytes(len(image[at : at + size]))

    def lies_about(self, path: str) -> bool:
        """Whether a sync of `path` has no effect."""
        return self.lying or (self.lie_below != "" and path.startswith(self.lie_below))

    def peek(self, path: str) -> bytes:
        """A file's bytes, without faults; empty where there is no file."""
        node = self._find(path)
        return bytes(node.data) if isinstance(node, _FileNode) else b""

    def names(self, path: str) -> list[str]:
        """The names in a directory, without faults; empty where there is no directory."""
        node = self._find(path)
        return sorted(node.entries) if isinstance(node, _DirNode) else []

    @property
    def used_bytes(self) -> int:
        return sum(len(node.data) for node in _files(self._root))

    def check(self, path: str, operation: str) -> None:
        """Raise the `OSError` that `fail` has set for this path and operation, if any."""
        self.before(path, operation)
        for prefix, (code, operations) in self._failing.items():
            if (operations is None or operation in operations) and (path + "/").startswith(prefix.rstrip("/") + "/"):
                raise OSError(code, f"simulated {errno.errorcode[code]}", path)

    def _check_handles(self, path: str) -> None:
        if self.handles_left == 0:
            if self._on_many_open is not None:
                self._on_many_open()
            raise NoHandleLeft(errno.EMFILE, "no simulated descriptor left", path)

    def room(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 62
        return max(0, self.capacity_bytes - self.used_bytes)

    # Disk

    @property
    def without_reserve(self) -> SimDisk:
        return self

    def when_many_are_open(self, call: Callable[[], None] | None) -> None:
        self._on_many_open = call

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> SimFile:
        self.check(path, "write" if create else "read")
        if self.handles_left is not None and not path.endswith(".tmp"):
            self._check_handles(path)
            self.handles_left -= 1
        parent, name = self._parent(path)
        node = parent.entries.get(name)
        if node is None:
            if not create:
                raise OSError(errno.ENOENT, "no such file", path)
            node = _FileNode(self.now_ms())
            parent.change((name, node))
        elif create and exclusive:
            raise OSError(errno.EEXIST, "the file exists", path)
        if isinstance(node, _DirNode):
            raise OSError(errno.EISDIR, "a directory", path)
        return SimFile(self, node, path)

    def read_file(self, path: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        self.check(path, "read")
        self._check_handles(path)
        data = bytes(self._file(path).data)
        if len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"{len(data)} bytes are more than the {max_bytes} allowed", path)
        return data

    def stat(self, path: str) -> FileStat | None:
        self.check(path, "read")
        node = self._find(path)
        if node is None:
            return None
        if isinstance(node, _DirNode):
            return FileStat(0, 0, True)
        return FileStat(len(node.data), node.modified_ms, False)

    def list_dir(self, path: str) -> list[str]:
        self.check(path, "read")
        return sorted(self._dir(path).entries)

    def make_dirs(self, path: str) -> None:
        self.check(path, "name")
        here = self._root
        for name in _split(path):
            node = here.entries.get(name)
            if node is None:
                node = _DirNode()
                here.change((name, node))
            if not isinstance(node, _DirNode):
                raise OSError(errno.ENOTDIR, "not a directory", path)
            here = node

    def rename(self, source: str, target: str) -> None:
        self.check(source, "name")
        self.check(target, "name")
        old_dir, old_name = self._parent(source)
        new_dir, new_name = self._parent(target)
        node = old_dir.entries.get(old_name)
        if node is None:
            raise OSError(errno.ENOENT, "no such file", source)
        existing = new_dir.entries.get(new_name)
        if isinstance(existing, _DirNode) and existing.entries:
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", target)
        if old_dir is new_dir:
            old_dir.change((old_name, None), (new_name, node))
        else:
            new_dir.change((new_name, node))
            old_dir.change((old_name, None))

    def remove(self, path: str) -> None:
        self.check(path, "name")
        if self._find(path) is not None:
            parent, name = self._parent(path)
            parent.change((name, None))

    def remove_tree(self, path: str) -> None:
        self.check(path, "name")
        if self._find(path) is not None:
            parent, name = self._parent(path)
            parent.change((name, None))

    def sync_dir(self, path: str) -> None:
        self.check(path, "sync")
        self.syncs += 1
        if not self.lies_about(path):
            self._dir(path).sync()

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.check(path, "name")
        self._file(path).modified_ms = modified_ms

    def usable_bytes(self, path: str) -> int:
        self.check(path, "read")
        return self.room()

    def total_bytes(self, path: str) -> int:
        self.check(path, "read")
        return 1 << 62 if self.capacity_bytes is None else self.capacity_bytes

    def lock(self, path: str) -> SimFile | None:
        file = self.open(path, create=True)
        node = self._file(path)
        if node.locked:
            return None
        node.locked = True
        return SimFile(self, node, file.path, locker=True)

    # Paths

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in _split(path):
            if not isinstance(node, _DirNode):
                return None
            node = node.entries.get(name)
        return node

    def _dir(self, path: str) -> _DirNode:
        node = self._find(path)
        if not isinstance(node, _DirNode):
            raise OSError(errno.ENOENT if node is None else errno.ENOTDIR, "no such directory", path)
        return node

    def _file(self, path: str) -> _FileNode:
        node = self._find(path)
        if not isinstance(node, _FileNode):
            raise OSError(errno.ENOENT if node is None else errno.EISDIR, "no such file", path)
        return node

    def _parent(self, path: str) -> tuple[_DirNode, str]:
        names = _split(path)
        if not names:
            raise OSError(errno.EINVAL, "the root has no parent", path)
        return self._dir("/".join(names[:-1])), names[-1]


def _nothing(path: str, operation: str) -> None:
    return None


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _files(directory: _DirNode) -> Iterator[_FileNode]:
    for node in directory.entries.values():
        if isinstance(node, _FileNode):
            yield node
        else:
            yield from _files(node)
