"""The two passes of a compaction over the files of a log: `KeyMapping` finds the last offset of each key, `Rewriting`
writes what is kept of a group of segments into one.

A pass is done in slices, a job each, so that no thread is occupied for long, the bytes a second can be limited, and a
log that was cut or deleted is left alone soon. It reads snapshots of segments. A segment whose files were removed or
cut meanwhile may raise anything: whoever made the pass compares the log with what it was.

A pass that raises has closed its files, and removed those that it made. One that is dropped between two slices must be
discarded.
"""

from __future__ import annotations

import contextlib
import errno
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence

from kalda.base.disk import Buffer, Disk, File
from kalda.base.errors import CorruptRecord
from kalda.records.batch import ATTRIBUTES_POSITION, HEADER_SIZE, BatchHeader, check_crc, read_header
from kalda.records.checksum import crc32c
from kalda.records.compacting import KeyOffsets, KeyScan
from kalda.storage.compaction import (
    CleanedTransactions,
    CleanRules,
    Section,
    filter_batch,
    filter_marker,
    marker_kind,
)
from kalda.storage.config import LogConfig
from kalda.storage.index import read_waiting
from kalda.storage.naming import CLEANED_SUFFIX, LOG_SUFFIX
from kalda.storage.segment import MAX_RELATIVE_OFFSET, Placed, Segment

_WRITE_BYTES = 1024 * 1024
_READ_BYTES = 1024 * 1024
_LARGE_BYTES = 8 * 1024 * 1024
"""A larger batch is read twice, first piece by piece for its CRC: a damaged length must not occupy that much memory."""
_SPARE_BYTES = 64 * 1024 * 1024
"""The last of the disk's space, or a hundredth of a small disk, is left to appends."""
_MAX_GROUP = 100
"""Segments that become one in one cleaning; each is an open file meanwhile."""


def read_batches(segment: Segment, position: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
    """(header, whole bytes) of each batch, by large reads. Raises `CorruptRecord`: a damaged log is not cleaned."""
    file, end, wanted = segment.reading(read_waiting), segment.size, _READ_BYTES
    while position < end:
        size = min(wanted, end - position)
        chunk = memoryview(file.read(position, size))
        if len(chunk) < size:
            raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} ends at {position + len(chunk)}, not at {end}")
        at, wanted = 0, _READ_BYTES
        try:
            while size - at >= HEADER_SIZE or not at:
                header = read_header(chunk, at)
                after = at + header.size_bytes
                if after > size:
                    wanted = _whole(file, header, position + at, end)
                    break
                check_crc(chunk, at, header)
                yield header, chunk[at:after]
                at = after
        except CorruptRecord as error:
            where = f"{segment.path(LOG_SUFFIX)}, read from position {position}"
            raise CorruptRecord(f"{where}: {error.message}") from None
        position += at


def _whole(file: File, header: BatchHeader, position: int, end: int) -> int:
    """How much is to be read at `position` for a batch of that header, of which the last read had only a part."""
    size = header.size_bytes
    if position + size > end:
        raise CorruptRecord(f"the batch at position {position} (offset {header.base_offset}) is cut off at {end}")
    if size > _LARGE_BYTES:
        crc, upto = 0, position + size
        for start in range(position + ATTRIBUTES_POSITION, upto, _READ_BYTES):
            crc = crc32c(file.read(start, min(_READ_BYTES, upto - start)), crc)
        if crc != header.crc:
            raise CorruptRecord(f"the batch at position {position} (offset {header.base_offset}) has CRC {crc}")
    return max(_READ_BYTES, size)


