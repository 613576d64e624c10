"""Which batches of one fetch a read_committed consumer may see.

The response to a read_committed fetch has whole batches up to the last stable offset, and a list of the aborted
transactions among them: producer id and first offset. The batches of this producer from the first offset up to its
next ABORT marker were aborted; batches after the marker belong to its next transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.records.batch import Buffer, iter_batches
from kalda.records.builder import read_records
from kalda.records.control import ControlType, read_control_type


def aborted_batches(records: Buffer, aborted: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Base offsets of the batches in `records` that belong to `aborted` transactions (producer id, first offset)."""
    pending = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting_producer_ids: set[int] = set()
    dropped: list[int] = []
    for pos, header in iter_batches(records):
        while pending and pending[-1][1] <= header.last_offset:
            aborting_producer_ids.add(pending.pop()[0])
        if not header.is_transactional or header.producer_id not in aborting_producer_ids:
            continue
        if not header.is_control:
            dropped.append(header.base_offset)
        elif any(read_control_type(record.key) is ControlType.ABORT for record in read_records(records, pos, header)):
            aborting_producer_ids.discard(header.producer_id)
    return frozenset(dropped)
