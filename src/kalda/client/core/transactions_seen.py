"""Which batches of one fetch a read_committed consumer may see.

The leader answers a read_committed fetch with whole batches up to the last stable offset and with the transactions
that were aborted among them: producer id and first offset, sorted by offset. A producer's batches from that offset on
are void until its next ABORT marker; then it starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.records.batch import Buffer, iter_batches
from kalda.records.builder import read_records
from kalda.records.control import ControlType, read_control_type


def aborted_batches(records: Buffer, aborted: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Base offsets of the batches in `records` that belong to `aborted` transactions (producer id, first offset)."""
    coming = sorted(aborted, key=lambda one: one[1], reverse=True)
    void: set[int] = set()
    dropped: list[int] = []
    for pos, header in iter_batches(records):
        while coming and coming[-1][1] <= header.last_offset:
            void.add(coming.pop()[0])
        if not header.is_transactional or header.producer_id not in void:
            continue
        if not header.is_control:
            dropped.append(header.base_offset)
        elif any(read_control_type(record.key) is ControlType.ABORT for record in read_records(records, pos, header)):
            void.discard(header.producer_id)
    return frozenset(dropped)
