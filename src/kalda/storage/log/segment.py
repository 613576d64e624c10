"""One log file with its indexes.

A segment holds the batches from its base offset up to the next segment's. `size` counts the bytes that were written
whole: nothing beyond it is read. Files are opened on first use, so that a partition without requests costs no file
descriptor.

Times: the segment's age for rolling counts from its first batch's timestamp where there is one, from its creation
otherwise; its age for retention from its largest timestamp, from the file's modification otherwise.

A thread reads from a copy of the segment: a `view` has handles of its own on every file, a `snapshot` only on those
that are open already. What a snapshot's reader has opened, `adopt` takes into the segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.disk import Buffer, Disk, File
from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_BATCH_SIZE, BatchHeader, least_length, read_header
from kalda.storage.config import LogConfig
from kalda.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from kalda.storage.log.index import OffsetIndex, Reader, TimeIndex, WouldWait, read_cached, read_waiting
from kalda.storage.log.txn_index import TxnIndex
from kalda.storage.values import FetchInfo

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_GAP = 2**30
"""The largest gap of offsets that is left inside a segment: its indexes hold offsets relative to its base, as int32."""
_SCAN_BYTES = 8 * 1024
"""What a scan for a batch reads at once: more than what lies between two index entries, by default."""
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_WALK = Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_WALK_SIZE = _WALK.size
"""One more than the smallest batch of magic 0 has, which is padded."""


class Placed(NamedTuple):
    """A batch as it goes into a segment."""

    last_offset: int
    max_timestamp: int
    size_bytes: int


class Slice(NamedTuple):
    """Whole batches read from a segment."""

    data: Buffer
    next_offset: int  # of the last batch read; -1 where there is none
    end_position: int
    incomplete: bool  # there was a batch, but `max_bytes` did not hold it

    def info(self, offset: int) -> FetchInfo:
        """For a reader at `offset`."""
        if self.next_offset < 0:
            return FetchInfo(offset, offset, b"", self.incomplete)
        return FetchInfo(offset, self.next_offset, self.data)


class Segment:
    """Owned by one log; a `read` argument says whether the read may wait for the device."""

    __slots__ = (
        "_disk",
        "_file",
        "_first_timestamp",
        "_max_timestamp",
        "base_offset",
        "bytes_since_index",
        "config",
        "created_ms",
        "directory",
        "hot_from",
        "indexes_full",
        "jitter_ms",
        "offset_index",
        "sealed",
        "size",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        size: int = 0,
        created_ms: int = 0,
        jitter_ms: int = 0,
        fresh: bool = False,
        has_txn_index: bool = False,
        suffix: str = "",
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        """No batch of the segment ends below it; it names the files, and index entries are relative to it."""
        self.config = config
        self.size = size
        """Bytes of whole batches in the log file. Whatever follows them in the file is not part of the segment."""
        self.created_ms = created_ms
        """When it was made, or found on the disk."""
        self.jitter_ms = jitter_ms
        """By how much earlier than `segment.ms` it is rolled."""
        self.suffix = suffix
        """What follows the usual names of the files: `.cleaned`, `.swap`, `.deleted`, or nothing."""
        self.hot_from = size
        """The position from which on this process has written the bytes itself: they are in the page cache."""
        self.bytes_since_index = 0
        """Bytes appended since the last index entry."""
        self.indexes_full = False
        """An index has no room for another entry: the next append rolls."""
        self.sealed = not fresh
        """Nothing was appended since the indexes were completed and written to their files."""
        self._file: File | None = None
        """The log file; None while it is not open."""
        self._first_timestamp: int | None = None
        """The first batch's largest timestamp; None where it has not been read, or there is no batch."""
        self._max_timestamp: tuple[int, int] | None = (-1, base_offset) if fresh else None
        """The largest timestamp, -1 for none, and the last offset of its batch; None where it has not been read."""
        limit = config.segment_index_bytes
        self.offset_index = OffsetIndex(disk, self.path(INDEX_SUFFIX), base_offset, limit, fresh=fresh)
        self.time_index = TimeIndex(disk, self.path(TIME_INDEX_SUFFIX), base_offset, limit, fresh=fresh)
        self.txn_index = TxnIndex(disk, self.path(TXN_INDEX_SUFFIX), exists=has_txn_index)

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        jitter_ms: int = 0,
        suffix: str = "",
    ) -> Segment:
        """A new, empty segment with its files. Files that exist under its names are emptied."""
        segment = cls(
            disk,
            directory,
            base_offset,
            config,
            created_ms=now_ms,
            jitter_ms=jitter_ms,
            fresh=True,
            suffix=suffix,
        )
        try:
            file = segment.file()
            if file.size():
                file.truncate(0)
            disk.remove(segment.path(TXN_INDEX_SUFFIX))
            for index in (segment.offset_index, segment.time_index):
                # Kafka recovers a segment that has no index files.
                if index.open().size():
                    index.open().truncate(0)
                index.close()
        except OSError:
            segment.close()
            raise
        return segment

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}{self.suffix}"

    def file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path(LOG_SUFFIX), create=True)
        return self._file

    def release(self) -> None:
        """Close the log file, which the next read or append opens again. The indexes stay as they are."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_open(self) -> bool:
        """Whether the log file is."""
        return self._file is not None

    def reading(self, read: Reader) -> File:
        """The log file, for a read. Opening it may wait for the device: `WouldWait` where `read` must not."""
        if self._file is None:
            if read is read_cached:
                raise WouldWait
            self._file = self._disk.open(self.path(LOG_SUFFIX))
        return self._file

    # Writing

    def append(self, data: Buffer | Sequence[Buffer], batches: Sequence[Placed]) -> None:
        """Write whole batches at the end and index them. On an `OSError` the segment is what it was."""
        position = self.size
        file = self._file or self.file()
        if isinstance(data, (bytes, bytearray, memoryview)):
            file.write(position, data)
        else:
            file.write_many(position, data)
        interval = self.config.index_interval_bytes
        since = self.bytes_since_index
        largest = self._max_timestamp or self.max_timestamp
        if self._first_timestamp is None and not position:
            self._first_timestamp = batches[0].max_timestamp
        for last_offset, max_timestamp, size in batches:
            if max_timestamp > largest[0]:
                largest = (max_timestamp, last_offset)
            if since > interval:
                self._index(last_offset, position, largest)
                since = 0
            position += size
            since += size
        self.size = position
        self.sealed = False
        self.bytes_since_index = since
        self._max_timestamp = largest

    def append_one(self, data: Buffer, size: int, last_offset: int, max_timestamp: int) -> None:
        """`append`, of one batch."""
        position = self.size
        (self._file or self.file()).write(position, data)
        largest = self._max_timestamp or self.max_timestamp
        if max_timestamp > largest[0]:
            self._max_timestamp = largest = (max_timestamp, last_offset)
        if not position:
            self._first_timestamp = max_timestamp
        since = self.bytes_since_index
        if since > self.config.index_interval_bytes:
            self._index(last_offset, position, largest)
            since = 0
        self.bytes_since_index = since + size
        self.size = position + size
        self.sealed = False

    def _index(self, last_offset: int, position: int, largest: tuple[int, int]) -> None:
        self.offset_index.load()  # where one of them cannot be opened, neither gets an entry
        self.time_index.load()
        self.offset_index.append(last_offset, position)
        self.time_index.maybe_append(*largest)
        self.indexes_full = self.offset_index.is_full or self.time_index.is_full

    def should_roll(self, size_bytes: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Whether a new segment must begin before batches of this size, time and last offset are appended."""
        if self.size > self.config.segment_bytes - size_bytes:
            return True
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp(read_waiting)
        waited_ms = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        config = self.config
        if waited_ms > config.segment_ms - self.jitter_ms or self.indexes_full:
            return True
        # Records of the active segment are not compacted: it is rolled in time for `max.compaction.lag.ms` (KIP-354).
        return waited_ms > config.max_compaction_lag_ms and config.compacts

    def first_timestamp(self, read: Reader) -> int:
        """The first batch's largest timestamp; -1 where the segment is empty."""
        if self._first_timestamp is None:
            header = self.header_at(0, read)
            if header is None:
                return -1
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp with the last offset of its batch; (-1, base offset) where none is known."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last()
            self.time_index.close()
        return self._max_timestamp

    def _find_largest_timestamp(self) -> tuple[int, int]:
        """`max_timestamp` of a segment that was cut: its last batches may come after its last index entry, so their
        headers are read. By the time index alone retention would delete them too early."""
        largest = self.time_index.last()
        indexed, _ = self.offset_index.last()
        for _, header in self.headers(self.locate(indexed, read_waiting) or 0):
            if header.max_timestamp > largest[0]:
                largest = (header.max_timestamp, header.last_offset)
        return largest

    @property
    def known_timestamp(self) -> int | None:
        """The largest timestamp; None where it has not been read from the files, or there is none."""
        return self._max_timestamp[0] if self._max_timestamp is not None and self._max_timestamp[0] >= 0 else None

    def largest_timestamp(self) -> int:
        """For retention: the records' where they have timestamps, else the file's time of modification."""
        if self.max_timestamp[0] >= 0:
            return self.max_timestamp[0]
        return self.modified_ms()

    def modified_ms(self) -> int:
        found = self._disk.stat(self.path(LOG_SUFFIX))
        return found.modified_ms if found is not None else self.created_ms

    # Reading

    def header_at(self, position: int, read: Reader) -> BatchHeader | None:
        """The header at `position`; None at the end. Raises `CorruptRecord`."""
        left = self.size - position
        if left < MIN_BATCH_SIZE:
            return None
        return read_header(read(self.reading(read), position, min(left, HEADER_SIZE)))

    def locate(self, offset: int, read: Reader) -> int | None:
        """Position of the batch that holds `offset`, or of the first one after it; None where there is none."""
        indexed, position = self.offset_index.lookup(offset, read)
        if position:
            try:
                return self._locate_from(position, indexed, offset, read)
            except CorruptRecord:
                pass  # the index may be what is damaged: scan the batches from the first one
        return self._locate_from(0, None, offset, read)

    def _locate_from(self, position: int, indexed: int | None, offset: int, read: Reader) -> int | None:
        """`locate` among the batches from `position` on. Where `indexed` is given, an index entry names that position
        for that offset; raises `CorruptRecord` where no batch that may hold the offset begins there."""
        for found, base, delta, _ in self.walk(position, read):
            if indexed is not None:
                if not self.base_offset <= base <= indexed:
                    break
                indexed = None
            if base + delta >= offset:
                return found
        if indexed is not None:
            raise CorruptRecord(f"{self.path(INDEX_SUFFIX)} names position {position} for offset {indexed}")
        return None

    def walk(self, position: int, read: Reader) -> Iterator[tuple[int, int, int, int]]:
        """(position, base offset, last offset delta, size) of each batch from `position` on, by small reads. For a
        batch of magic 0 or 1 the base offset is its last one.

        Raises `CorruptRecord`; also for a position, which an index may have named, that lies outside.
        """
        file, end = self.reading(read), self.size
        if not 0 <= position <= end:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} of {end} bytes has no position {position}")
        while end - position >= MIN_BATCH_SIZE:
            chunk = read(file, position, min(_SCAN_BYTES, end - position))
            if len(chunk) == MIN_BATCH_SIZE:
                chunk = bytes(chunk) + b"\0"
            start, limit = position, len(chunk) - _WALK_SIZE
            if limit < 0:
                return
            while position - start <= limit:
                base, length, magic, delta = _WALK.unpack_from(chunk, position - start)
                if length < _MIN_LENGTH:
                    _sane(length, magic, self, position)
                if magic < MAGIC:
                    delta = 0
                size = length + LOG_OVERHEAD
                if position + size > end:
                    return
                yield position, base, delta, size
                position += size

    def headers(self, position: int = 0, read: Reader = read_waiting) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch from `position` on, by small reads."""
        file = self.reading(read)
        for found, _, _, size in self.walk(position, read):
            try:
                header = read_header(read(file, found, min(size, HEADER_SIZE)))
            except UnsupportedFormat as error:
                raise UnsupportedFormat(f"{self.path(LOG_SUFFIX)}, position {found}: {error.message}") from error
            yield found, header

    def read_slice(self, position: int, max_bytes: int, end_offset: int, min_one: bool, read: Reader) -> Slice:
        """Whole batches from `position` that end below `end_offset` and fit into `max_bytes`.

        With `min_one` the first batch comes whole, however large.
        """
        file, left = self._file or self.reading(read), self.size - position
        size = left if left < max_bytes else max_bytes
        if size < HEADER_SIZE:
            if left < MIN_BATCH_SIZE or (size < left and not min_one):
                return Slice(b"", -1, position, left >= MIN_BATCH_SIZE)
            size = HEADER_SIZE if left > HEADER_SIZE else left
        data = read(file, position, size)
        upto, next_offset, first = _whole_batches(data, end_offset, self, position)
        if not upto and first > len(data) and min_one and first <= left:
            data = read(file, position, first)
            upto, next_offset, _ = _whole_batches(data, end_offset, self, position)
        if upto != len(data):
            data = memoryview(data)[:upto]
        return new_tuple(Slice, (data, next_offset, position + upto, not upto and first > len(data)))

    def bound(self, position: int, end_offset: int, max_bytes: int, read: Reader) -> int:
        """`max_bytes`, or less: up to the first index entry at or beyond `end_offset`, whose batch must not be read."""
        beyond = self.offset_index.position_after(end_offset - 1, read)
        return max_bytes if beyond is None else min(max_bytes, max(0, beyond - position))

    def cut(self, position: int, max_bytes: int, end_offset: int, read: Reader) -> tuple[int, int] | None:
        """Where a slice from `position` on may end, between batches, and the offset there: within `max_bytes` and
        `end_offset`, found by the index without reading what lies between. None where no entry is within them."""
        found = self.offset_index.last_within(position + max_bytes, end_offset, read)
        if found is None or found[1] <= position:
            return None
        try:
            header = self.header_at(found[1], read)
        except CorruptRecord:
            return None
        if header is None or header.last_offset != found[0] or header.is_legacy:  # whose base offset is not known
            return None
        return found[1], header.base_offset

    def next_offset(self, read: Reader = read_waiting) -> int:
        """The offset after the last batch, found from the last index entry on. Raises `CorruptRecord`, also where the
        index has entries for batches that the file does not have, `UnsupportedFormat` for a last batch of a later
        magic."""
        if not self.size and not self.offset_index.count:
            return self.base_offset
        _, position = self.offset_index.last(read)
        found, last, end = -1, position, position
        for at, base, delta, size in self.walk(position, read):
            found, last, end = base + delta + 1, at, at + size
        if end != self.size:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} has {self.size - end} stray bytes after position {end}")
        if found < 0:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} ends at position {end}, where its index names a batch")
        next(self.headers(last, read))  # where the last offset of a later magic is, is not known
        return found

    # Shrinking and closing

    def open_all(self) -> None:
        """Open and read all that `shorten_to` needs."""
        self.file()
        self.offset_index.load()
        self.time_index.load()
        if self.txn_index.exists:
            self.txn_index.prepare()

    def check_cut(self, offset: int) -> None:
        """Raise `CorruptRecord` where a batch that `shorten_to` reads is damaged, so that nothing is changed there."""
        self.locate(offset, read_waiting)
        indexed, _ = self.offset_index.lookup(offset - 1)
        end = start = self.locate(indexed, read_waiting) or 0
        for at, header in self.headers(start):
            if header.last_offset >= offset:
                return
            end = at + header.size_bytes
        if end != self.size:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} has no whole batch at position {end}")

    def shorten_to(self, offset: int) -> tuple[File, int | None]:
        """Drop the batches from the one that holds `offset` on. Returns the log file and the position at which it is to
        be cut, None for nowhere. It must be cut and synced before the next append."""
        position = self.locate(offset, read_waiting)
        file = self.file().share()
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.bytes_since_index = 0
        self.indexes_full = self.sealed = False
        if position is not None:
            self.size = position
            self.hot_from = min(self.hot_from, position)
            if not position:
                self._first_timestamp = None
        self._max_timestamp = self._find_largest_timestamp()
        return file, position

    def reset_state(self, size: int, max_timestamp: tuple[int, int]) -> None:
        """Called when a recovery has rewritten the indexes."""
        self.size = size
        self.hot_from = size
        self._max_timestamp = max_timestamp
        self._first_timestamp = None
        self.bytes_since_index = 0

    def seal(self) -> None:
        """No more appends: make the last entry of the time index, and write both indexes to their files. What an append
        has written that failed then is cut off: after a clean stop it would count as batches."""
        if self.sealed:
            return
        file = self.file()
        if file.size() > self.size:
            file.truncate(self.size)
        largest = self.max_timestamp
        if largest[0] >= 0:
            self.time_index.maybe_append(*largest)
        self.offset_index.release()
        self.time_index.release()
        self.sealed = True

    def sync_files(self, disk: Disk | None = None) -> list[File]:
        """Handles on every file that may hold unsynced bytes, for a job to sync and close. `disk` opens what is not
        open; by default the segment's own does."""
        disk = self._disk if disk is None else disk
        files = [self.sync_file(disk), self.offset_index.sync_file(disk), self.time_index.sync_file(disk)]
        if self.txn_index.exists:
            files.append(self.txn_index.sync_file(disk))
        return files

    def sync_file(self, disk: Disk) -> File:
        """A handle on the log file, likewise."""
        return self._file.share() if self._file is not None else disk.open(self.path(LOG_SUFFIX))

    def close(self) -> None:
        """Close the files; nothing is written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.offset_index.close()
        self.time_index.close()
        self.txn_index.close()

    def change_suffix(self, suffix: str) -> None:
        """Rename every file: to `.deleted` before deletion, to `.swap` and back while the cleaner replaces segments."""
        for kind in SEGMENT_SUFFIXES:
            old = self.path(kind)
            if kind == LOG_SUFFIX or self._disk.stat(old) is not None:
                self._disk.rename(old, f"{self.directory}/{file_name(self.base_offset, kind)}{suffix}")
        self._move(self.directory, suffix)

    def move(self, directory: str) -> None:
        """The directory was renamed."""
        self._move(directory, self.suffix)

    def _move(self, directory: str, suffix: str) -> None:
        self.directory, self.suffix = directory, suffix
        self.offset_index.path = self.path(INDEX_SUFFIX)
        self.time_index.path = self.path(TIME_INDEX_SUFFIX)
        self.txn_index.path = self.path(TXN_INDEX_SUFFIX)

    def view(self) -> Segment:
        """The segment as it is now, with handles of its own on its files: for a job, whatever happens to this one
        meanwhile. Opens what is not open, which may wait for the device."""
        twin = Segment(self._disk, self.directory, self.base_offset, self.config, size=self.size, suffix=self.suffix)
        twin._file = self.file().share()
        twin._max_timestamp = self.max_timestamp
        twin.offset_index = self.offset_index.view()
        twin.time_index = self.time_index.view()
        return twin

    def snapshot(self, *, times: bool = False) -> Segment:
        """As `view`, without touching the disk: what is not open here, its reader opens by name. For reads alone; for
        those by time only with `times`."""
        twin = Segment(self._disk, self.directory, self.base_offset, self.config, size=self.size, suffix=self.suffix)
        if self._file is not None:
            twin._file = self._file.share()
        twin.offset_index = self.offset_index.snapshot()
        if times:
            twin.created_ms, twin._max_timestamp = self.created_ms, self._max_timestamp
            twin.time_index = self.time_index.snapshot()
        return twin

    def prepare(self) -> None:
        """In a snapshot: open and read what the first append needs."""
        self.first_timestamp(read_waiting)
        self.reading(read_waiting)
        self.offset_index.load()
        self.time_index.load()
        self._max_timestamp = self.time_index.last()

    def adopt(self, twin: Segment) -> None:
        """Take the open files and the times of a snapshot, where the files have still the same names and were not
        opened here since: so they were not written to either. Where that fails, as without a descriptor left, the next
        read or append opens them again."""
        if self._file is None and twin._file is not None and twin.path(LOG_SUFFIX) == self.path(LOG_SUFFIX):
            with suppress(OSError):
                self._file = twin._file.share()
                if self._first_timestamp is None:
                    self._first_timestamp = twin._first_timestamp
                if self._max_timestamp is None:
                    self._max_timestamp = twin._max_timestamp
                self.offset_index.adopt(twin.offset_index)
                self.time_index.adopt(twin.time_index)

    def adopt_timestamp(self, twin: Segment) -> None:
        """Take the largest timestamp that was read in a snapshot, where the files were not opened here since."""
        if self._file is None and self._max_timestamp is None and twin.path(LOG_SUFFIX) == self.path(LOG_SUFFIX):
            self._max_timestamp = twin._max_timestamp

    def files(self) -> Callable[[Disk], None]:
        """A function that removes the files of this segment, by the names that they have now."""
        paths = [self.path(kind) for kind in SEGMENT_SUFFIXES]

        def remove(disk: Disk) -> None:
            for path in paths:
                disk.remove(path)

        return remove


def remove_segment_files(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove what there is of the files of a segment that is not the log's."""
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(f"{directory}/{file_name(base_offset, suffix)}")


