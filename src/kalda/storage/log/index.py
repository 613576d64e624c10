"""Offset index and time index: sparse, sorted, fixed-size entries beside a segment.

`.index` maps offset to file position (two int32, the offset relative to the segment's base), `.timeindex` timestamp to
offset (int64, int32 relative). An entry is made where more than `index.interval.bytes` were appended since the last
one; it names the batch that starts there by its *last* offset.

An index is held in memory only while its segment is written to: entries are appended to a bytearray and written to the
file by `flush_to_file`. Afterwards look-ups read the file: a few probes of 8 or 12 bytes and one page. Apache Kafka
maps its indexes and preallocates them; once trimmed the files are the same.

Invariants: offsets grow strictly in the offset index; in the time index timestamps grow strictly and offsets never
fall. Look-ups on growing memory never hold a view of it, so an append can always resize it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Self

from kalda.base.disk import Buffer, Disk, File

Reader = Callable[[File, int, int], Buffer]
"""How a look-up reads `size` bytes from a position of a file: `read_waiting` or `read_cached`."""

_MAX_FILE_BYTES = 64 * 1024 * 1024
"""What is read of an index file, at least: it may be larger than its entries, as it is made with
`segment.index.bytes`."""
_PAGE_ENTRIES = 512
"""A search by halves ends when so few entries are left: they are read at once."""


class WouldWait(Exception):
    """The page cache does not have what is to be read: a thread has to read it."""


def read_waiting(file: File, position: int, size: int) -> Buffer:
    return file.read(position, size)


def read_cached(file: File, position: int, size: int) -> Buffer:
    data = file.read_nowait(position, size)
    if data is None:
        raise WouldWait
    return data


class Index:
    """Sorted entries, in memory while written, in the file afterwards."""

    __slots__ = ("_count", "_disk", "_entries", "_file", "_flushed", "base_offset", "max_bytes", "path")

    ENTRY: Struct
    KEY: Struct

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int, *, fresh: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        """Of the segment; offsets are stored relative to it."""
        self.max_bytes = max_bytes
        """`segment.index.bytes`: the segment is rolled before the index is larger."""
        self._file: File | None = None
        """None while the file is not open."""
        self._entries: bytearray | None = bytearray() if fresh else None
        """All entries as they are stored; None while they are in the file only."""
        self._count = 0 if fresh else -1
        """The number of entries; -1 where the file's size has not been read yet."""
        self._flushed = 0
        """How many of `_entries` are in the file."""

    @property
    def count(self) -> int:
        """Entries. A trailing part of an entry does not count."""
        if self._count < 0:
            found = self._disk.stat(self.path)
            self._count = 0 if found is None else found.size_bytes // self.ENTRY.size
        return self._count

    @property
    def size_bytes(self) -> int:
        return self.count * self.ENTRY.size

    @property
    def max_entries(self) -> int:
        return self.max_bytes // self.ENTRY.size

    def load(self) -> bytearray:
        """Bring the entries into memory, where they can be added to."""
        entries = self._entries
        if entries is None:
            size = self.size_bytes
            entries = bytearray(self._disk.read_file(self.path, max(size, _MAX_FILE_BYTES))[:size] if size else b"")
            self._entries = entries
            self._count = len(entries) // self.ENTRY.size
            self._flushed = self._count
        return entries

    def release(self) -> None:
        """Write the new entries to the file, and hold none in memory any more."""
        self.flush_to_file()
        self._entries = None
        self.close()

    def flush_to_file(self) -> None:
        """Write the new entries to the file."""
        entries = self._entries
        if entries is not None and self._count > self._flushed:
            width = self.ENTRY.size
            self.open().write(self._flushed * width, bytes(entries[self._flushed * width :]))
            self._flushed = self._count
            self.close()

    def sync_file(self, disk: Disk) -> File:
        """Write the new entries; a handle of the caller's own on the file, to be synced, opened by `disk`."""
        if self._file is None:
            self._file = disk.open(self.path, create=True)
        file = self._file.share()
        self.flush_to_file()
        self.close()
        return file

    def open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        return self._file

    def reading(self, read: Reader) -> File:
        """The file, for a read. Opening it may wait for the device: `WouldWait` where `read` must not."""
        if self._file is None:
            if read is read_cached:
                raise WouldWait
            self._file = self._disk.open(self.path)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def reset(self) -> None:
        """Remove all entries, in memory and in the file."""
        self.open().truncate(0)
        self._entries = bytearray()
        self._count = self._flushed = 0

    def view(self) -> Self:
        """The index as it is now, with a handle of its own on the file."""
        twin = type(self)(self._disk, self.path, self.base_offset, self.max_bytes)
        twin._count = self.count
        if self._entries is not None:
            twin._entries = bytearray(self._entries)
        elif twin._count:
            twin._file = self.open().share()
        return twin

    def snapshot(self) -> Self:
        """As `view`, without touching the disk: what is not open here, its reader opens."""
        twin = type(self)(self._disk, self.path, self.base_offset, self.max_bytes)
        twin._count = self._count
        if self._entries is not None:
            twin._entries = bytearray(self._entries)
        elif self._file is not None:
            twin._file = self._file.share()
        return twin

    def adopt(self, twin: Self) -> None:
        """Take what was opened or loaded in a snapshot, where neither has happened here meanwhile."""
        if self._entries is None and self._file is None:
            self._entries, self._count, self._flushed = twin._entries, twin._count, twin._flushed
            if twin._file is not None:
                self._file = twin._file.share()

    def keep(self, count: int) -> None:
        """Drop all but the first `count` entries."""
        entries = self.load()
        width = self.ENTRY.size
        if count < self._count:
            del entries[count * width :]
            self._count = count
            if self._flushed > count:
                self.open().truncate(count * width)
                self._flushed = count

    def page_below(self, key: int, read: Reader, at: int = 0) -> tuple[int, Buffer, int]:
        """(the number of entries whose key is at most `key`, a page of entries, the number of the page's first entry).

        `at` is the position of the key in an entry: any field will do that never falls from one entry to the next. The
        page holds entry `number - 1` where `number` is not 0, and entry `number` where there is one.
        """
        width, entries = self.ENTRY.size, self._entries
        if self._count < 0 and read is read_cached:
            raise WouldWait
        count = self.count
        unpack = self.KEY.unpack_from
        low, high = 0, count
        if entries is not None:
            if count and unpack(entries, (count - 1) * width + at)[0] <= key:
                low = count  # most reads are at the end
            while low < high:
                middle = (low + high) // 2
                if unpack(entries, middle * width + at)[0] <= key:
                    low = middle + 1
                else:
                    high = middle
            first = max(0, low - 1)
            return low, bytes(entries[first * width : (low + 1) * width]), first
        if not count:
            return 0, b"", 0
        file = self.reading(read)
        while high - low > _PAGE_ENTRIES:
            middle = (low + high) // 2
            if unpack(_whole(read(file, middle * width, width), width), at)[0] <= key:
                low = middle + 1
            else:
                high = middle
        first = max(0, low - 1)
        upto = min(count, high + 1)
        page = _whole(read(file, first * width, (upto - first) * width), (upto - first) * width)
        while low < high:
            middle = (low + high) // 2
            if unpack(page, (middle - first) * width + at)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low, page, first

    def raw(self, number: int, read: Reader) -> tuple[int, int]:
        """An entry as stored; `number` may be negative, from the end."""
        number = number if number >= 0 else self.count + number
        if self._entries is not None:
            key, value = self.ENTRY.unpack_from(self._entries, number * self.ENTRY.size)
        else:
            width = self.ENTRY.size
            key, value = self.ENTRY.unpack(_whole(read(self.reading(read), number * width, width), width))
        return key, value


