"""What compaction keeps of a log, batch by batch.

A record is kept where the map of keys has no later one of its key, and it has a value or its removal is not due.
Offsets and order never change. Deletions (records without a value) and transaction markers stay for
`delete.retention.ms`, so that a consumer that began at the log's start can have read them: the first cleaning that
keeps one writes the time of its removal into the batch (the delete horizon, KIP-534), and a later one removes it.

Records of aborted transactions are removed at once, their marker after the last of them. A batch with the last sequence
of a producer whose state is still held stays as an empty header, and so does the batch at the end of the cleaned range:
otherwise a recovery would lose that sequence, or the log's end.

Of a batch of magic 0 or 1 a batch of magic 2 is left, as in Apache Kafka. Its deletions stay where the segment was
modified less than `delete.retention.ms` before the last one that is clean: they have no delete horizon.

The records of a batch are read, judged and written by compiled code, in pieces of at most 256 KiB as they come out of
the decompressor: no record becomes an object, and the memory that a batch needs does not depend on what is in it.

All of this runs on any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kalda.base.disk import Buffer
from kalda.base.errors import CorruptRecord
from kalda.records.batch import (
    COMPRESSION_MASK,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAX_INT32,
    BatchHeader,
    TimestampType,
    read_header,
    write_crc,
    write_header,
)
from kalda.records.builder import in_current_format, read_records, rebuild_batch, rebuild_legacy_batch
from kalda.records.checksum import crc32c
from kalda.records.compacting import KeyScan, Rewriting
from kalda.records.compression import MAX_DECOMPRESSED_BYTES, Compression, PackedTooLarge, Packer, decompress_pieces
from kalda.records.control import ControlType, read_control_type
from kalda.records.key_offsets import KeyOffsets
from kalda.storage.txn_index import AbortedTxn

_PIECE_BYTES = 256 * 1024
_HELD_BYTES = 1024 * 1024
"""Records that unfold to at most that are decompressed once, and held until they have been rewritten."""
_MAX_MARKER_BYTES = 64 * 1024
"""A control batch has one small record; a larger one is damaged, and is not decoded."""
_LEAST_RECORD_BYTES = 7


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


class Section:
    """The records of one batch, decompressed piece by piece. May be iterated over twice."""

    __slots__ = ("_body", "_codec", "_held", "unpacked")

    def __init__(self, header: BatchHeader, data: Buffer) -> None:
        """`data` is the whole batch. Raises `CorruptRecord` for a count of records for which it has no room."""
        self._codec = header.compression
        self._body = memoryview(data)[HEADER_SIZE:]
        self._held: Sequence[Buffer] | None = None
        """All pieces, where they were few or need not be decompressed; None before, and where they were many."""
        self.unpacked = 0
        """Bytes that were decompressed so far."""
        room = len(self._body) if self._codec is Compression.NONE else MAX_DECOMPRESSED_BYTES
        if header.records_count * _LEAST_RECORD_BYTES > room:
            raise CorruptRecord(f"the batch at offset {header.base_offset} has no {header.records_count} records")
        if self._codec is Compression.NONE:
            size = len(self._body)
            self._held = [self._body[start : start + _PIECE_BYTES] for start in range(0, size, _PIECE_BYTES)]

    def __iter__(self) -> Iterator[Buffer]:
        return self._unpacked() if self._held is None else iter(self._held)

    def _unpacked(self) -> Iterator[Buffer]:
        held: list[Buffer] = []
        size = 0
        for piece in decompress_pieces(self._codec, self._body):
            size += len(piece)
            self.unpacked += len(piece)
            if size <= _HELD_BYTES:
                held.append(piece)
            else:
                held.clear()
            yield piece
        if size <= _HELD_BYTES:
            self._held = held


@dataclass(frozen=True, slots=True)
class CleanRules:
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

    @property
    def last_offsets(self) -> array[int]:
        """The last offsets of batches of data that `keeps_producer` keeps, rising."""
        return array("q", sorted(last.last_data_offset for last in self.last_records.values()))

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


def filter_batch(rules: CleanRules, header: BatchHeader, data: Buffer, is_aborted: bool) -> Filtered:
    """What is left of a batch of data; `is_aborted`: of an aborted transaction. Raises `CorruptRecord`."""
    count = header.records_count
    if is_aborted or not count:
        return _emptied(rules, header)
    horizon = header.delete_horizon_ms
    section = Section(header, data)
    bits = bytearray((count + 7) // 8)
    scan = KeyScan(
        rules.offsets,
        count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        0,
        bits,
        horizon is None or rules.now_ms < horizon,
    )
    for piece in section:
        scan.feed(piece)
    scan.finish()
    kept = scan.kept
    if not kept:
        return _emptied(rules, header)._replace(unpacked=section.unpacked)
    if horizon is None and scan.tombstones:
        horizon = rules.now_ms + rules.delete_retention_ms
    elif kept == count:
        return Filtered((data,), len(data), header.max_timestamp, section.unpacked)
    return _rewritten(header, section, scan, bits, horizon)


def filter_legacy_batch(
    rules: CleanRules, header: BatchHeader, data: Buffer, modified_ms: int, base_offset: int
) -> tuple[BatchHeader, Filtered]:
    """(header, bytes) of what is left of a batch of magic 0 or 1, in magic 2. `modified_ms`, `base_offset`: of its
    segment. Raises `CorruptRecord`, also where the batch begins before its segment, as in a follower that was cut
    within it: a batch of magic 2 that does would count as damaged."""
    records = read_records(data, 0, header)
    if records[0].offset < base_offset:
        raise CorruptRecord(
            f"the batch of offsets {records[0].offset} to {header.last_offset} begins before its segment"
        )
    current, whole = in_current_format(header, data)
    bits = bytearray((len(records) + 7) // 8)
    scan = KeyScan(
        rules.offsets,
        len(records),
        current.base_offset,
        current.last_offset_delta,
        current.base_timestamp,
        0,
        bits,
        modified_ms > rules.legacy_horizon_ms,
    )
    scan.feed(memoryview(whole)[HEADER_SIZE:])
    scan.finish()
    kept = [record for at, record in enumerate(records) if bits[at >> 3] >> (at & 7) & 1]
    if not kept:
        return current, _emptied(rules, current)._replace(unpacked=len(whole))
    horizon = rules.now_ms + rules.delete_retention_ms if scan.tombstones else None
    rebuilt = rebuild_legacy_batch(header, kept, delete_horizon_ms=horizon, compression=header.compression)
    left = read_header(rebuilt)
    return left, Filtered((rebuilt,), len(rebuilt), left.max_timestamp, len(whole))


def _emptied(rules: CleanRules, header: BatchHeader) -> Filtered:
    """A batch of which no record is kept."""
    if not rules.keeps_header(header):
        return _REMOVED
    bare = header.attributes & ~(DELETE_HORIZON_BIT | COMPRESSION_MASK)
    rebuilt = rebuild_batch(header._replace(attributes=bare), [])
    return Filtered((rebuilt,), len(rebuilt), header.max_timestamp, 0)


def _rewritten(header: BatchHeader, section: Section, scan: KeyScan, bits: bytearray, horizon: int | None) -> Filtered:
    """The batch with the records whose bit is set, as `rebuild_batch` writes it: base offset, last offset, sequence and
    producer stay the same. The base timestamp is the delete horizon, or that of the first record (KIP-534)."""
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND
    old_base = header.max_timestamp if is_append_time else header.base_timestamp
    first = header.max_timestamp if is_append_time else scan.first_timestamp
    new_base = first if horizon is None else horizon
    rewriting = Rewriting(bits, old_base, new_base, not is_append_time)
    most = MAX_INT32 - HEADER_SIZE
    if header.compression is Compression.NONE:
        body: list[Buffer] = [rewriting.feed(piece) for piece in section]
    else:
        packer = Packer(header.compression, None, most)
        try:
            for piece in section:
                if left := rewriting.feed(piece):
                    packer.feed(left)
            body = packer.finish()
        except PackedTooLarge:
            body = []
    size = HEADER_SIZE + sum(map(len, body))
    if not body or size > MAX_INT32:
        raise CorruptRecord(f"the batch at offset {header.base_offset} has no room for its records once rewritten")
    rebuilt = header._replace(
        batch_length=size - LOG_OVERHEAD,
        attributes=header.attributes | (0 if horizon is None else DELETE_HORIZON_BIT),
        base_timestamp=new_base,
        max_timestamp=header.max_timestamp if is_append_time else scan.largest_timestamp,
        records_count=scan.kept,
    )
    return Filtered((_header_of(rebuilt, body), *body), size, rebuilt.max_timestamp, section.unpacked)


def _header_of(header: BatchHeader, body: Sequence[Buffer]) -> bytearray:
    """The bytes of `header`, with the CRC of a batch whose records are `body`."""
    head = bytearray(HEADER_SIZE)
    write_header(head, 0, header)
    crc = write_crc(head, 0, HEADER_SIZE)
    for part in body:
        crc = crc32c(part, crc)
    head[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return head