def _sane(length: int, magic: int, segment: Segment, position: int) -> int:
    if length < least_length(magic):
        raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} has a batch of length {length} at position {position}")
    return length


def _whole_batches(data: Buffer, end_offset: int, segment: Segment, position: int) -> tuple[int, int, int]:
    """(bytes of whole batches that end below `end_offset`, the offset after them or -1, size of the first one)."""
    at, next_offset, first = 0, -1, 0
    end = len(data)
    unpack = _WALK.unpack_from
    while at + _WALK_SIZE <= end:
        base, length, magic, delta = unpack(data, at)
        if length < _MIN_LENGTH:
            _sane(length, magic, segment, position + at)
        after = at + LOG_OVERHEAD + length
        last = base + delta if magic >= MAGIC else base
        if last >= end_offset:
            break
        if not at:
            first = after
        if after > end:
            break
        at, next_offset = after, last + 1
    if end - at == MIN_BATCH_SIZE:
        upto, last_next, _ = _whole_batches(bytes(data[at:]) + b"\0", end_offset, segment, position + at)
        if upto == MIN_BATCH_SIZE:  # not one that ends with the padding
            return end, last_next, first or end
    return at, next_offset, first


class Segments:
    """The segments of one log, sorted by base offset.

    Never empty once a log is open. The last one is the active one, the only one that is appended to.

    A sorted list with look-ups by offset.
    """

    __slots__ = ("_bases", "_items")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self._items = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._items]
        """The base offset of each, for bisection."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(list(self._items))

    def __getitem__(self, at: int) -> Segment:
        return self._items[at]

    @property
    def active(self) -> Segment:
        return self._items[-1]

    @property
    def first(self) -> Segment:
        return self._items[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._items)

    def add(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        assert at == len(self._bases) or self._bases[at] != segment.base_offset, f"segment {segment.base_offset} twice"
        self._bases.insert(at, segment.base_offset)
        self._items.insert(at, segment)

    def remove(self, segment: Segment) -> None:
        at = bisect_left(self._bases, segment.base_offset)
        assert self._items[at] is segment, f"segment {segment.base_offset} is not this log's"
        del self._bases[at], self._items[at]

    def floor(self, offset: int) -> Segment | None:
        """The segment that would hold `offset`; None below the first one."""
        at = bisect_right(self._bases, offset)
        return self._items[at - 1] if at else None

    def from_floor(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, or the first one, and those after it."""
        return self._items[max(0, bisect_right(self._bases, offset) - 1) :]

    def for_read(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, or the first one; and the next one that is not empty, which the read
        needs where compaction has left nothing from `offset` on in the former."""
        at = max(0, bisect_right(self._bases, offset) - 1)
        for after in range(at + 1, len(self._items)):
            if self._items[after].size:
                return [self._items[at], self._items[after]]
        return [self._items[at]]

    def after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._bases, segment.base_offset)
        return self._items[at] if at < len(self._items) else None

    def between(self, first: int, upto: int) -> list[Segment]:
        """Those that may hold an offset in [first, upto)."""
        start = max(0, bisect_right(self._bases, first) - 1)
        return self._items[start : bisect_left(self._bases, upto)]

    def above(self, offset: int) -> list[Segment]:
        """Those whose base offset is larger than `offset`."""
        return self._items[bisect_right(self._bases, offset) :]
