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
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kalda.base.disk import Buffer, Disk, File
from kalda.base.errors import CorruptRecord
from kalda.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_INT32,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_crc,
    crc32c,
    read_header,
)
from kalda.records.builder import in_current_format, read_records, rebuild_batch, rebuild_legacy_batch, seal
from kalda.records.compaction import BatchFilter, map_batch, map_run
from kalda.records.compression import Compression, decompress
from kalda.records.control import ControlType, read_control_type
from kalda.records.key_offsets import KeyOffsets
from kalda.storage.config import LogConfig
from kalda.storage.file_names import CLEANED_SUFFIX, LOG_SUFFIX
from kalda.storage.log.index import read_waiting
from kalda.storage.log.segment import MAX_RELATIVE_OFFSET, Placed, Segment
from kalda.storage.log.txn_index import AbortedTxn

# What compaction keeps of a log, batch by batch.
#
# A record is kept where the map of keys has no later one of its key, and it has a value or its removal is not due.
# Offsets and order never change. Deletions (records without a value) and transaction markers stay for
# `delete.retention.ms`, so that a consumer that began at the log's start can have read them: the first cleaning that
# keeps one writes the time of its removal into the batch (the delete horizon, KIP-534), and a later one removes it.
#
# Records of aborted transactions are removed at once, their marker after the last of them. A batch with the last
# sequence of a producer whose state is still held stays as an empty header, and so does the batch at the end of the
# cleaned range: otherwise a recovery would lose that sequence, or the log's end.
#
# Of a batch of magic 0 or 1 a batch of magic 2 is left, as in Apache Kafka. Its deletions stay where the segment was
# modified less than `delete.retention.ms` before the last one that is clean: they have no delete horizon.
#
# The records of a batch are read, judged and written by compiled code (`records.compaction`): none becomes an object.
# A compressed batch is decompressed as a whole, to `MAX_DECOMPRESSED_BYTES` at most.
#
# All of this runs on any thread.

_MAX_MARKER_BYTES = 64 * 1024
"""A control batch has one small record; a larger one is damaged, and is not decoded."""


class LastRecord(NamedTuple):
    """The batch that an active producer's state is rebuilt from: its last data batch; -1 where it is a marker."""

    last_data_offset: int
    epoch: int


