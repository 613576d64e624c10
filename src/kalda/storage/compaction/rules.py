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

The records of a batch are read, judged and written by compiled code (`records.compaction`): none becomes an object. A
compressed batch is decompressed as a whole, to `MAX_DECOMPRESSED_BYTES` at most.

All of this runs on any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kalda.base.disk import Buffer
from kalda.base.errors import CorruptRecord
from kalda.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAX_INT32,
    BatchHeader,
    read_header,
)
from kalda.records.builder import in_current_format, read_records, rebuild_batch, rebuild_legacy_batch, seal
from kalda.records.compaction import BatchFilter
from kalda.records.compression import Compression, decompress
from kalda.records.control import ControlType, read_control_type
from kalda.records.key_offsets import KeyOffsets
from kalda.storage.log.txn_index import AbortedTxn

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
