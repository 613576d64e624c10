"""What compaction keeps of a log, batch by batch.

A record is kept where the offset map has no later one of its key, and it has a value or its removal is not due. Offsets
and order never change. Deletions (records without a value) and transaction markers stay for `delete.retention.ms`, so
that a consumer that began at the log's start can have read them: the first cleaning that keeps one writes the time of
its removal into the batch (the delete horizon, KIP-534), and a later one removes it.

Records of aborted transactions are removed at once, their marker after the last of them. A batch with the last sequence
of a producer whose state is still held stays as an empty header, and so does the batch at the end of the cleaned range:
otherwise a recovery would lose that sequence, or the log's end.

All of this reads and writes files only, and runs on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kalda.base.disk import Buffer, Disk
from kalda.base.errors import CorruptRecord
from kalda.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    BatchHeader,
    check_crc,
    read_header,
)
from kalda.records.builder import Record, read_records, rebuild_batch
from kalda.records.control import ControlType, read_control_type
from kalda.storage.config import LogConfig
from kalda.storage.naming import CLEANED_SUFFIX, LOG_SUFFIX
from kalda.storage.offset_map import OffsetMap
from kalda.storage.segment import MAX_RELATIVE_OFFSET, Placed, Segment
from kalda.storage.txn_index import AbortedTxn

_WRITE_BYTES = 1024 * 1024
_READ_BYTES = 1024 * 1024


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
    """The type of a control batch; None where it is empty."""
    if not header.records_count:
        return None
    return read_control_type(read_records(data, 0, header)[0].key)


def read_batches(segment: Segment, position: int = 0) -> Iterator[tuple[BatchHeader, Buffer]]:
    """(header, whole bytes) of each batch, by large reads. Raises `CorruptRecord`: a damaged log is not cleaned."""
    file, end = segment.file(), segment.size
    while position < end:
        chunk = file.read(position, min(_READ_BYTES, end - position))
        header = read_header(chunk)
        if header.size_bytes > len(chunk):
            if position + header.size_bytes > end:
                raise CorruptRecord(f"{segment.path(LOG_SUFFIX)} is cut off at {position}")
            chunk = file.read(position, header.size_bytes)
        at = 0
        while True:
            check_crc(chunk, at, header)
            yield header, memoryview(chunk)[at : at + header.size_bytes]
            at += header.size_bytes
            if len(chunk) - at < HEADER_SIZE:
                break
            header = read_header(chunk, at)
            if len(chunk) - at < header.size_bytes:
                break
        position += at


def build_map(
    offsets: OffsetMap, segments: Sequence[Segment], start: int, upto: int, aborted: Sequence[AbortedTxn]
) -> None:
    """Put the last offset of each key in [start, upto) into the map, up to `latest_offset` where it has no more
    room."""
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else upto
        position = segment.offset_index.lookup(start)[1] if start > segment.base_offset else 0
        for header, data in read_batches(segment, position):
            if header.is_control:
                transactions.on_marker(header, marker_kind(header, data))
            elif not transactions.on_batch(header):
                for record in read_records(data, 0, header):
                    if record.key is not None and record.offset >= start:
                        if offsets.is_full:
                            return
                        offsets.put(record.key, record.offset)
            if header.last_offset >= start:
                offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
        offsets.latest_offset = max(offsets.latest_offset, following - 1)


@dataclass(frozen=True, slots=True)
class CleanRules:
    """What one cleaning decides by."""

    offsets: OffsetMap
    last_records: Mapping[int, LastRecord]
    """by producer id"""
    delete_retention_ms: int
    now_ms: int
    round_end: int
    """the offset at which the range to be cleaned ends"""

    def keeps_producer(self, header: BatchHeader) -> bool:
        """Whether an active producer's state is rebuilt from this batch."""
        last = self.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def keeps_record(self, header: BatchHeader, record: Record) -> bool:
        if record.offset > self.offsets.latest_offset:
            return True
        if record.key is None or record.offset < self.offsets.get(record.key):
            return False
        horizon = header.delete_horizon_ms
        return record.value is not None or horizon is None or self.now_ms < horizon


def filter_batch(
    rules: CleanRules, transactions: CleanedTransactions, header: BatchHeader, data: Buffer
) -> tuple[Buffer | None, AbortedTxn | None]:
    """(what is left of a batch, None for nothing; the aborted transaction that it still ends)."""
    ended = None
    if header.is_control:
        discardable, ended = transactions.on_marker(header, marker_kind(header, data))
        horizon = header.delete_horizon_ms
        discard = discardable and horizon is not None and horizon <= rules.now_ms
        kept = [] if discard else read_records(data, 0, header)
        removed = discard
        needs_horizon = discardable
    else:
        discard = transactions.on_batch(header)
        records = [] if discard else read_records(data, 0, header)
        kept = [record for record in records if rules.keeps_record(header, record)]
        removed = len(kept) < header.records_count
        needs_horizon = any(record.value is None for record in kept)
    if kept:
        if needs_horizon and header.delete_horizon_ms is None:
            horizon = rules.now_ms + rules.delete_retention_ms
            return rebuild_batch(header, kept, delete_horizon_ms=horizon), ended
        if not removed:
            return data, ended
        return rebuild_batch(header, kept, delete_horizon_ms=header.delete_horizon_ms), ended
    if (header.producer_id >= 0 and rules.keeps_producer(header)) or header.next_offset == rules.round_end:
        bare = header.attributes & ~(DELETE_HORIZON_BIT | COMPRESSION_MASK)
        return rebuild_batch(header._replace(attributes=bare), []), ended
    return None, ended


class CleanResult(NamedTuple):
    """A cleaned segment, still under its `.cleaned` name, and the bytes that were read and written for it."""

    cleaned: Segment
    bytes_read: int
    bytes_written: int


def clean_group(
    disk: Disk,
    directory: str,
    config: LogConfig,
    group: Sequence[Segment],
    rules: CleanRules,
    transactions: CleanedTransactions,
    aborted_of: Mapping[int, Sequence[AbortedTxn]],
    modified_ms: int,
) -> CleanResult:
    """Write what is kept of a group of segments into one, synced, under `.cleaned` names.

    `aborted_of`: aborted transactions by the base offset of the segment that they concern.
    """
    cleaned = Segment.create(disk, directory, group[0].base_offset, config, rules.now_ms, suffix=CLEANED_SUFFIX)
    out: list[Buffer] = []
    placed: list[Placed] = []
    pending = bytes_read = 0

    def write() -> None:
        nonlocal pending
        if out:
            cleaned.append(out, placed)
        out.clear()
        placed.clear()
        pending = 0

    for segment in group:
        transactions.add_aborted(aborted_of.get(segment.base_offset, ()))
        for header, data in read_batches(segment):
            bytes_read += len(data)
            left, ended = filter_batch(rules, transactions, header, data)
            if ended is not None:
                cleaned.txn_index.append(ended)
            if left is None:
                continue
            now = read_header(left)
            out.append(left)
            placed.append(Placed(now.last_offset, now.max_timestamp, len(left)))
            pending += len(left)
            if pending >= _WRITE_BYTES:
                write()
    write()
    cleaned.seal()
    for file in cleaned.sync_files():
        try:
            file.sync()
        finally:
            file.close()
    disk.set_modified(cleaned.path(LOG_SUFFIX), modified_ms)
    return CleanResult(cleaned, bytes_read, cleaned.size)


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