@dataclass(slots=True)
class CleanedTransactions:
    """Which transactions are open at the batch that is cleaned, from the log's start upwards.

    A marker is discarded where no batch of its transaction was found before it.
    """

    aborted: list[AbortedTxn] = field(default_factory=list)
    """From the transaction index, by first offset: those that begin further on."""
    _committing: set[int] = field(default_factory=set)
    """Producers with batches of an open transaction that is not aborted."""
    _aborting: dict[int, AbortedTxn] = field(default_factory=dict)
    """By producer: its open transaction, which will be aborted."""
    _met: set[int] = field(default_factory=set)
    """Producers of which a batch of such a transaction was found."""

    def add_aborted(self, txns: Sequence[AbortedTxn]) -> None:
        known = set(self.aborted)
        self.aborted += [txn for txn in txns if txn not in known]
        self.aborted.sort(key=lambda txn: txn.first_offset)

    def _advance(self, offset: int) -> None:
        while self.aborted and self.aborted[0].first_offset <= offset:
            txn = self.aborted.pop(0)
            self._aborting.setdefault(txn.producer_id, txn)

    def on_batch(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction."""
        if self.aborted:
            self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._met.add(header.producer_id)
            return True
        self._committing.add(header.producer_id)
        return False

    def on_marker(self, header: BatchHeader, kind: ControlType | None) -> tuple[bool, AbortedTxn | None]:
        """(whether no batch of its transaction was found, the aborted transaction that it ends, if it is kept)."""
        self._advance(header.last_offset)
        producer_id = header.producer_id
        if kind is None:
            return True, None  # an earlier cleaning has emptied it
        if kind is ControlType.ABORT:
            txn = self._aborting.pop(producer_id, None)
            if producer_id in self._met:
                self._met.discard(producer_id)
                return False, txn
            return True, None
        if kind is ControlType.COMMIT:
            if producer_id in self._committing:
                self._committing.discard(producer_id)
                return False, None
            return True, None
        return False, None


def marker_kind(header: BatchHeader, data: Buffer) -> ControlType | None:
    """The type of a control batch; None where it is empty. Raises `CorruptRecord`."""
    if not header.records_count:
        return None
    if len(data) > _MAX_MARKER_BYTES:
        raise CorruptRecord(f"the control batch at offset {header.base_offset} has {len(data)} bytes")
    return read_control_type(read_records(data, 0, header, max_bytes=_MAX_MARKER_BYTES)[0].key)


def section_of(header: BatchHeader, data: Buffer) -> Buffer:
    """The records of a batch of magic 2, decompressed; `data` is the whole batch. Raises `CorruptRecord`."""
    return decompress(header.compression, memoryview(data)[HEADER_SIZE:])


class CleanRules(NamedTuple):
    """What one cleaning decides by."""

    offsets: KeyOffsets
    last_records: Mapping[int, LastRecord]
    """by producer id"""
    delete_retention_ms: int
    now_ms: int
    round_end: int
    """the offset at which the range to be cleaned ends"""
    legacy_horizon_ms: int = 0
    """deletions of magic 0 and 1 stay in segments modified later"""

    def batch_filter(self, index_interval_bytes: int) -> BatchFilter:
        """What filters the batches of one group of segments. Of batches of data it leaves those to others whose header
        `keeps_producer` may keep."""
        last_offsets = array("q", sorted(last.last_data_offset for last in self.last_records.values()))
        return BatchFilter(
            self.offsets, last_offsets, self.round_end, self.now_ms, self.delete_retention_ms, index_interval_bytes
        )

    def keeps_producer(self, header: BatchHeader) -> bool:
        """Whether an active producer's state is rebuilt from this batch."""
        last = self.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def keeps_header(self, header: BatchHeader) -> bool:
        """Whether the header of a batch of which no record is kept stays."""
        return header.next_offset == self.round_end or (header.producer_id >= 0 and self.keeps_producer(header))


class Filtered(NamedTuple):
    """What is left of a batch."""

    parts: Sequence[Buffer]
    """The bytes of the batch, in order; empty where the batch is removed."""
    size_bytes: int
    max_timestamp: int
    unpacked: int
    """bytes that were decompressed to find out"""


_REMOVED = Filtered((), 0, -1, 0)


def filter_marker(
    rules: CleanRules, transactions: CleanedTransactions, header: BatchHeader, data: Buffer
) -> tuple[Filtered, AbortedTxn | None]:
    """(what is left of a control batch, the aborted transaction that it still ends). Raises `CorruptRecord`."""
    discardable, ended = transactions.on_marker(header, marker_kind(header, data))
    horizon = header.delete_horizon_ms
    if not header.records_count or (discardable and horizon is not None and horizon <= rules.now_ms):
        return _emptied(rules, header), ended
    if discardable and horizon is None:
        horizon = rules.now_ms + rules.delete_retention_ms
        rebuilt = rebuild_batch(header, read_records(data, 0, header), delete_horizon_ms=horizon)
        return Filtered((rebuilt,), len(rebuilt), read_header(rebuilt).max_timestamp, 0), ended
    return Filtered((data,), len(data), header.max_timestamp, 0), ended


def filter_batch(
    rules: CleanRules, batches: BatchFilter, header: BatchHeader, data: Buffer, is_aborted: bool
) -> Filtered:
    """What is left of a batch of data; `is_aborted`: of an aborted transaction. Raises `CorruptRecord`."""
    if is_aborted or not header.records_count:
        return _emptied(rules, header)
    section = section_of(header, data)
    unpacked = 0 if header.compression is Compression.NONE else len(section)
    left, records = batches.filter_batch(header, section)
    del section  # before what is left is compressed: a batch may unfold to much
    if not left.records_count:
        return _emptied(rules, header)._replace(unpacked=unpacked)
    if records is None:
        return Filtered((data,), len(data), header.max_timestamp, unpacked)
    whole = _sealed(records, left)
    return Filtered((whole,), len(whole), left.max_timestamp, unpacked)


def filter_legacy_batch(
    rules: CleanRules, batches: BatchFilter, header: BatchHeader, data: Buffer, modified_ms: int, base_offset: int
) -> tuple[BatchHeader, Filtered]:
    """(header, bytes) of what is left of a batch of magic 0 or 1, in magic 2. `modified_ms`, `base_offset`: of its
    segment. Raises `CorruptRecord`, also where the batch begins before its segment, as in a follower that was cut
    within it: a batch of magic 2 that does would count as damaged."""
    current, whole = in_current_format(header, data)
    if current.base_offset < base_offset:
        raise CorruptRecord(
            f"the batch of offsets {current.base_offset} to {header.last_offset} begins before its segment"
        )
    keeps_deletions = modified_ms > rules.legacy_horizon_ms
    left, records = batches.filter_batch(current, memoryview(whole)[HEADER_SIZE:], keeps_deletions)
    if not left.records_count:
        return current, _emptied(rules, current)._replace(unpacked=len(whole))
    kept = read_records(whole if records is None else _sealed(records, left))
    rebuilt = rebuild_legacy_batch(
        header, kept, delete_horizon_ms=left.delete_horizon_ms, compression=header.compression
    )
    result = read_header(rebuilt)
    return result, Filtered((rebuilt,), len(rebuilt), result.max_timestamp, len(whole))


def _emptied(rules: CleanRules, header: BatchHeader) -> Filtered:
    """A batch of which no record is kept."""
    if not rules.keeps_header(header):
        return _REMOVED
    bare = header.attributes & ~(DELETE_HORIZON_BIT | COMPRESSION_MASK)
    rebuilt = rebuild_batch(header._replace(attributes=bare), [])
    return Filtered((rebuilt,), len(rebuilt), header.max_timestamp, 0)


def _sealed(records: bytearray, header: BatchHeader) -> bytearray:
    """The batch of `header` with these records, which have room for it before them. Raises `CorruptRecord`."""
    if len(records) - LOG_OVERHEAD > MAX_INT32:
        raise CorruptRecord(f"the batch at offset {header.base_offset} has no room for its records once rewritten")
    return seal(records, header)


ReadAborted: TypeAlias = Callable[[], list[AbortedTxn]]
"""Reads the aborted transactions of what a pass reads, on its thread."""

_WRITE_BYTES = 1024 * 1024
_READ_BYTES = 1024 * 1024
_LEAST_READ_BYTES = 64 * 1024
_LOW_ATTRIBUTES_POSITION = ATTRIBUTES_POSITION + 1
_NOT_PLAIN = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT
_LARGE_BYTES = 8 * 1024 * 1024
"""A larger batch is read twice, first piece by piece for its CRC: a damaged length must not occupy that much memory."""
_SPARE_BYTES = 64 * 1024 * 1024
"""The last of the disk's space, or a hundredth of a small disk, is left to appends."""
_MAX_GROUP = 100
"""Segments that become one in one cleaning; each is an open file meanwhile."""


class BatchReader:
    """The batches of a segment, by large reads. Raises `CorruptRecord`: a damaged log is not cleaned."""

    def __init__(self, segment: Segment, position: int = 0) -> None:
        self.chunk = memoryview(b"")
        """What was read last."""
        self.at = 0
        """Where the next batch begins in it."""
        self.read_bytes = _READ_BYTES
        """How much is read at once, where no batch is larger."""
        self._segment = segment
        self._file = segment.reading(read_waiting)
        self._position = position
        """Of the chunk's beginning in the file."""
        self._header: BatchHeader | None = None
        """Of the batch that was found last."""

    def find(self) -> bool:
        """Whether there is a further batch. It is whole in the chunk then."""
        end, wanted = self._segment.size, self.read_bytes
        while True:
            left, position = len(self.chunk) - self.at, self._position + self.at
            if left >= HEADER_SIZE or (left and position + left >= end):
                try:
                    header = self._header = read_header(self.chunk, self.at)
                    if header.size_bytes <= left:
                        return True
                    wanted = _whole(self._file, header, position, end, self.read_bytes)
                except CorruptRecord as error:
                    raise self._located(error) from None
            elif position >= end:
                return False
            self._read(position, min(wanted, end - position))

    def _read(self, position: int, size: int) -> None:
        self.chunk, self.at, self._position = memoryview(self._file.read(position, size)), 0, position
        if len(self.chunk) < size:
            where = self._segment.path(LOG_SUFFIX)
            raise CorruptRecord(f"{where} ends at {position + len(self.chunk)}, not at {self._segment.size}")

    def may_be_plain(self) -> bool:
        """Whether the batch that `find` found may begin a run (`records.compaction`)."""
        return not self.chunk[self.at + _LOW_ATTRIBUTES_POSITION] & _NOT_PLAIN

    def take(self) -> tuple[BatchHeader, memoryview]:
        """(header, whole bytes) of the batch that `find` found."""
        at, header = self.at, self._header
        assert header is not None, "no batch was found"
        try:
            check_crc(self.chunk, at, header)
        except CorruptRecord as error:
            raise self._located(error) from None
        self.at = at + header.size_bytes
        return header, self.chunk[at : self.at]

    def _located(self, error: CorruptRecord) -> CorruptRecord:
        where = f"{self._segment.path(LOG_SUFFIX)}, read from position {self._position}"
        return CorruptRecord(f"{where}: {error.message}")


def _whole(file: File, header: BatchHeader, position: int, end: int, read_bytes: int) -> int:
    """How much is to be read at `position` for a batch of that header, of which the last read had only a part."""
    size = header.size_bytes
    if position + size > end:
        raise CorruptRecord(f"the batch at position {position} (offset {header.base_offset}) is cut off at {end}")
    if size > _LARGE_BYTES:
        crc, upto = 0, position + size
        first, checksum = (MAGIC_POSITION, zlib.crc32) if header.is_legacy else (ATTRIBUTES_POSITION, crc32c)
        for start in range(position + first, upto, _READ_BYTES):
            crc = checksum(file.read(start, min(_READ_BYTES, upto - start)), crc)
        if crc != header.crc:
            raise CorruptRecord(f"the batch at position {position} (offset {header.base_offset}) has CRC {crc}")
    return max(read_bytes, size)


class Pass(ABC):
    """Work on some segments, slice by slice. `run` is called on any thread, one call at a time."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """The segments are snapshots, which the pass closes."""
        self.bytes_read = self.bytes_written = 0
        """From files, and to files."""
        self._bytes_unpacked = 0
        """Decompressed; no I/O, but time."""
        self._segments = segments
        self._read_bytes = _READ_BYTES
        """How much is read at once."""
        self._limit = 0
        """Up to how much `_effort` the slice goes."""
        self._steps = self._work()

    def run(self, most_bytes: int) -> bool:
        """Continue until about so many bytes were read, decompressed or written. Whether the pass is complete."""
        self._limit = self._effort() + most_bytes
        self._read_bytes = min(max(most_bytes, _LEAST_READ_BYTES), _READ_BYTES)
        try:
            for _ in self._steps:
                if self._effort() >= self._limit:
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

    def _reader(self, segment: Segment, position: int) -> Iterator[BatchReader]:
        """The reader of a segment, each time that it has a further batch."""
        reader = BatchReader(segment, position)
        while True:
            reader.read_bytes = self._read_bytes
            if not reader.find():
                return
            before = reader.at
            yield reader
            self.bytes_read += reader.at - before

    def _stop(self, reader: BatchReader) -> int:
        """At which position of the chunk a run of batches may end."""
        return reader.at + max(1, self._limit - self._effort())

    @abstractmethod
    def _work(self) -> Generator[None, None, None]:
        """All of the work; stops after each batch, or run of batches."""


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
        aborted: ReadAborted | None = None,
    ) -> None:
        super().__init__(segments)
        self.is_full = False
        """The map had no room for a key: it is complete up to the batch before."""
        self._offsets = offsets
        self._start = start
        self._upto = upto
        self._transactions = transactions
        self._aborted = aborted
        """Where the aborted transactions of what is read are not in `transactions` yet: the first slice adds them."""

    def _work(self) -> Generator[None, None, None]:
        offsets, start = self._offsets, self._start
        if self._aborted is not None:
            self._transactions.add_aborted(self._aborted())
        for at, segment in enumerate(self._segments):
            following = self._segments[at + 1].base_offset if at + 1 < len(self._segments) else self._upto
            position = segment.locate(start, read_waiting) if start > segment.base_offset else 0
            if position is not None:
                for reader in self._reader(segment, position):
                    at = reader.at
                    if reader.may_be_plain():
                        reader.at = map_run(offsets, reader.chunk, at, self._stop(reader), start)
                    if reader.at == at:
                        header, data = reader.take()
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
        if header.is_legacy:
            header, current = in_current_format(header, data)
            data = memoryview(current)
        section = section_of(header, data)
        if header.compression is not Compression.NONE:
            self._bytes_unpacked += len(section)
        return map_batch(self._offsets, header, section, self._start)


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
        aborted: ReadAborted | None = None,
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
        self._aborted = aborted
        self._spare_bytes = 0
        """How much of the disk's space it leaves."""
        self._out: list[Buffer] = []
        """What is to be written next, without what the `BatchFilter` holds."""
        self._placed: list[Placed] = []
        """The batches in it."""
        self._pending = 0
        """How many bytes of it are not held by the `BatchFilter`."""

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
        segments, rules = self._segments, self._rules
        if self._aborted is not None:
            self._transactions.add_aborted(self._aborted())
        modified_ms = segments[-1].modified_ms()
        base_offset = segments[0].base_offset
        self._spare_bytes = min(_SPARE_BYTES, self._disk.total_bytes(self._directory) // 100)
        cleaned = self.cleaned = Segment.create(
            self._disk, self._directory, base_offset, self._config, rules.now_ms, suffix=CLEANED_SUFFIX
        )
        batches = rules.batch_filter(self._config.index_interval_bytes)
        for segment in segments:
            for reader in self._reader(segment, 0):
                at, is_full = reader.at, False
                if reader.may_be_plain():
                    reader.at = batches.run(reader.chunk, at, self._stop(reader))
                    is_full = batches.is_full
                    self._take(batches)
                if reader.at == at and not is_full:
                    # Without `skip` the runs behind would count the bytes since the last index entry wrongly.
                    batches.skip(self._filter(batches, segment, *reader.take()))
                if is_full or batches.written + self._pending >= _WRITE_BYTES:
                    self._write()
                    batches.clear()
                yield
        self._write()
        cleaned.seal()
        for file in cleaned.sync_files():
            try:
                file.sync()
            finally:
                file.close()
        self._disk.set_modified(cleaned.path(LOG_SUFFIX), modified_ms)

    def _filter(self, batches: BatchFilter, segment: Segment, header: BatchHeader, data: memoryview) -> int:
        """Collect what is left of a batch that is not plain. Returns its size."""
        rules, transactions = self._rules, self._transactions
        if header.is_control:
            left, ended = filter_marker(rules, transactions, header, data)
            if ended is not None:
                assert self.cleaned is not None
                self.cleaned.txn_index.append(ended)
        elif header.is_legacy:
            header, left = filter_legacy_batch(rules, batches, header, data, segment.modified_ms(), segment.base_offset)
            self._bytes_unpacked += left.unpacked
        else:
            left = filter_batch(rules, batches, header, data, transactions.on_batch(header))
            self._bytes_unpacked += left.unpacked
        if left.parts:
            self._out += left.parts
            self._placed.append(Placed(header.last_offset, left.max_timestamp, left.size_bytes))
            self._pending += left.size_bytes
        return left.size_bytes

    def _take(self, batches: BatchFilter) -> None:
        """Collect what is left of the plain batches before."""
        part, placed = batches.take()
        if placed:
            self._out.append(part)
            self._placed += map(Placed._make, placed)

    def _write(self) -> None:
        assert self.cleaned is not None
        if self._placed:
            usable = self._disk.usable_bytes(self._directory)
            if usable < self._spare_bytes:
                raise OSError(errno.ENOSPC, f"the disk has {usable} bytes left, which are for appends", self._directory)
            before = self.cleaned.size
            offsets = [placed.last_offset for placed in self._placed]
            assert offsets == sorted(offsets), "batches keep their order"
            self.cleaned.append(self._out, self._placed)
            self.bytes_written += self.cleaned.size - before
        self._out.clear()
        self._placed.clear()
        self._pending = 0


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
