"""The aborted transactions that end in one segment.

An entry is written when an abort marker is appended: version, producer id, first and last offset of the transaction,
and the last stable offset at that moment. A read_committed consumer gets those that overlap what it fetched. The search
ends at an entry whose last stable offset is beyond the range: later entries concern later offsets only.

The file is made with its first entry: most segments have none.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from kalda.base.disk import Disk, File
from kalda.storage.index import Reader, read_waiting

_ENTRY = Struct(">hqqqq")
_VERSION = 0
_MAX_FILE_BYTES = 256 * 1024 * 1024


class AbortedTxn(NamedTuple):
    """One aborted transaction; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_LAST_OFFSET = attrgetter("last_offset")


class TxnIndex:
    """The entries of one segment, oldest first; read on first use."""

    __slots__ = ("_disk", "_entries", "_file", "exists", "path")

    def __init__(self, disk: Disk, path: str, *, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self.exists = exists
        """Whether there is a file."""
        self._file: File | None = None
        """None while the file is not open."""
        self._entries: list[AbortedTxn] | None = None if exists else []
        """None where the file has not been read yet."""

    def open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
            self.exists = True
        return self._file

    def sync_file(self, disk: Disk) -> File:
        """A handle of the caller's own on the file, to be synced; `disk` opens it where it is not open."""
        return self._file.share() if self._file is not None else disk.open(self.path)

    def entries(self, read: Reader = read_waiting) -> list[AbortedTxn]:
        if self._entries is None:
            file = self.open()
            size = min(file.size(), _MAX_FILE_BYTES)
            data = read(file, 0, size) if size else b""
            whole = len(data) - len(data) % _ENTRY.size
            self._entries = [AbortedTxn(*row[1:]) for row in _ENTRY.iter_unpack(bytes(data[:whole]))]
        return self._entries

    def prepare(self) -> None:
        """Open the file and read it: after that, `append` opens nothing."""
        self.open()
        self.entries()

    def append(self, txn: AbortedTxn) -> None:
        entries = self.entries()
        if entries and entries[-1].last_offset >= txn.last_offset:
            raise AssertionError(f"aborted transactions do not grow in {self.path}")
        self.open().write(len(entries) * _ENTRY.size, _ENTRY.pack(_VERSION, *txn))
        entries.append(txn)

    def collect(self, first: int, upto: int, into: list[AbortedTxn], read: Reader = read_waiting) -> bool:
        """Add those that overlap [first, upto) to `into`. Whether no later segment can hold another."""
        if not self.exists:
            return False
        entries = self.entries(read)
        # They are in the order of their markers. A consumer near the end must not pay for all that were aborted before.
        for at in range(bisect_left(entries, first, key=_LAST_OFFSET), len(entries)):
            txn = entries[at]
            if txn.first_offset < upto:
                into.append(txn)
            if txn.last_stable_offset >= upto:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drop transactions that end at or after `offset`."""
        if not self.exists:
            return
        entries = self.entries()
        kept = [txn for txn in entries if txn.last_offset < offset]
        if len(kept) < len(entries):
            self.open().truncate(len(kept) * _ENTRY.size)
            self._entries = kept

    def reset(self) -> None:
        if self.exists:
            self.open().truncate(0)
            self._entries = []

    def is_sane(self) -> bool:
        """Whether every entry is well-formed. Otherwise the segment is recovered."""
        if not self.exists:
            return True
        found = self._disk.stat(self.path)
        if found is None or found.size_bytes % _ENTRY.size:
            return False
        return all(txn.first_offset <= txn.last_offset for txn in self.entries())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def decode_entries(data: bytes) -> list[tuple[int, AbortedTxn]]:
    """(version, entry) of each row in a file's bytes."""
    whole = len(data) - len(data) % _ENTRY.size
    return [(row[0], AbortedTxn(*row[1:])) for row in _ENTRY.iter_unpack(data[:whole])]