def _whole(data: Buffer, size: int) -> Buffer:
    if len(data) < size:
        raise OSError(5, f"an index is {size - len(data)} bytes shorter than its directory entry said")
    return data


class OffsetIndex(Index):
    """Offset to the position of the batch that ends with it."""

    __slots__ = ()

    ENTRY = Struct(">ii")
    KEY = Struct(">i")

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_entries

    def append(self, offset: int, position: int) -> None:
        """The caller rolls before the index is full and before relative offsets exceed int32."""
        entries = self.load()
        relative = offset - self.base_offset
        if self._count and relative <= self.ENTRY.unpack_from(entries, len(entries) - 8)[0]:
            raise AssertionError(f"offset {offset} does not grow in {self.path}")
        entries += self.ENTRY.pack(relative, position)
        self._count += 1

    def lookup(self, offset: int, read: Reader = read_waiting) -> tuple[int, int]:
        """Offset and position of the last entry at or below `offset`; the segment's start where there is none."""
        number, page, first = self.page_below(offset - self.base_offset, read)
        if not number:
            return self.base_offset, 0
        relative, position = self.ENTRY.unpack_from(page, (number - 1 - first) * 8)
        return self.base_offset + relative, position

    def position_after(self, offset: int, read: Reader = read_waiting) -> int | None:
        """Position of the first entry above `offset`; None where there is none."""
        number, page, first = self.page_below(offset - self.base_offset, read)
        if number >= self.count:
            return None
        position: int = self.ENTRY.unpack_from(page, (number - first) * 8)[1]
        return position

    def last_within(self, position: int, offset: int, read: Reader = read_waiting) -> tuple[int, int] | None:
        """Offset and position of the last entry whose position and offset are at most these; None where there is
        none."""
        number = min(
            self.page_below(position, read, at=self.KEY.size)[0], self.page_below(offset - self.base_offset, read)[0]
        )
        if not number:
            return None
        relative, found = self.raw(number - 1, read)
        return self.base_offset + relative, found

    def last(self, read: Reader = read_waiting) -> tuple[int, int]:
        """Offset and position of the last entry; the segment's start where there is none."""
        if not self.count:
            return self.base_offset, 0
        relative, position = self.raw(-1, read)
        return self.base_offset + relative, position

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        self.keep(self.page_below(offset - self.base_offset - 1, read_waiting)[0])

    def entries(self) -> list[tuple[int, int]]:
        data = self._disk.read_file(self.path) if self._entries is None else bytes(self._entries)
        return [(self.base_offset + relative, position) for relative, position in _rows(self.ENTRY, data)]


