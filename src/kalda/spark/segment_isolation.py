"""Which batches of a partition's directory a read_committed consumer would get.

Aborted transactions are in the `.txnindex` files. The last stable offset is on no disk: it is found from the latest
producer snapshot that can be read and the batches after it, or from all batches where there is none. The same walk
finds aborted transactions whose index entry a crash has lost.
"""

from __future__ import annotations

import os
from bisect import bisect_right

from kalda.base.errors import CorruptRecord
from kalda.broker.disk import RealDisk
from kalda.records.batch import BatchHeader
from kalda.records.control import ControlType, read_control_batch
from kalda.spark.segment_batches import Damage, Run, read_piece
from kalda.spark.segment_files import MAX_OFFSET, Piece
from kalda.storage.log.producer_snapshot import read_snapshot
from kalda.storage.log.txn_index import decode_entries
from kalda.storage.naming import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, offset_of


class Isolation:
    """The aborted transactions of one partition, and its last stable offset."""

    def __init__(self, directory: str) -> None:
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """First and last offset of each aborted transaction, by producer id, in order."""
        self.last_stable_offset = MAX_OFFSET
        """Where an open transaction begins; no batch from there on is returned."""
        names = sorted(os.listdir(directory))
        for name in names:
            if name.endswith(TXN_INDEX_SUFFIX):
                with open(f"{directory}/{name}", "rb") as file:
                    for _, txn in decode_entries(file.read()):
                        self._add(txn.producer_id, txn.first_offset, txn.last_offset)
        start, ongoing = _latest_snapshot(directory, names)
        self._walk(directory, names, start, ongoing)
        if ongoing:
            self.last_stable_offset = min(ongoing.values())
        for spans in self._aborted.values():
            spans.sort()

    def keeps(self, header: BatchHeader) -> bool:
        if header.base_offset >= self.last_stable_offset:
            return False
        spans = self._aborted.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return True
        at = bisect_right(spans, (header.base_offset, MAX_OFFSET)) - 1
        return at < 0 or spans[at][1] < header.base_offset

    def _add(self, producer_id: int, first: int, last: int) -> None:
        spans = self._aborted.setdefault(producer_id, [])
        if (first, last) not in spans[-4:]:
            spans.append((first, last))

    def _walk(self, directory: str, names: list[str], start: int, ongoing: dict[int, int]) -> None:
        """Apply the batches from offset `start` on to the open transactions."""
        bases = [(offset_of(name) or 0, name) for name in names if name.endswith(LOG_SUFFIX)]
        for (base, name), following in zip(bases, [*(base for base, _ in bases[1:]), MAX_OFFSET], strict=True):
            if following <= start:
                continue
            path = f"{directory}/{name}"
            for found in read_piece(Piece("", 0, "", path, base, 0, os.path.getsize(path), 0)):
                if not isinstance(found, Damage):
                    self._apply(found, start, ongoing)

    def _apply(self, run: Run, start: int, ongoing: dict[int, int]) -> None:
        at = 0
        for header in run.headers:
            if header.is_transactional and header.base_offset >= start:
                if not header.is_control:
                    ongoing.setdefault(header.producer_id, header.base_offset)
                else:
                    first = ongoing.pop(header.producer_id, None)
                    if first is not None and _is_abort(run.buffer, at, header):
                        self._add(header.producer_id, first, header.last_offset)
            at += header.size_bytes


def _is_abort(buffer: memoryview, at: int, header: BatchHeader) -> bool:
    try:
        return any(record.type is ControlType.ABORT for record in read_control_batch(buffer, at, header))
    except CorruptRecord:
        return False


def _latest_snapshot(directory: str, names: list[str]) -> tuple[int, dict[int, int]]:
    """The offset of the latest producer snapshot that can be read, and where its open transactions begin."""
    for name in reversed([name for name in names if name.endswith(SNAPSHOT_SUFFIX)]):
        try:
            states = read_snapshot(RealDisk(), f"{directory}/{name}")
        except (CorruptRecord, OSError):
            continue
        open_ones = {
            state.producer_id: state.txn_first_offset
            for state in states
            if state.txn_first_offset is not None and state.txn_first_offset >= 0
        }
        return offset_of(name) or 0, open_ones
    return 0, {}