class Pass(ABC):
    """Work on some segments, slice by slice. `run` is called on any thread, one call at a time."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """The segments are snapshots, which the pass closes."""
        self.bytes_read = self.bytes_written = 0
        """From files, and to files."""
        self._bytes_unpacked = 0
        """Decompressed; no I/O, but time."""
        self._segments = segments
        self._steps = self._work()

    def run(self, most_bytes: int) -> bool:
        """Continue until about so many bytes were read, decompressed or written. Whether the pass is complete."""
        limit = self._effort() + most_bytes
        try:
            for _ in self._steps:
                if self._effort() >= limit:
                    return False
        except Exception:
            self.discard()
            raise
        self.close()
        return True

    def close(self) -> None:
        """Close the files that are read."""
        for segment in self._segments:
            segment.close()

    def discard(self, *, removes: bool = True) -> None:
        """Close everything. What was written is removed, unless `removes` is false: the log has no directory any more,
        or its disk failed."""
        self.close()

    def _effort(self) -> int:
        return self.bytes_read + self.bytes_written + self._bytes_unpacked

    @abstractmethod
    def _work(self) -> Generator[None, None, None]:
        """All of the work; stops after each batch."""


class KeyMapping(Pass):
    """Puts the last offset of each key in [start, upto) into the map, up to `latest_offset` where it has no more
    room."""

    def __init__(
        self,
        offsets: KeyOffsets,
        segments: Sequence[Segment],
        start: int,
        upto: int,
        transactions: CleanedTransactions,
    ) -> None:
        super().__init__(segments)
        self.is_full = False
        """The map had no room for a key: it is complete up to the batch before."""
        self._offsets = offsets
        self._start = start
        self._upto = upto
        self._transactions = transactions

    def _work(self) -> Generator[None, None, None]:
        offsets, start = self._offsets, self._start
        for at, segment in enumerate(self._segments):
            following = self._segments[at + 1].base_offset if at + 1 < len(self._segments) else self._upto
            position = segment.locate(start, read_waiting) if start > segment.base_offset else 0
            if position is not None:
                for header, data in read_batches(segment, position):
                    self.bytes_read += len(data)
                    if not self._map(header, data):
                        self.is_full = True
                        return
                    if header.last_offset >= start:
                        offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
                    yield
            offsets.latest_offset = max(offsets.latest_offset, following - 1)

    def _map(self, header: BatchHeader, data: memoryview) -> bool:
        """False where the map has no room."""
        if header.is_control:
            self._transactions.on_marker(header, marker_kind(header, data))
            return True
        if self._transactions.on_batch(header) or not header.records_count:
            return True
        section = Section(header, data)
        scan = KeyScan(
            self._offsets,
            header.records_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            self._start,
            None,
            True,
        )
        for piece in section:
            scan.feed(piece)
        scan.finish()
        self._bytes_unpacked += section.unpacked
        return not scan.full


class Rewriting(Pass):
    """Writes what is kept of a group of segments into one, synced, under `.cleaned` names."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: Sequence[Segment],
        rules: CleanRules,
        transactions: CleanedTransactions,
    ) -> None:
        super().__init__(segments)
        self.cleaned: Segment | None = None
        """The segment that is written; None before the first slice, and once it was taken or discarded."""
        self._remove = Segment(disk, directory, segments[0].base_offset, config, suffix=CLEANED_SUFFIX).files()
        self._disk = disk
        self._directory = directory
        self._config = config
        self._rules = rules
        self._transactions = transactions
        self._spare_bytes = 0
        """How much of the disk's space it leaves."""

    def take(self) -> Segment:
        """The complete segment, which belongs to the caller from now on."""
        cleaned, self.cleaned = self.cleaned, None
        assert cleaned is not None, "the pass is not complete"
        return cleaned

    def discard(self, *, removes: bool = True) -> None:
        super().discard()
        if self.cleaned is not None:
            self.cleaned.close()
            self.cleaned = None
        if removes:
            with contextlib.suppress(OSError):  # what is left is removed when the log is opened
                self._remove(self._disk)

    def _work(self) -> Generator[None, None, None]:
        segments, rules, transactions = self._segments, self._rules, self._transactions
        modified_ms = segments[-1].modified_ms()
        base_offset = segments[0].base_offset
        self._spare_bytes = min(_SPARE_BYTES, self._disk.total_bytes(self._directory) // 100)
        cleaned = self.cleaned = Segment.create(
            self._disk, self._directory, base_offset, self._config, rules.now_ms, suffix=CLEANED_SUFFIX
        )
        out: list[Buffer] = []
        placed: list[Placed] = []
        pending = 0
        for segment in segments:
            for header, data in read_batches(segment):
                self.bytes_read += len(data)
                if header.is_control:
                    left, ended = filter_marker(rules, transactions, header, data)
                    if ended is not None:
                        cleaned.txn_index.append(ended)
                else:
                    left = filter_batch(rules, header, data, transactions.on_batch(header))
                    self._bytes_unpacked += left.unpacked
                if left.parts:
                    out += left.parts
                    placed.append(Placed(header.last_offset, left.max_timestamp, left.size_bytes))
                    pending += left.size_bytes
                    if pending >= _WRITE_BYTES:
                        self._write(out, placed)
                        pending = 0
                yield
        self._write(out, placed)
        cleaned.seal()
        for file in cleaned.sync_files():
            try:
                file.sync()
            finally:
                file.close()
        self._disk.set_modified(cleaned.path(LOG_SUFFIX), modified_ms)

    def _write(self, out: list[Buffer], placed: list[Placed]) -> None:
        assert self.cleaned is not None
        if placed:
            usable = self._disk.usable_bytes(self._directory)
            if usable < self._spare_bytes:
                raise OSError(errno.ENOSPC, f"the disk has {usable} bytes left, which are for appends", self._directory)
            before = self.cleaned.size
            self.cleaned.append(out, placed)
            self.bytes_written += self.cleaned.size - before
        out.clear()
        placed.clear()


def group_segments(segments: Sequence[Segment], config: LogConfig, upto: int) -> list[list[Segment]]:
    """Groups of neighbours that fit into one segment by size, index sizes and offset range."""
    groups: list[list[Segment]] = []
    sizes = (0, 0, 0)
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else upto
        mine = (segment.size, segment.offset_index.size_bytes, segment.time_index.size_bytes)
        total = (sizes[0] + mine[0], sizes[1] + mine[1], sizes[2] + mine[2])
        if (
            groups
            and len(groups[-1]) < _MAX_GROUP
            and total[0] <= config.segment_bytes
            and max(total[1:]) <= config.segment_index_bytes
            and (not segment.size or following - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(segment)
            sizes = total
        else:
            groups.append([segment])
            sizes = mine
    return groups