class TimeIndex(Index):
    """The largest timestamp so far, and the last offset of its batch."""

    __slots__ = ()

    ENTRY = Struct(">qi")
    KEY = Struct(">q")

    @property
    def is_full(self) -> bool:
        """Whether one more entry fits only: that is the one which is made when the segment is sealed."""
        return self.count >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """An entry where `timestamp` is larger than every one before."""
        entries = self.load()
        relative = offset - self.base_offset
        last = self.ENTRY.unpack_from(entries, len(entries) - 12) if self._count else (-1, 0)
        if timestamp > last[0]:
            assert relative >= last[1], f"offset {offset} falls in {self.path}"
            entries += self.ENTRY.pack(timestamp, relative)
            self._count += 1

    def lookup(self, timestamp: int, read: Reader = read_waiting) -> tuple[int, int]:
        """The last entry at or below `timestamp`; (-1, base offset) where there is none."""
        number, page, first = self.page_below(timestamp, read)
        if not number:
            return -1, self.base_offset
        found, relative = self.ENTRY.unpack_from(page, (number - 1 - first) * 12)
        return found, self.base_offset + relative

    def last(self, read: Reader = read_waiting) -> tuple[int, int]:
        """The last entry; (-1, base offset) where there is none."""
        if not self.count:
            return -1, self.base_offset
        timestamp, relative = self.raw(-1, read)
        return timestamp, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        relative = offset - self.base_offset
        entries = self.load()
        count = self._count
        while count and self.ENTRY.unpack_from(entries, (count - 1) * 12)[1] >= relative:
            count -= 1
        self.keep(count)

    def entries(self) -> list[tuple[int, int]]:
        data = self._disk.read_file(self.path) if self._entries is None else bytes(self._entries)
        return [(timestamp, self.base_offset + relative) for timestamp, relative in _rows(self.ENTRY, data)]


def _rows(entry: Struct, data: bytes) -> list[tuple[int, int]]:
    """The entries in `data`. The zeros behind the last one in an index that Apache Kafka has open are not entries."""
    size = max(len(data.rstrip(b"\0")), min(len(data), entry.size))
    return list(entry.iter_unpack(data[: min(-(-size // entry.size), len(data) // entry.size) * entry.size]))
