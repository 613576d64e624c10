"""The aborted transactions that end in one segment.

An entry is written when an abort marker is appended: version, producer id, first and last offset of the transaction,
and the last stable offset at that moment. A read_committed consumer gets those that overlap what it fetched. The search
ends at an entry whose last stable offset is beyond the range: later entries concern later offsets only.

The file is made with its first entry: most segments have none.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import NamedTuple

from kalda.base.disk import Buffer, Disk, File
from kalda.base.errors import UnsupportedFormat
from kalda.storage.log.index import Reader, WouldWait, read_cached, read_waiting

_ENTRY = Struct(">hqqqq")
_SIZE = _ENTRY.size
_LAST_OFFSET = Struct(">18xq8x")
_VERSION = 0
_LATEST_VERSION = 100
"""No release has a higher one: entries have no checksum, and what a loss of power left most likely has."""
_MAX_FILE_BYTES = 256 * 1024 * 1024
_ENTRIES_A_READ = 16_384


class AbortedTxn(NamedTuple):
    """One aborted transaction; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    """The entries of one segment, oldest first, as they are stored. They are read on first use, and in memory while the
    file is open: a log may have aborted very many transactions."""

    __slots__ = ("_changes", "_count", "_disk", "_file", "_last_offset", "_rows", "exists", "path")

    def __init__(self, disk: Disk, path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self.exists = exists
        """Whether there is a file."""
        self._file: File | None = None
        """None while the file is not open."""
        self._rows: bytearray | None = None if exists else bytearray()
        """All entries; None where they are in the file only. It only grows: a truncation replaces it."""
        self._count = -1 if exists else 0
        """The number of entries; -1 where the file has not been looked at yet."""
        self._last_offset = -1
        """That of the last entry, where `_count` is not negative."""
        self._changes = 0
        """Counts appends and truncations."""

    def open(self) -> File:
        """The file, to be written; it is made where there is none."""
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
            self.exists = True
        return self._file

    def sync_file(self, disk: Disk) -> File:
        """A handle of the caller's own on the file, to be synced; `disk` opens it where it is not open."""
        return self._file.share() if self._file is not None else disk.open(self.path)

    def _load(self, read: Reader) -> bytearray:
        """All entries, read by means of `read`. Raises `WouldWait` where that does, or where the file is not open and
        `read` must not wait."""
        rows = self._rows
        if rows is None:
            if self._file is None:
                if read is read_cached:
                    raise WouldWait
                self._file = self._disk.open(self.path)
            size = min(self._file.size(), _MAX_FILE_BYTES)
            rows = bytearray(read(self._file, 0, size) if size else b"")
            del rows[len(rows) - len(rows) % _SIZE :]
            self._take(rows)
        return rows

    def _take(self, rows: bytearray) -> None:
        """`rows` are all entries."""
        self._rows = rows
        self._count = len(rows) // _SIZE
        self._last_offset = _last_offset(rows, self._count - 1) if self._count else -1

    def entries(self) -> list[AbortedTxn]:
        """All of them, decoded."""
        return [each for _, each in decode_entries(self._load(read_waiting))]

    def prepare(self) -> None:
        """Open the file, and read where it ends: after that, `append` opens and reads nothing."""
        file = self.open()
        if self._count < 0:
            count = min(file.size(), _MAX_FILE_BYTES) // _SIZE
            self._last_offset = _last_offset(file.read((count - 1) * _SIZE, _SIZE), 0) if count else -1
            self._count = count

    def append(self, txn: AbortedTxn) -> None:
        self.prepare()
        if self._last_offset >= txn.last_offset:
            raise AssertionError(f"aborted transactions do not grow in {self.path}")
        row = _ENTRY.pack(_VERSION, *txn)
        self.open().write(self._count * _SIZE, row)
        if self._rows is not None:
            self._rows += row
        self._count += 1
        self._last_offset = txn.last_offset
        self._changes += 1

    def collect(self, first: int, upto: int, into: list[AbortedTxn], read: Reader = read_waiting) -> bool:
        """Add those that overlap [first, upto) to `into`. Whether no later segment can hold another. Raises as
        `read`."""
        if not self.exists:
            return False
        rows = self._load(read)
        # They are in the order of their markers. A consumer near the end must not pay for all that were aborted before.
        for at in range(_first_from(rows, first), len(rows) // _SIZE):
            txn = AbortedTxn(*_ENTRY.unpack_from(rows, at * _SIZE)[1:])
            if txn.first_offset < upto:
                into.append(txn)
            if txn.last_stable_offset >= upto:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drop transactions that end at or after `offset`."""
        if not self.exists:
            return
        rows = self._load(read_waiting)
        kept = rows[: _first_from(rows, offset) * _SIZE]
        if len(kept) < len(rows):
            self.open().truncate(len(kept))
            self._take(kept)
            self._changes += 1

    def reset(self) -> None:
        """Drop all entries. Raises `UnsupportedFormat`, and keeps them, where the first is of a later version."""
        if self.exists:
            _check_version(self.path, self.open().read(0, _SIZE))
            self.open().truncate(0)
            self._take(bytearray())
            self._changes += 1

    def is_sane(self) -> bool:
        """Whether every entry is well-formed. Otherwise the segment is recovered. Raises `UnsupportedFormat` where the
        first one is of a later version."""
        if not self.exists:
            return True
        found = self._disk.stat(self.path)
        if found is None or found.size_bytes % _SIZE:
            return False
        file = self._disk.open(self.path)
        try:
            _check_version(self.path, file.read(0, _SIZE))
            return all(
                first <= last
                for position in range(0, found.size_bytes, _ENTRIES_A_READ * _SIZE)
                for _, _, first, last, _ in _ENTRY.iter_unpack(file.read(position, _ENTRIES_A_READ * _SIZE))
            )
        finally:
            file.close()

    def snapshot(self) -> TxnIndex:
        """Of the same entries, without touching the disk: what is not in memory is read by `collect` of the snapshot,
        on any thread, from the open file or by name."""
        twin = TxnIndex(self._disk, self.path, exists=self.exists)
        twin._rows, twin._changes = self._rows, self._changes
        if self._rows is None and self._file is not None:
            twin._file = self._file.share()
        return twin

    @property
    def is_open(self) -> bool:
        """Whether a read of it need not open the file by name."""
        return not self.exists or self._rows is not None or self._file is not None

    def adopt(self, twin: TxnIndex) -> None:
        """Take the entries that a snapshot has read, where they are still all of them. They are held until `close`."""
        if self._rows is None and twin._rows is not None and twin._changes == self._changes and twin.path == self.path:
            self._take(twin._rows)

    def close_file(self) -> None:
        """Close the file, and hold the entries that were read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the file, and hold no entries any more."""
        self.close_file()
        if self.exists:
            self._rows = None


def _check_version(path: str, first: Buffer) -> None:
    if len(first) == _SIZE and _VERSION < (version := _ENTRY.unpack(first)[0]) <= _LATEST_VERSION:
        raise UnsupportedFormat(f"{path} has an entry of version {version}, only {_VERSION} is known")


def _last_offset(rows: Buffer, at: int) -> int:
    offset: int = _LAST_OFFSET.unpack_from(rows, at * _SIZE)[0]
    return offset


def _first_from(rows: bytearray, offset: int) -> int:
    """The number of the first entry that ends at or after `offset`."""
    return bisect_left(range(len(rows) // _SIZE), offset, key=lambda at: _last_offset(rows, at))


def decode_entries(data: Buffer) -> list[tuple[int, AbortedTxn]]:
    """(version, entry) of each row in a file's bytes."""
    whole = len(data) - len(data) % _ENTRY.size
    return [(row[0], AbortedTxn(*row[1:])) for row in _ENTRY.iter_unpack(data[:whole])]
